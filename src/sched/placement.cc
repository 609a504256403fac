#include "sched/placement.h"

#include "base/check.h"

namespace moesaic {
namespace {

// In units of 1 / (capacity.kv_tokens * capacity.num_requests).
int64_t decode_cost(const GroupCapacity& capacity, int64_t num_tokens, const Candidate& candidate) {
  const int64_t kv_tokens = candidate.load.kv_tokens + num_tokens - candidate.num_cached;
  return kv_tokens * capacity.num_requests + (candidate.load.num_requests + 1) * capacity.kv_tokens;
}

// In units of attention pairs.
int64_t prefill_cost(int64_t num_tokens, const Candidate& candidate) {
  const int64_t tokens = candidate.load.prompt_tokens + num_tokens - candidate.num_cached;
  return tokens * kPairsPerToken + candidate.load.attention_pairs + attention_pairs(candidate.num_cached, num_tokens);
}

}  // namespace

int64_t attention_pairs(int64_t begin, int64_t end) {
  return (end * (end + 1) - begin * (begin + 1)) / 2;
}

int place(Balance balance, const GroupCapacity& capacity, int64_t num_tokens, std::span<const Candidate> candidates) {
  MOESAIC_CHECK(!candidates.empty());
  const Candidate* best = nullptr;
  int64_t best_cost = 0;
  for (const Candidate& candidate : candidates) {
    const int64_t cost = balance == Balance::kDecode ? decode_cost(capacity, num_tokens, candidate)
                                                     : prefill_cost(num_tokens, candidate);
    if (best != nullptr && cost >= best_cost) continue;
    best = &candidate;
    best_cost = cost;
  }
  return best->group;
}

}  // namespace moesaic
