// VectorOps with AVX2 and FMA: 16 lanes are two registers.
#if defined(__x86_64__)

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

MOESAIC_TARGET_AVX2_BEGIN

namespace moesaic {
namespace {
namespace avx2 {

// Lanes below n: kMask + 16 - n.
alignas(64) constexpr int32_t kMask[32] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

struct V {
  // 16 registers: twelve sums, and what they take in.
  static constexpr int kGemmRows = 6, kScoreHeads = 2, kScoreKeys = 3, kValueHeads = 4, kValueColumns = 3;
  struct F {
    __m256 lo, hi;
  };
  static constexpr int kRegisters = 2;
  using H = __m256;
  static VEC_INLINE F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static VEC_INLINE void store(float* p, F a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static VEC_INLINE __m256i mask(int64_t n, int64_t lane) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + 16 - n + lane));
  }
  static VEC_INLINE F load_partial(const float* p, int64_t n) {
    return {_mm256_maskload_ps(p, mask(n, 0)), _mm256_maskload_ps(p + 8, mask(n, 8))};
  }
  static VEC_INLINE void store_partial(float* p, F a, int64_t n) {
    _mm256_maskstore_ps(p, mask(n, 0), a.lo);
    _mm256_maskstore_ps(p + 8, mask(n, 8), a.hi);
  }
  static VEC_INLINE F set(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
  static VEC_INLINE F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static VEC_INLINE F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static VEC_INLINE F sub(F a, F b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
  static VEC_INLINE F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static VEC_INLINE F div(F a, F b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
  static VEC_INLINE F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static VEC_INLINE F max(F a, F b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
  static VEC_INLINE F min(F a, F b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
  static VEC_INLINE F keep_not_less(F x, F bound, F value) {
    return {_mm256_and_ps(_mm256_cmp_ps(x.lo, bound.lo, _CMP_NLT_UQ), value.lo),
            _mm256_and_ps(_mm256_cmp_ps(x.hi, bound.hi, _CMP_NLT_UQ), value.hi)};
  }
  static VEC_INLINE __m256 pow2_half(__m256 shifted) {
    const __m256i bits = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(0x3f800000)));
  }
  static VEC_INLINE F pow2(F shifted) { return {pow2_half(shifted.lo), pow2_half(shifted.hi)}; }
  static VEC_INLINE float sum(F a) {
    const __m256 v8 = _mm256_add_ps(a.lo, a.hi);
    const __m128 v4 = _mm_add_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_add_ss(v2, _mm_shuffle_ps(v2, v2, 1)));
  }
  static VEC_INLINE float highest(F a) {
    const __m256 v8 = _mm256_max_ps(a.lo, a.hi);
    const __m128 v4 = _mm_max_ps(_mm256_castps256_ps128(v8), _mm256_extractf128_ps(v8, 1));
    const __m128 v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
    return _mm_cvtss_f32(_mm_max_ss(v2, _mm_shuffle_ps(v2, v2, 1)));
  }
  static VEC_INLINE H load_register(const float* p) { return _mm256_loadu_ps(p); }
  static VEC_INLINE void store_register(float* p, H a) { _mm256_storeu_ps(p, a); }
  static VEC_INLINE H set_register(float a) { return _mm256_set1_ps(a); }
  // Stops the compiler from loading `a` again at every use.
  static VEC_INLINE H pin(H a) {
    asm("" : "+x"(a));
    return a;
  }
  static VEC_INLINE H zero_register() { return _mm256_setzero_ps(); }
  static VEC_INLINE H fma(H a, H b, H c) { return _mm256_fmadd_ps(a, b, c); }
  static VEC_INLINE F join(const H* parts) { return {parts[0], parts[1]}; }
  static VEC_INLINE float first(F a) { return _mm256_cvtss_f32(a.lo); }
  static VEC_INLINE __m256 widen_half(const uint16_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
  static VEC_INLINE F widen(const uint16_t* p) { return {widen_half(p), widen_half(p + 8)}; }
  // As f32_to_bf16.
  static VEC_INLINE __m256i narrow_half(__m256 a) {
    const __m256i bits = _mm256_castps_si256(a), high = _mm256_srli_epi32(bits, 16);
    const __m256i half = _mm256_add_epi32(_mm256_and_si256(high, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
    const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, half), 16);
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)));
  }
  static VEC_INLINE void narrow(F a, uint16_t* p) {
    const __m256i words = _mm256_packus_epi32(narrow_half(a.lo), narrow_half(a.hi));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
  }
  static VEC_INLINE uint32_t equal(F a, F b) {
    return _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ)) |
           _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ)) << 8;
  }
  static VEC_INLINE __m256 rotate_half(__m256 x, __m256 turn) {
    const __m256 by_sin = _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), _mm256_movehdup_ps(turn));
    return _mm256_addsub_ps(_mm256_mul_ps(x, _mm256_moveldup_ps(turn)), by_sin);
  }
  static VEC_INLINE F rotate(F x, F turn) { return {rotate_half(x.lo, turn.lo), rotate_half(x.hi, turn.hi)}; }
  // The exponent moves from bias 7 to 127. Codes below 8 are multiples of 2^-9, made without f32 subnormals.
  static VEC_INLINE __m256 widen_e4m3_half(const uint8_t* p) {
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)), 24);
    const __m256 small = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1.0p-9f));
    const __m256i large = _mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32((127 - 7) << 23));
    const __m256i is_large = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(7));
    const __m256 value = _mm256_blendv_ps(small, _mm256_castsi256_ps(large), _mm256_castsi256_ps(is_large));
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    const __m256i bits = _mm256_or_si256(_mm256_castps_si256(value), sign);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), is_nan));
  }
  static VEC_INLINE F widen_e4m3(const uint8_t* p) { return {widen_e4m3_half(p), widen_e4m3_half(p + 8)}; }
};

#include "kernels/cpu/vector_ops.inc"

}  // namespace avx2
}  // namespace

MOESAIC_TARGET_END

const VectorOps kAvx2VectorOps = avx2::kOps;

}  // namespace moesaic

#endif
