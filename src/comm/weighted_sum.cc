#include "comm/weighted_sum.h"

#include <cstring>

namespace moesaic {
namespace {

using Vec = float __attribute__((vector_size(32)));
constexpr int64_t kVec = 8;

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

}  // namespace

void weighted_sum(const float* const* rows, const float* weights, int num_rows, int64_t hidden, float* y) {
#if defined(__x86_64__)
  if (kHasAvx2) return weighted_sum_avx2(rows, weights, num_rows, hidden, y);
#endif
  weighted_sum_plain(rows, weights, num_rows, hidden, y);
}

}  // namespace moesaic
