// Request: what the user sent. Sequence: the engine's state of it. FinishReason: why it ended (every request ends
// exactly once).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace moesaic {

class Grammar;

struct SamplingParams {
  float temperature = 1.0f;  // 0 = greedy
  float top_p = 1.0f;
  int32_t top_k = 0;  // 0 = all
  float min_p = 0.0f;
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  uint64_t seed = 0;  // filled by the front end when the user gave none
  std::vector<std::pair<int32_t, float>> logit_bias;
  int32_t min_tokens = 0;  // EOS and stop tokens are banned before
};

using RequestId = uint64_t;

struct Request {
  RequestId id = 0;                 // unique in the engine
  void* context = nullptr;          // the scheduler's user finds what is his; nobody else looks at it
  std::vector<int32_t> prompt_ids;  // at least one
  SamplingParams sampling;
  int32_t max_tokens = 16;  // 0: only the prompt is computed (echo, prompt logprobs)
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;     // besides EOS
  std::shared_ptr<const Grammar> grammar;  // what the output must be (text/grammar.h); null = anything
  bool ignore_eos = false;
  bool include_stop_in_output = false;
  bool skip_special_tokens = true;
  int32_t num_logprobs = -1;  // -1 = none, 0 = the token's own, n = and the n best
  bool prompt_logprobs = false;
  int32_t priority = 0;    // higher first
  int64_t arrival_ns = 0;  // Clock::now_ns
  int64_t deadline_ns = std::numeric_limits<int64_t>::max();
  int64_t queue_deadline_ns = std::numeric_limits<int64_t>::max();  // must have started by then
  bool use_prefix_cache = true;                                     // false: neither finds nor leaves cached blocks
  std::string cache_salt;                                           // cached blocks are shared within a salt alone
};

// On the error of a request whose deadline passed before it started: it may be tried again without loss.
inline constexpr char kNeverStartedPayload[] = "moesaic/never-started";

enum class FinishReason : uint8_t { kNone, kStop, kLength, kAbort, kError };

}  // namespace moesaic
