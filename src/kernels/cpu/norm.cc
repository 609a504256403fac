// RMSNorm. One pass for the sum of squares, one for the result; rows are independent.
#include <cmath>

#include "kernels/ops.h"

namespace moesaic {
namespace {

void rms_norm_row(const float* x, const float* weight, float eps, int64_t n, float* y) {
  float sum = 0.0f;
  for (int64_t i = 0; i < n; ++i) sum += x[i] * x[i];
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

}  // namespace

void rms_norm(Stream& stream, const RmsNormArgs& args) {
  const int64_t m = args.x.dim(0), n = args.x.dim(1);
  MOESAIC_CHECK_EQ(args.y.dim(0), m);
  MOESAIC_CHECK_EQ(args.y.dim(1), n);
  MOESAIC_CHECK_EQ(args.weight.num_elements(), n);
  if (m == 0) return;
  args.x.f32(), args.y.f32();
  const float* weight = args.weight.f32();
  stream.pool().parallel_for(m, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      rms_norm_row(args.x.row<float>(i), weight, args.eps, n, args.y.row<float>(i));
    }
  });
}

}  // namespace moesaic
