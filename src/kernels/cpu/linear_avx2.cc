#include "kernels/cpu/linear_kernels.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_target.h"

MOESAIC_TARGET_AVX2_BEGIN
#include "kernels/cpu/linear_simd.h"

namespace moesaic {
namespace {

struct Avx2 {
  using Reg = __m256;
  static constexpr int64_t kLanes = 8;
  static constexpr int kPanels = 1;
  static constexpr int kTileRows = 6;  // 12 accumulators, 2 weights, 1 activation of 16 registers
  static constexpr int kDirectRows = 6;
  static constexpr int kMaxAccumulators = 8;
  static constexpr int64_t kMaxDirectRows = 12;  // measured on Zen 3

  static MOESAIC_INLINE Reg zero() { return _mm256_setzero_ps(); }
  static MOESAIC_INLINE Reg broadcast(const float* p) { return _mm256_broadcast_ss(p); }
  static MOESAIC_INLINE Reg load(const float* p) { return _mm256_load_ps(p); }
  static MOESAIC_INLINE Reg loadu(const float* p) { return _mm256_loadu_ps(p); }
  static MOESAIC_INLINE void store(float* p, Reg v) { _mm256_store_ps(p, v); }
  static MOESAIC_INLINE Reg load_cols(const float* p) { return _mm256_loadu_ps(p); }
  static MOESAIC_INLINE void store_cols(float* p, Reg v) { _mm256_storeu_ps(p, v); }
  static MOESAIC_INLINE Reg fma(Reg a, Reg b, Reg c) { return _mm256_fmadd_ps(a, b, c); }
  static MOESAIC_INLINE Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
  static MOESAIC_INLINE Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }

  // 16 columns of one k, 8 a register. seeeemmm as the bf16 s0000eeeemmm0000 is the value times 2^-120, subnormals too.
  template <DType kDType>
  static MOESAIC_INLINE void decode(const char* row, const char*, int half, Reg* w) {
    if constexpr (kDType == DType::kF32) {
      w[0] = _mm256_load_ps(reinterpret_cast<const float*>(row) + half * 16);
      w[1] = _mm256_load_ps(reinterpret_cast<const float*>(row) + half * 16 + 8);
      return;
    }
    __m256i words;
    if constexpr (kDType == DType::kBF16) {
      words = _mm256_load_si256(reinterpret_cast<const __m256i*>(row) + half);
    } else {
      words = _mm256_load_si256(reinterpret_cast<const __m256i*>(row));
      if (half == 0) words = _mm256_slli_epi16(words, 8);
      words = _mm256_and_si256(_mm256_srai_epi16(words, 4), _mm256_set1_epi16(static_cast<int16_t>(0x87f0)));
    }
    w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
    w[1] = _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u))));
  }
};

}  // namespace

void linear_panels_avx2(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
  linear_panels_simd<Avx2>(args, panel_begin, panel_end);
}

}  // namespace moesaic

MOESAIC_TARGET_END

#endif
