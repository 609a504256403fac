#include "kernels/cpu/linear_kernels.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12 warns of its own undefined-vector intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/simd_target.h"

MOESAIC_TARGET_AVX512_BEGIN
#include "kernels/cpu/linear_simd.h"

namespace moesaic {
namespace {

// Lanes 0-7 hold columns of one panel, lanes 8-15 the same columns of the next.
struct Avx512 {
  using Reg = __m512;
  static constexpr int64_t kLanes = 16;
  static constexpr int kPanels = 2;
  static constexpr int kTileRows = 12;  // 24 accumulators and 2 weights of 32 registers; activations broadcast in place
  static constexpr int kDirectRows = 6;
  static constexpr int kMaxAccumulators = 24;
  static constexpr int64_t kMaxDirectRows = 12;

  static MOESAIC_INLINE Reg zero() { return _mm512_setzero_ps(); }
  static MOESAIC_INLINE Reg broadcast(const float* p) { return _mm512_set1_ps(*p); }
  static MOESAIC_INLINE Reg load(const float* p) { return _mm512_load_ps(p); }
  static MOESAIC_INLINE Reg loadu(const float* p) { return _mm512_loadu_ps(p); }
  static MOESAIC_INLINE void store(float* p, Reg v) { _mm512_store_ps(p, v); }
  static MOESAIC_INLINE Reg load_cols(const float* p) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm256_loadu_ps(p)), _mm256_loadu_ps(p + 32), 1);
  }
  static MOESAIC_INLINE void store_cols(float* p, Reg v) {
    _mm256_storeu_ps(p, _mm512_castps512_ps256(v));
    _mm256_storeu_ps(p + 32, _mm512_extractf32x8_ps(v, 1));
  }
  static MOESAIC_INLINE Reg fma(Reg a, Reg b, Reg c) { return _mm512_fmadd_ps(a, b, c); }
  static MOESAIC_INLINE Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
  static MOESAIC_INLINE Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }

  static MOESAIC_INLINE __m512i load_pair(const char* first, const char* second, int index) {
    const __m256i low = _mm256_load_si256(reinterpret_cast<const __m256i*>(first) + index);
    const __m256i high = _mm256_load_si256(reinterpret_cast<const __m256i*>(second) + index);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
  }

  // As in linear_avx2.cc, 16 columns of each panel.
  template <DType kDType>
  static MOESAIC_INLINE void decode(const char* first, const char* second, int half, Reg* w) {
    if constexpr (kDType == DType::kF32) {
      w[0] = _mm512_castsi512_ps(load_pair(first, second, half * 2));
      w[1] = _mm512_castsi512_ps(load_pair(first, second, half * 2 + 1));
      return;
    }
    __m512i words;
    if constexpr (kDType == DType::kBF16) {
      words = load_pair(first, second, half);
    } else {
      words = load_pair(first, second, 0);
      if (half == 0) words = _mm512_slli_epi16(words, 8);
      words = _mm512_and_si512(_mm512_srai_epi16(words, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87f0)));
    }
    w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
    w[1] = _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u))));
  }
};

}  // namespace

void linear_panels_avx512(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
  linear_panels_simd<Avx512>(args, panel_begin, panel_end);
}

}  // namespace moesaic

MOESAIC_TARGET_END

#endif
