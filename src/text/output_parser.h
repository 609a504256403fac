// OutputParser: splits what the model writes into reasoning, content and tool calls while it streams. Tags are matched
// in the text, across tokens; text that may still become a tag is held back. One per choice; not thread-safe. Formats
// (chosen by `detect` from the template, or by flag): V3/R1 (```json blocks between the tool-call tokens) and V3.1
// (name, separator, arguments). Reasoning: <think> ... </think>, possibly opened by the prompt.
// Special tokens must arrive as text. Reasoning and content keep their white space; space between and behind calls is
// dropped. What looks like a call but has no name is content, tag included; a call cut off before its name is complete
// leaves nothing, one cut off in its arguments keeps what came and counts as complete only if that is whole JSON.
// The joined deltas do not depend on how the text was cut into pieces.
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
  int num_tool_calls() const;  // complete ones; after finish() this decides finish_reason tool_calls
  // From the text of a chat template.
  static ToolFormat detect_tool_format(std::string_view chat_template);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
