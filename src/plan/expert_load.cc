#include "plan/expert_load.h"

#include <cmath>
#include <numbers>
#include <numeric>

#include "base/check.h"
#include "base/rng.h"

namespace moesaic {
namespace {

// Box and Muller's transform, one value of the two.
double normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.uniform());
}

void scale_to_mean_one(ExpertLoads& loads) {
  for (int i = 0; i < loads.num_layers; ++i) {
    const std::span<double> layer = loads.layer(i);
    const double total = std::accumulate(layer.begin(), layer.end(), 0.0);
    for (double& load : layer) load *= total > 0 ? loads.num_experts / total : 1.0;
  }
}

// Normal values with mean 0 and deviation 1 among themselves: with as few as eight groups, the deviation of a plain
// draw would differ much from layer to layer.
void draw_standardised(Rng& rng, std::span<double> out) {
  for (double& value : out) value = normal(rng);
  if (out.size() < 2) return;
  const auto n = static_cast<double>(out.size());
  const double mean = std::accumulate(out.begin(), out.end(), 0.0) / n;
  for (double& value : out) value -= mean;
  const double deviation = std::sqrt(std::inner_product(out.begin(), out.end(), out.begin(), 0.0) / n);
  for (double& value : out) value /= deviation;
}

// Logarithms of popularity.
std::vector<double> draw(int num_layers, int num_experts, const ExpertSkew& skew, uint64_t seed) {
  Rng rng(seed);
  std::vector<double> groups((num_experts + skew.group_size - 1) / skew.group_size);
  std::vector<double> logs;
  logs.reserve(static_cast<size_t>(num_layers) * num_experts);
  for (int layer = 0; layer < num_layers; ++layer) {
    draw_standardised(rng, groups);
    for (int e = 0; e < num_experts; ++e) {
      logs.push_back(skew.group_sigma * groups[e / skew.group_size] + skew.expert_sigma * normal(rng));
    }
  }
  return logs;
}

}  // namespace

ExpertLoads generate_loads(int num_layers, int num_experts, const ExpertSkew& skew, uint64_t seed) {
  MOESAIC_CHECK(num_layers >= 0 && num_experts >= 1 && skew.group_size >= 1);
  ExpertLoads out{num_layers, num_experts, draw(num_layers, num_experts, skew, seed)};
  for (double& value : out.values) value = std::exp(value);
  scale_to_mean_one(out);
  return out;
}

ExpertLoads drift_loads(const ExpertLoads& loads, double sigma, uint64_t seed) {
  Rng rng(seed);
  ExpertLoads out = loads;
  for (double& value : out.values) value *= std::exp(sigma * normal(rng));
  return out;
}

ExpertLoads shift_loads(const ExpertLoads& loads, const ExpertSkew& skew, double correlation, uint64_t seed) {
  MOESAIC_CHECK(correlation >= 0 && correlation <= 1);
  const std::vector<double> fresh = draw(loads.num_layers, loads.num_experts, skew, seed);
  const double fresh_part = std::sqrt(1 - correlation * correlation);
  ExpertLoads out = loads;
  for (size_t i = 0; i < fresh.size(); ++i) {
    out.values[i] = std::pow(loads.values[i], correlation) * std::exp(fresh_part * fresh[i]);
  }
  scale_to_mean_one(out);
  return out;
}

CountsShape counts_shape(const ModelConfig& config) {
  return {.num_hidden_layers = static_cast<int>(config.num_hidden_layers),
          .first_k_dense_replace = static_cast<int>(config.first_k_dense_replace),
          .n_routed_experts = static_cast<int>(config.n_routed_experts)};
}

}  // namespace moesaic
