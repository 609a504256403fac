// Brings OpenAI-style chat messages into the form that chat templates read. Pure; any thread.
//   content: a list of text parts becomes one string, the parts joined with one space (as SGLang's string form does);
//     other part types are refused by name; null is allowed with tool_calls, otherwise absent or null content is "".
//   tool_calls[].function.arguments: a string holding JSON, or any JSON value; it becomes JSON text, because
//     DeepSeek's templates put it behind a string. A missing "type" becomes "function".
// Other fields pass through.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace moesaic {

// Errors name the place: "messages[1].content[0]: ...".
absl::StatusOr<nlohmann::ordered_json> normalize_messages(const nlohmann::ordered_json& messages);

}  // namespace moesaic
