// PreparedRequest: a checked body with its prompts as token ids and all lengths settled: ready for the engine. Made on
// a worker thread, because rendering and tokenising a long prompt takes time. Pure functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "serve/http/openai_request.h"
#include "serve/http/served_model.h"

namespace moesaic {

struct PreparedPrompt {
  std::vector<int32_t> ids;
  bool bos_added = false;  // by us: it is no part of an echo
  int32_t max_tokens = 0;
};

struct PreparedRequest {
  CompletionRequest request;
  std::vector<PreparedPrompt> prompts;
  bool starts_in_reasoning = false;  // the prompt ended inside <think>
  ToolFormat tool_format = ToolFormat::kNone;
  std::shared_ptr<const Grammar> grammar;  // what the output must be, behind the reasoning
                                           // and forced_prefix; null = anything
  std::string forced_prefix;  // the start of a tool call that tool_choice demanded: at the prompt's end, and parsed
};

RequestLimits limits_of(const ServedModel& model);
absl::StatusOr<PreparedRequest> prepare_chat(std::string_view body, const ServedModel& model);
absl::StatusOr<PreparedRequest> prepare_completion(std::string_view body, const ServedModel& model);

// The rendered chat, as /tokenize shows it.
absl::StatusOr<std::string> render_chat(const ChatInput& chat, const ServedModel& model);
// Ids of a raw prompt; one BOS where the tokenizer asks for it and the text has none.
PreparedPrompt encode_text(std::string_view text, bool add_special_tokens, const Tokenizer& tokenizer);
// The Request for one choice of one prompt, without id and arrival time.
Request engine_request(const PreparedRequest& prepared, size_t prompt, int64_t choice);

}  // namespace moesaic
