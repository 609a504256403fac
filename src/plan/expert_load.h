// ExpertLoads: how many tokens each expert of each MoE layer gets. Generated with the skew of published recordings, or
// read from recorded counts. Values; the same seed gives the same loads.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "model/model_config.h"

namespace moesaic {

struct ExpertLoads {
  int num_layers = 0;  // MoE layers
  int num_experts = 0;
  std::vector<double> values;  // [num_layers, num_experts]
  std::span<const double> layer(int index) const {
    return std::span(values).subspan(static_cast<size_t>(index) * num_experts, num_experts);
  }
  std::span<double> layer(int index) {
    return std::span(values).subspan(static_cast<size_t>(index) * num_experts, num_experts);
  }
};

// Popularity of an expert: exp(N(0, group_sigma) of its routing group + N(0, expert_sigma) of its own). The group term
// is what makes neighbours hot together: without it EP8 would be balanced far better than was measured. The groups of a
// layer have exactly that deviation.
struct ExpertSkew {
  double group_sigma = 0;
  double expert_sigma = 0;
  int group_size = 32;  // experts; DeepSeek-V3's 256 / n_group
};
// Fitted to the balancedness at EP8 to EP128 of the counts of DeepSeek-V3 that SGLang's users recorded
// (github.com/sgl-project/sglang, issue 6017; prompts of 4,096 tokens; answers to prompts of 2,000): within 0.02 of
// each, a seed within 0.05.
inline constexpr ExpertSkew kPrefillSkew{.group_sigma = 0.46, .expert_sigma = 0.77};
inline constexpr ExpertSkew kDecodeSkew{.group_sigma = 0.39, .expert_sigma = 0.64};

// The mean load of an expert is 1 in each layer.
ExpertLoads generate_loads(int num_layers, int num_experts, const ExpertSkew& skew, uint64_t seed);

// Each load times exp(N(0, sigma)): sigma 0.1 is a drift of 10 %.
ExpertLoads drift_loads(const ExpertLoads& loads, double sigma, uint64_t seed);

// Loads of another kind of traffic: as skewed as before, logarithms correlated by `correlation` with the old ones.
ExpertLoads shift_loads(const ExpertLoads& loads, const ExpertSkew& skew, double correlation, uint64_t seed);

// The recordings above correlate by 0.89 to 0.96 when prompts differ; with this value placements lose as much as
// theirs.
inline constexpr double kOtherTraffic = 0.95;

// What a model's recording must look like.
struct CountsShape {
  int num_hidden_layers = 0;
  int first_k_dense_replace = 0;
  int n_routed_experts = 0;
  int num_moe_layers() const { return num_hidden_layers - first_k_dense_replace; }
};
CountsShape counts_shape(const ModelConfig& config);

// JSON lines, a record each: {"logical_count": [[tokens of expert 0, ...] of layer 0, ...]}. Layers are all hidden
// layers, with zeros in the dense ones (as SGLang dumps them), or the MoE layers alone. A first line without
// logical_count is a header: num_hidden_layers, first_k_dense_replace, n_routed_experts and num_records, where given,
// must be those of the model and of the file. Errors (INVALID_ARGUMENT) name source and line: no JSON, a file that was
// cut short, another model's sizes, counts that are no numbers from 0, no tokens at all.
absl::StatusOr<std::vector<ExpertLoads>> parse_expert_counts(std::string_view text, const std::string& source,
                                                             const CountsShape& shape);

}  // namespace moesaic
