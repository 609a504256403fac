// What a request asks of its output: OpenAI's response_format, and the fields of SGLang (regex, ebnf, json_schema) and
// vLLM (structured_outputs, guided_*). At most one of them. Pure functions.
#pragma once

#include <string>

#include "serve/http/fields.h"
#include "text/output_grammar.h"

namespace moesaic {

struct RequestedFormat {
  OutputFormat format;
  std::string param;  // the field that asked for it
};

// Failures, also of a second field that asks for a format, go to `fields`.
void read_output_format(Fields& fields, RequestedFormat* out);

}  // namespace moesaic
