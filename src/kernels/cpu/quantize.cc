#include <algorithm>
#include <cmath>

#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr int64_t kGroup = 128;
constexpr float kAmaxFloor = 1e-4f;

// A NaN takes part in no maximum and becomes NaN itself.
float group_scale(const float* x, int64_t count) {
  float amax = kAmaxFloor;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax / kE4M3Max;
}

void check_groups(const Tensor& x, const Tensor& q, const Tensor& scales) {
  MOESAIC_CHECK(x.rank() == 2 && q.rank() == 2 && scales.rank() == 2);
  MOESAIC_CHECK_EQ(q.dtype(), DType::kE4M3);
  MOESAIC_CHECK_EQ(x.shape(), q.shape());
  MOESAIC_CHECK_EQ(scales.dim(0), x.dim(0));
  MOESAIC_CHECK_EQ(scales.dim(1), (x.dim(1) + kGroup - 1) / kGroup);
}

}  // namespace

void quantize_fp8(Stream& stream, const QuantizeArgs& args) {
  check_groups(args.x, args.q, args.scales);
  const int64_t k = args.x.dim(1);
  stream.pool().parallel_for(args.x.dim(0), 1, [&](int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      const float* x = args.x.row<float>(row);
      uint8_t* q = args.q.row<uint8_t>(row);
      for (int64_t begin = 0; begin < k; begin += kGroup) {
        const int64_t count = std::min(kGroup, k - begin);
        const float scale = group_scale(x + begin, count);
        args.scales.row<float>(row)[begin / kGroup] = scale;
        for (int64_t i = begin; i < begin + count; ++i) q[i] = f32_to_e4m3(x[i] / scale);
      }
    }
  });
}

void dequantize_fp8(Stream& stream, const Tensor& q, const Tensor& scales, const Tensor& y) {
  check_groups(y, q, scales);
  const int64_t k = y.dim(1);
  stream.pool().parallel_for(y.dim(0), 1, [&](int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      for (int64_t i = 0; i < k; ++i) {
        y.row<float>(row)[i] = e4m3_to_f32(q.row<uint8_t>(row)[i]) * scales.row<float>(row)[i / kGroup];
      }
    }
  });
}

void round_trip_fp8(Stream& stream, const Tensor& x, const Tensor& y) {
  MOESAIC_CHECK_EQ(x.rank(), 2);
  MOESAIC_CHECK_EQ(x.shape(), y.shape());
  const int64_t k = x.dim(1);
  stream.pool().parallel_for(x.dim(0), 1, [&](int64_t row_begin, int64_t row_end) {
    for (int64_t row = row_begin; row < row_end; ++row) {
      const float* from = x.row<float>(row);
      float* to = y.row<float>(row);
      for (int64_t begin = 0; begin < k; begin += kGroup) {
        const int64_t count = std::min(kGroup, k - begin);
        const float scale = group_scale(from + begin, count);
        for (int64_t i = begin; i < begin + count; ++i) to[i] = e4m3_to_f32(f32_to_e4m3(from[i] / scale)) * scale;
      }
    }
  });
}

}  // namespace moesaic
