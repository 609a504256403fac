// Plain values that both the model's configuration and the operations use. Host-only: no tensors.
#pragma once

#include <cstdint>

namespace moesaic {

enum class ScoringFunc : uint8_t { kSoftmax, kSigmoid };
// noaux_tc: group score = sum of its two best biased scores; group_limited_greedy: its best; greedy: no groups.
enum class TopkMethod : uint8_t { kGreedy, kGroupLimitedGreedy, kNoauxTc };

// YaRN as in DeepSeek's modelling code; factor 1 is plain RoPE. mscale fields as in config.json's rope_scaling.
struct RopeConfig {
  int64_t dim;
  double theta;
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;
  double mscale_all_dim = 0.0;
};

}  // namespace moesaic
