// The body of /v1/chat/completions and /v1/completions as a checked value. Everything that can be refused without the
// tokenizer is refused here, naming the field. Unknown fields are ignored; fields that would change the output in a way
// this server cannot honour (best_of, suffix ...) are refused. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "sched/request.h"
#include "serve/http/json.h"
#include "serve/http/output_format.h"
#include "serve/http/served_model.h"

namespace moesaic {

inline constexpr int64_t kMaxChoices = 128;     // n
inline constexpr int64_t kMaxSequences = 1024;  // n times the number of prompts
inline constexpr int64_t kMaxTopLogprobs = 20;
inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 4096;
inline constexpr size_t kMaxStopTokenIds = 1024;
inline constexpr size_t kMaxSaltBytes = 1024;
inline constexpr int64_t kMaxPriority = 1000;  // either way; more levels would be waiting for ever

// What the checks need to know of the model.
struct RequestLimits {
  std::string served_name;
  int64_t vocab_size = 0;
  SamplingDefaults defaults;
};

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct ChatInput {
  Json messages = Json::array();  // as the template wants them: content is a string or null, arguments are JSON text
  Json tools;                     // null without tools
  ToolChoice tool_choice = ToolChoice::kNone;
  std::string tool_name;                     // of kNamed
  bool parallel_tool_calls = true;           // false: the first call alone is shown
  Json template_variables = Json::object();  // chat_template_kwargs, thinking
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  bool separate_reasoning = true;
};

using PromptInput = std::variant<std::string, std::vector<int32_t>>;

struct CompletionRequest {
  std::optional<ChatInput> chat;     // of chat completions
  std::vector<PromptInput> prompts;  // of text completions
  bool add_special_tokens = true;    // text prompts get BOS if the tokenizer says so
  bool echo = false;

  RequestedFormat output;
  SamplingParams sampling;
  bool has_seed = false;
  int64_t n = 1;
  std::optional<int64_t> max_tokens;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  bool ignore_eos = false;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  int32_t num_logprobs = -1;  // as in Request
  int64_t priority = 0;
  std::string cache_salt;        // as in Request
  bool use_prefix_cache = true;  // cache_prompt

  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;
};

absl::StatusOr<CompletionRequest> parse_chat_request(std::string_view body, const RequestLimits& limits);
absl::StatusOr<CompletionRequest> parse_completion_request(std::string_view body, const RequestLimits& limits);

// A list of token ids, each in [0, vocab_size).
absl::StatusOr<std::vector<int32_t>> parse_token_ids(std::string_view field, const Json& list, int64_t vocab_size);
// The body as an object whose "model", if any, is the served one.
absl::StatusOr<Json> parse_body(std::string_view body, const std::string& served_name);
// messages, tools, tool_choice, thinking ... (chat_input.cc)
absl::StatusOr<ChatInput> parse_chat_input(const Json& body);

}  // namespace moesaic
