#include <algorithm>

#include "base/clock.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops_bench.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/cpu/simd_target.h"

namespace moesaic {
namespace {

constexpr int64_t kRounds = 20000;
constexpr int kChains = 12;  // covers latency 4 x 2 units, and fits 16 registers

// Each returns a value that depends on every FMA, and the floating-point operations of one call.
struct Loop {
  float (*run)();
  double flops;
};

float plain_loop() {
  float acc[kChains] = {};
  for (int64_t i = 0; i < kRounds; ++i) {
    for (float& a : acc) a = a * 0.999f + 0.001f;
  }
  float sum = 0;
  for (const float a : acc) sum += a;
  return sum;
}

#if defined(__x86_64__)
MOESAIC_TARGET_AVX2_BEGIN
float avx2_loop() {
  const __m256 b = _mm256_set1_ps(0.999f), c = _mm256_set1_ps(0.001f);
  __m256 acc[kChains];
  for (auto& a : acc) a = c;
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) acc[j] = _mm256_fmadd_ps(acc[j], b, c);
  }
  for (int j = 1; j < kChains; ++j) acc[0] = _mm256_add_ps(acc[0], acc[j]);
  return _mm256_cvtss_f32(acc[0]);
}
MOESAIC_TARGET_END

MOESAIC_TARGET_AVX512_BEGIN
float avx512_loop() {
  const __m512 b = _mm512_set1_ps(0.999f), c = _mm512_set1_ps(0.001f);
  __m512 acc[kChains];
  for (auto& a : acc) a = c;
  for (int64_t i = 0; i < kRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_fmadd_ps(acc[j], b, c);
  }
  for (int j = 1; j < kChains; ++j) acc[0] = _mm512_add_ps(acc[0], acc[j]);
  return _mm512_cvtss_f32(acc[0]);
}
MOESAIC_TARGET_END
#endif

Loop peak_loop() {
#if defined(__x86_64__)
  if (active_isa() == Isa::kAvx512 || active_isa() == Isa::kAmx) return {avx512_loop, 2.0 * 16 * kChains * kRounds};
  if (active_isa() == Isa::kAvx2) return {avx2_loop, 2.0 * 8 * kChains * kRounds};
#endif
  return {plain_loop, 2.0 * kChains * kRounds};
}

}  // namespace

double measure_fma_peak_gflops(double seconds) {
  const Loop loop = peak_loop();
  const Clock& clock = real_clock();
  const int64_t stop = clock.now_ns() + static_cast<int64_t>(seconds * 1e9);
  volatile float sink = 0;
  double best = 0;
  for (int64_t begin = clock.now_ns(); begin < stop;) {
    sink = loop.run();
    const int64_t end = clock.now_ns();
    best = std::max(best, loop.flops / static_cast<double>(std::max<int64_t>(end - begin, 1)));
    begin = end;
  }
  (void)sink;
  return best;
}

}  // namespace moesaic
