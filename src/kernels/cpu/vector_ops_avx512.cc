// VectorOps with AVX-512: 16 lanes are one register.
#if defined(__x86_64__)

#if !defined(__clang__)  // GCC 12's own headers leave unused lanes undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/cpu/simd_target.h"
#include "kernels/cpu/vector_ops.h"
#include "tensor/dtype.h"

#define VEC_INLINE inline __attribute__((always_inline))
#if defined(__clang__)
#define VEC_UNROLL _Pragma("clang loop unroll(full)")
#else
#define VEC_UNROLL _Pragma("GCC unroll 16")
#endif

MOESAIC_TARGET_AVX512_BEGIN

namespace moesaic {
namespace {
namespace avx512 {

struct V {
  // 32 registers: enough sums in flight to hide the latency of two FMA units.
  static constexpr int kGemmRows = 12, kScoreHeads = 4, kScoreKeys = 4, kValueHeads = 8, kValueColumns = 2;
  using F = __m512;
  static constexpr int kRegisters = 1;
  using H = F;
  static VEC_INLINE F load(const float* p) { return _mm512_loadu_ps(p); }
  static VEC_INLINE void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static VEC_INLINE __mmask16 mask(int64_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static VEC_INLINE F load_partial(const float* p, int64_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static VEC_INLINE void store_partial(float* p, F a, int64_t n) { _mm512_mask_storeu_ps(p, mask(n), a); }
  static VEC_INLINE F set(float a) { return _mm512_set1_ps(a); }
  static VEC_INLINE F zero() { return _mm512_setzero_ps(); }
  static VEC_INLINE F add(F a, F b) { return _mm512_add_ps(a, b); }
  static VEC_INLINE F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static VEC_INLINE F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static VEC_INLINE F div(F a, F b) { return _mm512_div_ps(a, b); }
  static VEC_INLINE F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static VEC_INLINE F max(F a, F b) { return _mm512_maskz_max_ps(0xffff, a, b); }
  static VEC_INLINE F min(F a, F b) { return _mm512_maskz_min_ps(0xffff, a, b); }
  static VEC_INLINE F keep_not_less(F x, F bound, F value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, bound, _CMP_NLT_UQ), value);
  }
  static VEC_INLINE F pow2(F shifted) {
    const __m512i bits = _mm512_maskz_slli_epi32(0xffff, _mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(0x3f800000)));
  }
  static VEC_INLINE __m256 low(F a) { return _mm512_castps512_ps256(a); }
  static VEC_INLINE __m256 high(F a) {
    return _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xff, _mm512_castps_pd(a), 1));
  }
  static VEC_INLINE float sum(F a) {
    const __m256 v8 = _mm256_add_ps(low(a), high(a));
    const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_shuffle_ps(v2, v2, 1)));
  }
  static VEC_INLINE float highest(F a) {
    const __m256 v8 = _mm256_max_ps(low(a), high(a));
    const __m128 v4 = _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_max_ss(v2, _mm_shuffle_ps(v2, v2, 1)));
  }
  static VEC_INLINE H load_register(const float* p) { return load(p); }
  static VEC_INLINE void store_register(float* p, H a) { store(p, a); }
  static VEC_INLINE H set_register(float a) { return set(a); }
  // Stops the compiler from loading `a` again at every use.
  static VEC_INLINE H pin(H a) {
    asm("" : "+v"(a));
    return a;
  }
  static VEC_INLINE H zero_register() { return zero(); }
  static VEC_INLINE F join(const H* parts) { return parts[0]; }
  static VEC_INLINE float first(F a) { return _mm512_cvtss_f32(a); }
  static VEC_INLINE F widen(const uint16_t* p) {
    const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
  }
  // As f32_to_bf16.
  static VEC_INLINE void narrow(F a, uint16_t* p) {
    const __m512i bits = _mm512_castps_si512(a);
    const __m512i high = _mm512_maskz_srli_epi32(0xffff, bits, 16);
    const __m512i half = _mm512_add_epi32(_mm512_and_si512(high, _mm512_set1_epi32(1)), _mm512_set1_epi32(0x7fff));
    const __m512i rounded = _mm512_maskz_srli_epi32(0xffff, _mm512_add_epi32(bits, half), 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    const __m512i words = _mm512_mask_or_epi32(rounded, is_nan, high, _mm512_set1_epi32(0x40));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_maskz_cvtepi32_epi16(0xffff, words));
  }
  static VEC_INLINE uint32_t equal(F a, F b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
  static VEC_INLINE F rotate(F x, F turn) {
    const F swapped = _mm512_maskz_permute_ps(0xffff, x, 0xb1);
    const F by_cos = _mm512_mul_ps(x, _mm512_maskz_moveldup_ps(0xffff, turn));
    const F by_sin = _mm512_mul_ps(swapped, _mm512_maskz_movehdup_ps(0xffff, turn));
    return _mm512_mask_sub_ps(_mm512_add_ps(by_cos, by_sin), 0x5555, by_cos, by_sin);
  }
  // The exponent moves from bias 7 to 127. Codes below 8 are multiples of 2^-9, made without f32 subnormals.
  static VEC_INLINE F widen_e4m3(const uint8_t* p) {
    const __m512i codes = _mm512_maskz_cvtepu8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const __m512i magnitude = _mm512_and_epi32(codes, _mm512_set1_epi32(0x7f));
    const __m512i sign = _mm512_maskz_slli_epi32(0xffff, _mm512_and_epi32(codes, _mm512_set1_epi32(0x80)), 24);
    const __m512 small = _mm512_mul_ps(_mm512_maskz_cvtepi32_ps(0xffff, magnitude), _mm512_set1_ps(0x1.0p-9f));
    const __m512i large =
        _mm512_add_epi32(_mm512_maskz_slli_epi32(0xffff, magnitude, 20), _mm512_set1_epi32((127 - 7) << 23));
    const __mmask16 is_large = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(7));
    const __mmask16 is_nan = _mm512_cmpeq_epi32_mask(magnitude, _mm512_set1_epi32(0x7f));
    const __m512i value = _mm512_mask_mov_epi32(_mm512_castps_si512(small), is_large, large);
    const __m512i bits = _mm512_or_epi32(value, sign);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, is_nan, _mm512_set1_epi32(0x7fc00000)));
  }
};

#include "kernels/cpu/vector_ops.inc"

}  // namespace avx512
}  // namespace

MOESAIC_TARGET_END

const VectorOps kAvx512VectorOps = avx512::kOps;

}  // namespace moesaic

#endif
