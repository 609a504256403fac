#include <algorithm>
#include <cmath>

#include "kernels/cpu/quantize_rows.h"
#include "tensor/dtype.h"

namespace moesaic {
namespace {

constexpr float kAmaxFloor = 1e-4f;

float group_scale(const float* x, int64_t count) {
  float amax = kAmaxFloor;
  for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax / kE4M3Max;
}

}  // namespace

float quantize_group_plain(const float* x, int64_t count, uint8_t* q) {
  const float scale = group_scale(x, count);
  for (int64_t i = 0; i < count; ++i) q[i] = f32_to_e4m3(x[i] / scale);
  return scale;
}

void dequantize_group_plain(const uint8_t* q, float scale, int64_t count, float* y) {
  for (int64_t i = 0; i < count; ++i) y[i] = e4m3_to_f32(q[i]) * scale;
}

void round_trip_group_plain(const float* x, int64_t count, float* y) {
  const float scale = group_scale(x, count);
  for (int64_t i = 0; i < count; ++i) y[i] = e4m3_to_f32(f32_to_e4m3(x[i] / scale)) * scale;
}

}  // namespace moesaic
