#include "comm/row_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tensor/dtype.h"

namespace moesaic {
namespace {

using Vec = float __attribute__((vector_size(32)));
constexpr int64_t kVec = 8;
constexpr int64_t kScaleGroup = 128;

// Multiply and add stay separate (no FMA): every build and every CPU gives the same bits.
__attribute__((always_inline)) inline void weighted_sum_body(const float* const* rows, const float* weights,
                                                             int num_rows, int64_t hidden, float* y) {
  constexpr int kUnroll = 4;
  int64_t i = 0;
  for (; i + kUnroll * kVec <= hidden; i += kUnroll * kVec) {
    Vec sum[kUnroll] = {};
    for (int k = 0; k < num_rows; ++k) {
      for (int u = 0; u < kUnroll; ++u) {
        Vec row;
        std::memcpy(&row, rows[k] + i + u * kVec, sizeof row);
        sum[u] += row * weights[k];
      }
    }
    std::memcpy(y + i, sum, sizeof sum);
  }
  for (; i < hidden; ++i) {
    float sum = 0.0f;
    for (int k = 0; k < num_rows; ++k) sum += rows[k][i] * weights[k];
    y[i] = sum;
  }
}

void weighted_sum_plain(const float* const* rows, const float* weights, int num_rows, int64_t hidden, float* y) {
  weighted_sum_body(rows, weights, num_rows, hidden, y);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) void weighted_sum_avx2(const float* const* rows, const float* weights, int num_rows,
                                                       int64_t hidden, float* y) {
  weighted_sum_body(rows, weights, num_rows, hidden, y);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2");
#endif

std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table;
  for (int code = 0; code < 256; ++code) table[code] = e4m3_to_f32(static_cast<uint8_t>(code));
  return table;
}
const std::array<float, 256> kE4M3Table = make_e4m3_table();

}  // namespace

void weighted_sum(const float* const* rows, const float* weights, int num_rows, int64_t hidden, float* y) {
#if defined(__x86_64__)
  if (kHasAvx2) return weighted_sum_avx2(rows, weights, num_rows, hidden, y);
#endif
  weighted_sum_plain(rows, weights, num_rows, hidden, y);
}

void quantize_row(const float* x, int64_t hidden, uint8_t* q, float* scales) {
  for (int64_t begin = 0; begin < hidden; begin += kScaleGroup) {
    const int64_t end = std::min(hidden, begin + kScaleGroup);
    float amax = 1e-4f;
    for (int64_t i = begin; i < end; ++i) amax = std::max(amax, std::fabs(x[i]));
    const float scale = amax / kE4M3Max;
    for (int64_t i = begin; i < end; ++i) q[i] = f32_to_e4m3(x[i] / scale);
    scales[begin / kScaleGroup] = scale;
  }
}

void dequantize_row(const uint8_t* q, const float* scales, int64_t hidden, float* y) {
  for (int64_t begin = 0; begin < hidden; begin += kScaleGroup) {
    const float scale = scales[begin / kScaleGroup];
    const int64_t end = std::min(hidden, begin + kScaleGroup);
    for (int64_t i = begin; i < end; ++i) y[i] = kE4M3Table[q[i]] * scale;
  }
}

}  // namespace moesaic
