// Request bodies from hostile hands: a checked value or an error that names itself in valid JSON, never a crash. What
// is accepted keeps within the limits that the engine relies on.
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "serve/http/openai_error.h"
#include "serve/http/openai_request.h"

namespace {

using moesaic::CompletionRequest;

constexpr int64_t kVocabSize = 301;

void check_accepted(const CompletionRequest& request) {
  MOESAIC_CHECK(request.n >= 1 && request.n <= moesaic::kMaxChoices);
  MOESAIC_CHECK(request.stop.size() <= moesaic::kMaxStopStrings);
  MOESAIC_CHECK(!request.max_tokens.has_value() || *request.max_tokens >= 0);
  MOESAIC_CHECK(request.sampling.temperature >= 0.0f && request.sampling.temperature <= 2.0f);
  MOESAIC_CHECK(request.sampling.top_p > 0.0f && request.sampling.top_p <= 1.0f);
  MOESAIC_CHECK(request.num_logprobs >= -1 && request.num_logprobs <= moesaic::kMaxTopLogprobs);
  for (const int32_t id : request.stop_token_ids) MOESAIC_CHECK(id >= 0 && id < kVocabSize);
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    MOESAIC_CHECK(id >= 0 && id < kVocabSize && bias >= -100.0f && bias <= 100.0f);
  }
  for (const moesaic::PromptInput& prompt : request.prompts) {
    const auto* ids = std::get_if<std::vector<int32_t>>(&prompt);
    if (ids == nullptr) continue;
    for (const int32_t id : *ids) MOESAIC_CHECK(id >= 0 && id < kVocabSize);
  }
}

void check(const absl::StatusOr<CompletionRequest>& request) {
  if (request.ok()) return check_accepted(*request);
  const int status = moesaic::http_status(request.status());
  MOESAIC_CHECK(status == 400 || status == 404);
  MOESAIC_CHECK(moesaic::parse_json(moesaic::error_json(request.status())).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  const moesaic::RequestLimits limits{.served_name = "tiny", .vocab_size = kVocabSize};
  check(moesaic::parse_chat_request(body, limits));
  check(moesaic::parse_completion_request(body, limits));
  return 0;
}
