// Brings OpenAI-style chat messages into the form that chat templates read. Pure; any thread.
//   content: a list of text parts becomes one string, the parts joined with one space (as SGLang's string form does);
//     other part types are refused by name. Null stays for assistants, absent is "" (null with tool_calls).
//   tool_calls: empty or null is dropped. A call's missing "type" becomes "function"; its arguments may be a string or
//     any JSON value.
// Other fields pass through.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"
#include "text/chat_template.h"

namespace moesaic {

// Errors name the place: "messages[1].content[0]: ...".
absl::StatusOr<nlohmann::ordered_json> normalize_messages(const nlohmann::ordered_json& messages);

// Renders `variables` (as for ChatTemplate::render) with its messages normalised. Arguments of tool calls that are not
// strings reach the template as they are; a template that fails on them (DeepSeek-V3's own adds them to a string) gets
// them as JSON text.
absl::StatusOr<std::string> render_messages(const ChatTemplate& chat_template, nlohmann::ordered_json variables);

}  // namespace moesaic
