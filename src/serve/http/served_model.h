// ServedModel: what the HTTP front end needs to know of the model behind it. A value; the pointers are borrowed and
// outlive the server.
#pragma once

#include <cstdint>
#include <string>

#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/output_parser.h"
#include "text/tokenizer.h"

namespace moesaic {

// From generation_config.json; used where a request does not say.
struct SamplingDefaults {
  float temperature = 1.0f;
  float top_p = 1.0f;
  int32_t top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
};

struct ServedModel {
  std::string name;  // what clients ask for
  std::string root;  // the model directory, shown by /v1/models
  Engine* engine = nullptr;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: chat answers 400
  ToolFormat tool_format = ToolFormat::kNone;   // OutputParser::detect_tool_format of the template
  bool parse_reasoning = true;
  SamplingDefaults defaults;
};

}  // namespace moesaic
