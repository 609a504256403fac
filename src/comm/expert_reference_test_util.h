// A plain statement of what an AllToAll does, in loops over single numbers and with its own FP8 rounding; and one step
// of all ranks through the real one, checked against it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "comm/all_to_all.h"

namespace moesaic::testing {

// What one rank brings to a step.
struct RankTokens {
  std::vector<float> x;        // [num_tokens, hidden]
  std::vector<int32_t> ids;    // [num_tokens, topk]
  std::vector<float> weights;  // [num_tokens, topk]
  int num_tokens = 0;
};
using StepTokens = std::vector<RankTokens>;  // by rank

// How ids are drawn.
enum class Routing { kRandom, kDuplicates, kHot, kHoles, kNowhere };

RankTokens random_tokens(const AllToAllOptions& options, int num_tokens, Routing routing, Rng& rng);

// What slot `slot` makes of an input value.
inline float expert_value(int slot, float x) {
  const float scaled = x * (0.25f + 0.125f * static_cast<float>(slot));
  return scaled + static_cast<float>(slot);
}

// The nearest value of e4m3 with a scale per 128 channels, found by trying all codes.
std::vector<float> fp8_round_trip(const std::vector<float>& x, int64_t hidden);
// [num_tokens, hidden] of one rank.
std::vector<float> expected_output(const AllToAllOptions& options, const RankTokens& tokens);

// One step of `rank`; `y` gets its output. Checks that rows arrive as all_to_all.h says: order, positions, alignment.
absl::Status run_step(AllToAll& a2a, const AllToAllOptions& options, A2aMode mode, int rank, const StepTokens& step,
                      std::vector<float>* y);

}  // namespace moesaic::testing
