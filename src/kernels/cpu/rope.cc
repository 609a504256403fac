// Rotary embedding with YaRN scaling (Peng et al. 2023), as DeepSeek-V3 and Hugging Face read rope_scaling: adjacent
// elements form a pair.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/cpu/vector_ops.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

// YaRN's attention temperature for a weight `a` of the logarithm.
double yarn_m(double factor, double a) {
  return factor <= 1.0 ? 1.0 : 0.1 * a * std::log(factor) + 1.0;
}

// The dimension whose wave turns `rotations` times within the original context.
double correction_dim(const RopeConfig& config, double rotations) {
  const double length = static_cast<double>(config.original_max_position_embeddings);
  return static_cast<double>(config.dim) * std::log(length / (rotations * 2.0 * std::numbers::pi)) /
         (2.0 * std::log(config.theta));
}

}  // namespace

void rope_inv_freq(const RopeConfig& config, std::span<double> inv_freq) {
  const int64_t half = config.dim / 2;
  MOESAIC_CHECK(config.dim > 0 && config.dim % 2 == 0);
  MOESAIC_CHECK_EQ(static_cast<int64_t>(inv_freq.size()), half);
  for (int64_t i = 0; i < half; ++i) {
    inv_freq[i] = 1.0 / std::pow(config.theta, static_cast<double>(2 * i) / static_cast<double>(config.dim));
  }
  if (config.factor == 1.0) return;
  MOESAIC_CHECK_GT(config.original_max_position_embeddings, 0);
  const double low = std::max(std::floor(correction_dim(config, config.beta_fast)), 0.0);
  const double high =
      std::min(std::ceil(correction_dim(config, config.beta_slow)), static_cast<double>(config.dim - 1));
  for (int64_t i = 0; i < half; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / std::max(high - low, 1e-3), 0.0, 1.0);
    inv_freq[i] = inv_freq[i] / config.factor * ramp + inv_freq[i] * (1.0 - ramp);
  }
}

double rope_magnitude(const RopeConfig& config) {
  // One of the two fields missing: the plain YaRN magnitude, as Hugging Face has it.
  if (config.mscale == 0.0 || config.mscale_all_dim == 0.0) return yarn_m(config.factor, 1.0);
  return yarn_m(config.factor, config.mscale) / yarn_m(config.factor, config.mscale_all_dim);
}

double rope_softmax_factor(const RopeConfig& config) {
  if (config.mscale_all_dim == 0.0) return 1.0;
  const double m = yarn_m(config.factor, config.mscale_all_dim);
  return m * m;
}

void rope_table(const RopeConfig& config, const Tensor& table) {
  constexpr int64_t kMaxDim = 1024;
  MOESAIC_CHECK(config.dim <= kMaxDim);
  MOESAIC_CHECK_EQ(table.dim(1), config.dim);
  double inv_freq[kMaxDim / 2];
  const int64_t half = config.dim / 2;
  rope_inv_freq(config, {inv_freq, static_cast<size_t>(half)});
  const double magnitude = rope_magnitude(config);
  table.f32();
  for (int64_t p = 0; p < table.dim(0); ++p) {
    float* row = table.row<float>(p);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * inv_freq[i];
      row[2 * i] = static_cast<float>(std::cos(angle) * magnitude);
      row[2 * i + 1] = static_cast<float>(std::sin(angle) * magnitude);
    }
  }
}

void rope(Stream& stream, const RopeArgs& args) {
  const int64_t num_tokens = args.x.dim(0), num_heads = args.num_heads, dim = args.table.dim(1);
  MOESAIC_CHECK_EQ(args.y.dim(0), num_tokens);
  MOESAIC_CHECK_EQ(static_cast<int64_t>(args.positions.size()), num_tokens);
  MOESAIC_CHECK(num_heads > 0 && args.x.dim(1) % num_heads == 0 && args.y.dim(1) % num_heads == 0);
  const int64_t x_head = args.x.dim(1) / num_heads, y_head = args.y.dim(1) / num_heads;
  MOESAIC_CHECK(dim % 2 == 0 && dim <= x_head && dim <= y_head);
  for (const int32_t p : args.positions) MOESAIC_CHECK(p >= 0 && p < args.table.dim(0));
  if (num_tokens == 0) return;
  args.x.f32(), args.table.f32(), args.y.f32();
  const VectorOps& ops = vector_ops();
  // A worker's share is at least about 4 k elements.
  const int64_t align = std::max<int64_t>(1, 4096 / (num_heads * dim));
  stream.pool().parallel_for(num_tokens, align, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* turn = args.table.row<float>(args.positions[t]);
      const float* x = args.x.row<float>(t) + x_head - dim;
      float* y = args.y.row<float>(t) + y_head - dim;
      for (int64_t h = 0; h < num_heads; ++h) ops.rotate(x + h * x_head, turn, dim, y + h * y_head);
    }
  });
}

}  // namespace moesaic
