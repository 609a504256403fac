// predict: one operating point of one deployment: uniform requests, the same number on every DP rank. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "cost/cost_model.h"

namespace moesaic {

enum class Phase : uint8_t { kDecode, kPrefill };

struct OperatingPoint {
  Phase phase = Phase::kDecode;
  // Decode.
  int64_t batch = 1;      // requests of each DP rank (of each GPU with TP1)
  int64_t kv_len = 1;     // rows that attention reads for each request
  double acceptance = 0;  // of a draft whose predecessors were accepted
  // Prefill.
  int64_t prompt_len = 1;    // tokens of a prompt
  int64_t chunk_tokens = 1;  // of each DP rank in a step
  int64_t cached_len = 0;    // tokens of each prompt that are in the cache already
};

struct Prediction {
  Phase phase = Phase::kDecode;
  StepCost step;
  double tokens_per_step = 0;  // of a DP rank: new output tokens, or prompt tokens
  double tokens_per_s_per_gpu = 0;
  double tokens_per_s_per_node = 0;
  double tokens_per_s_per_user = 0;  // decode
  RankMemory memory;
  double kv_bytes_needed = 0;
  bool fits = true;
  // In the range in which the model was compared with published systems; if not, why.
  bool in_range = true;
  std::vector<std::string> out_of_range;
};

// Errors: numbers out of range, prompts longer than the model takes.
absl::StatusOr<Prediction> predict(const CostModel& cost, const OperatingPoint& point, int64_t gpus_per_node);

// 1 + a + a^2 + ... + a^num_draft: tokens of a step whose drafts are each accepted with chance a after the one before.
double tokens_per_verify(int64_t num_draft, double acceptance);

// The step of one DP rank.
GroupWork uniform_work(const OperatingPoint& point, int64_t num_draft);

}  // namespace moesaic
