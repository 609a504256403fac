// OutputParser: splits what the model writes into reasoning, content and tool calls while it streams. Tags are matched
// in the text, across tokens; text that may still become a tag is held back. One per choice; not thread-safe. Formats
// (chosen by `detect` from the template, or by flag): V3/R1 (```json blocks between the tool-call tokens) and V3.1
// (name, separator, arguments). Reasoning: <think> ... </think>, possibly opened by the prompt.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace moesaic {

struct ToolCallDelta {
  int index = 0;          // of the call in this message
  std::string id;         // set in the first delta of a call ("call_...")
  std::string name;       // set in the first delta of a call
  std::string arguments;  // the next piece of the JSON text
};

// In order: reasoning comes before content. A delta never mixes what belongs to two kinds: feed() returns several.
struct OutputDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;
};

enum class ToolFormat : uint8_t { kNone, kDeepseekV3, kDeepseekV31 };

struct OutputParserOptions {
  bool parse_reasoning = true;
  bool starts_in_reasoning = false;  // the prompt ended inside <think>
  ToolFormat tool_format = ToolFormat::kNone;
  std::string tool_call_id_prefix = "call_";  // the parser appends a unique number
};

class OutputParser {
 public:
  explicit OutputParser(OutputParserOptions options);
  ~OutputParser();
  std::vector<OutputDelta> feed(std::string_view text);
  // At the end of the stream: releases what was held back.
  std::vector<OutputDelta> finish();
  int num_tool_calls() const;  // complete ones
  // From the text of a chat template.
  static ToolFormat detect_tool_format(std::string_view chat_template);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
