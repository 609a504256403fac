#include "engine/request_check.h"

#include <cmath>

#include "text/utf8.h"

namespace moesaic {
namespace {

constexpr size_t kMaxStopStrings = 256;
constexpr size_t kMaxStopBytes = 4096;

template <typename... Pieces>
absl::Status invalid(const Pieces&... pieces) {
  return absl::InvalidArgumentError(str_cat(pieces...));
}

absl::Status check_id(std::string_view field, int32_t id, int64_t vocab_size) {
  if (id >= 0 && id < vocab_size) return absl::OkStatus();
  return invalid(field, ": token id ", id, " is outside the vocabulary [0, ", vocab_size, ")");
}

absl::Status check_ids(const Request& request, int64_t vocab_size) {
  if (request.prompt_ids.empty()) return invalid("the prompt is empty: at least one token is needed");
  for (const int32_t id : request.prompt_ids) MOESAIC_RETURN_IF_ERROR(check_id("prompt", id, vocab_size));
  for (const int32_t id : request.stop_token_ids) MOESAIC_RETURN_IF_ERROR(check_id("stop_token_ids", id, vocab_size));
  for (const auto& [id, bias] : request.sampling.logit_bias) {
    MOESAIC_RETURN_IF_ERROR(check_id("logit_bias", id, vocab_size));
    if (!std::isfinite(bias)) return invalid("logit_bias: the bias of token id ", id, " is not a finite number");
  }
  if (request.num_logprobs < -1 || request.num_logprobs > vocab_size) {
    return invalid("logprobs must be between 0 and the vocabulary's ", vocab_size, ", got ", request.num_logprobs);
  }
  return absl::OkStatus();
}

// NaN fails every range.
absl::Status check_range(std::string_view field, float value, float low, float high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return invalid(field, " must be between ", low, " and ", high, ", got ", value);
}

absl::Status check_sampling(const Request& request) {
  const SamplingParams& sampling = request.sampling;
  MOESAIC_RETURN_IF_ERROR(check_range("temperature", sampling.temperature, 0.0f, 100.0f));
  MOESAIC_RETURN_IF_ERROR(check_range("top_p", sampling.top_p, 0.0f, 1.0f));
  MOESAIC_RETURN_IF_ERROR(check_range("min_p", sampling.min_p, 0.0f, 1.0f));
  MOESAIC_RETURN_IF_ERROR(check_range("frequency_penalty", sampling.frequency_penalty, -2.0f, 2.0f));
  MOESAIC_RETURN_IF_ERROR(check_range("presence_penalty", sampling.presence_penalty, -2.0f, 2.0f));
  MOESAIC_RETURN_IF_ERROR(check_range("repetition_penalty", sampling.repetition_penalty, 0.01f, 100.0f));
  if (sampling.top_k < -1) return invalid("top_k must be at least 1, or 0 or -1 for all, got ", sampling.top_k);
  if (sampling.min_tokens < 0 || sampling.min_tokens > request.max_tokens) {
    return invalid("min_tokens must be between 0 and max_tokens (", request.max_tokens, "), got ", sampling.min_tokens);
  }
  return absl::OkStatus();
}

absl::Status check_stop(const Request& request, bool has_tokenizer) {
  if (request.stop.empty()) return absl::OkStatus();
  if (!has_tokenizer) return invalid("stop strings need a tokenizer, and this engine has none");
  if (request.stop.size() > kMaxStopStrings) {
    return invalid("at most ", kMaxStopStrings, " stop strings are possible, got ", request.stop.size());
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return invalid("stop: a stop string must not be empty");
    if (stop.size() > kMaxStopBytes) {
      return invalid("stop: a stop string has ", stop.size(), " bytes and at most ", kMaxStopBytes, " are possible");
    }
    if (!is_valid_utf8(stop)) return invalid("stop: a stop string is not valid UTF-8");
  }
  return absl::OkStatus();
}

absl::Status check_lengths(const Request& request, const EngineOptions& options) {
  const auto prompt = static_cast<int64_t>(request.prompt_ids.size());
  if (request.max_tokens < 0) return invalid("max_tokens must be at least 0, got ", request.max_tokens);
  const int64_t total = prompt + request.max_tokens;
  if (total > options.context_length) {
    return invalid("the context length is ", options.context_length, " tokens (context_length); the prompt has ",
                   prompt, " and max_tokens asks for ", request.max_tokens, ", together ", total);
  }
  // The row of the last output token is never needed.
  const int64_t rows = request.max_tokens > 0 ? total - 1 : total;
  const int64_t capacity = static_cast<int64_t>(options.num_kv_blocks) * options.kv_block_tokens;
  if (rows > capacity) {
    return invalid("the KV pool holds ", capacity, " tokens (num_kv_blocks ", options.num_kv_blocks, " of ",
                   options.kv_block_tokens, " tokens); the prompt has ", prompt, " and max_tokens asks for ",
                   request.max_tokens, ", which needs ", rows);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status check_request(const Request& request, const EngineOptions& options, bool has_tokenizer) {
  MOESAIC_RETURN_IF_ERROR(check_ids(request, options.vocab_size));
  MOESAIC_RETURN_IF_ERROR(check_lengths(request, options));
  MOESAIC_RETURN_IF_ERROR(check_sampling(request));
  if (request.grammar && !has_tokenizer)
    return invalid("a constrained output needs a tokenizer, and this engine has none");
  return check_stop(request, has_tokenizer);
}

}  // namespace moesaic
