// The texts around DeepSeek's tool calls; special tokens in some tokenizers.
#pragma once

#include <string_view>

namespace moesaic {

constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kCallSep = "<｜tool▁sep｜>";
constexpr std::string_view kFence = "```";
constexpr std::string_view kJsonFence = "```json";

}  // namespace moesaic
