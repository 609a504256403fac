// Placement: which DP group takes a request. Two balancers, as in DeepSeek's inference system: a decode instance levels
// KV use and request count, a prefill instance levels attention work and dispatched tokens. Both count what the group
// would hold with the request, less what its prefix cache already has. Pure functions; same input, same group.
#pragma once

#include <cstdint>
#include <span>

namespace moesaic {

enum class Balance : uint8_t {
  kDecode,   // decode instances, and those that do both
  kPrefill,  // prefill instances
};

// What a group holds.
struct GroupLoad {
  int64_t kv_tokens = 0;        // rows of the blocks in use
  int64_t num_requests = 0;     // running
  int64_t prompt_tokens = 0;    // still to be computed: to be dispatched to the experts
  int64_t attention_pairs = 0;  // query-key pairs of these tokens
};

struct GroupCapacity {
  int64_t kv_tokens = 1;
  int64_t num_requests = 1;
};

struct Candidate {
  int group = 0;
  GroupLoad load;
  int64_t num_cached = 0;  // leading tokens of the request that the group's prefix cache has
};

// Query-key pairs of a sequence's tokens [begin, end) under causal attention.
int64_t attention_pairs(int64_t begin, int64_t end);

// The group of the candidate that is loaded least with the request (`num_tokens` to be held) added; the first of
// equals. At least one candidate. Cost: O(candidates).
//   kDecode:  KV tokens / capacity + requests / capacity
//   kPrefill: prompt tokens + attention pairs / kPairsPerToken
int place(Balance balance, const GroupCapacity& capacity, int64_t num_tokens, std::span<const Candidate> candidates);

// Attention pairs that cost what the rest of the model costs for a token. DeepSeek-V3: 37e9 active weights are 74 GFLOP
// a token; a pair takes 2 * (192 + 128) FLOP in each of 128 heads of 61 layers, 5.0 MFLOP.
inline constexpr int64_t kPairsPerToken = 14'800;

}  // namespace moesaic
