// From what a request may ask of its output to a Grammar: JSON, a JSON schema, a regular expression, EBNF or a choice
// of texts. Pure; under 1 ms for usual ones, some 0.3 s at the bounds (200,000 states, 10,000 repetitions).
// INVALID_ARGUMENT says what is wrong and where.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "text/grammar.h"
#include "text/tool_grammar.h"

namespace moesaic {

struct OutputFormat {
  enum class Kind : uint8_t { kNone, kJsonObject, kJsonSchema, kRegex, kEbnf, kChoice };
  Kind kind = Kind::kNone;
  std::shared_ptr<const nlohmann::ordered_json> schema;  // of kJsonSchema
  std::string text;                                      // of kRegex and kEbnf
  std::vector<std::string> choices;                      // of kChoice
};

// With `calls`, the output may also be calls of tools; if they are forced it is, whatever the format. With `tag`, all
// this holds behind the first `tag` in the output; before it the text is free. Null for kNone without forced calls.
absl::StatusOr<std::shared_ptr<const Grammar>> output_grammar(const OutputFormat& format, std::string_view tag = "",
                                                              const ToolCalls& calls = {});

}  // namespace moesaic
