// Chat templates from hostile hands: an error or a text, within bounds, never a crash. Lines of the input behind a zero
// byte are fed to the output parser, whole and byte by byte.
#include <cstdint>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "text/chat_template.h"
#include "text/output_parser.h"

namespace {

std::string joined(std::string_view text, size_t step, moesaic::ToolFormat format) {
  moesaic::OutputParser parser({.tool_format = format});
  std::string reasoning, content, calls;
  const auto add = [&](const std::vector<moesaic::OutputDelta>& deltas) {
    for (const auto& delta : deltas) {
      reasoning += delta.reasoning;
      content += delta.content;
      for (const auto& call : delta.tool_calls) calls += call.id + call.name + call.arguments;
    }
  };
  for (size_t at = 0; at < text.size(); at += step) add(parser.feed(text.substr(at, step)));
  add(parser.finish());
  return reasoning + '\0' + content + '\0' + calls;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  static const auto variables = nlohmann::ordered_json::parse(
      R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"type":"function",
          "function":{"name":"f","arguments":"{}"}}]},{"role":"tool","content":"x"}],"tools":null,"add_generation_prompt":true})");
  const auto chat_template = moesaic::ChatTemplate::parse(input.substr(0, split));
  if (chat_template.ok()) (void)(*chat_template)->render(variables);
  if (split == std::string_view::npos) return 0;
  const std::string_view text = input.substr(split + 1);
  for (const auto format : {moesaic::ToolFormat::kDeepseekV3, moesaic::ToolFormat::kDeepseekV31}) {
    MOESAIC_CHECK(joined(text, text.size(), format) == joined(text, 1, format));
  }
  return 0;
}
