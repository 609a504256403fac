// The memory of one GPU of a deployment, every buffer by name, and what it leaves for the KV cache. Pure; host-only.
#pragma once

#include <string>
#include <vector>

#include "cost/deployment.h"

namespace moesaic {

// One named buffer of a rank.
struct PlannedBuffer {
  std::string name;
  double num_bytes = 0;
};

// What a step of a DP group holds at most.
struct MemoryDemand {
  int64_t max_step_tokens = 0;
  int64_t max_decode_tokens = 0;  // with drafts; 0 = an instance that only prefills
};

// The fullest rank, without KV cache.
struct RankMemory {
  std::vector<PlannedBuffer> buffers;
  double capacity_bytes = 0;
  double total_bytes() const;
  double kv_bytes_free = 0;    // negative: the deployment does not fit
  int64_t kv_tokens_free = 0;  // of a DP group; 0 if nothing fits
};
RankMemory plan_rank_memory(const Deployment& deployment, const MemoryDemand& demand);

// The rule of SGLang's article (May 2025): a DP group of TP ranks holds num_params / TP + (1 + k) x hidden_state x TP
// bytes a rank, which is least at TP = sqrt(num_params / ((1 + k) hidden_state)). Derivation: the first derivative
// -num_params / TP^2
// + (1 + k) hidden_state is zero there and the second is positive. k: copies that CUDA graphs keep.
double memory_optimal_tp(double num_params, double hidden_state, double graph_copies);

}  // namespace moesaic
