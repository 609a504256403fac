#include "kernels/cpu/quantize_rows.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/simd_target.h"
#include "tensor/dtype.h"

MOESAIC_TARGET_AVX2_BEGIN

namespace moesaic {
namespace {

constexpr int64_t kLanes = 8;
constexpr float kAmaxFloor = 1e-4f;

__m256 magnitude_mask() {
  return _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
}

// max(v, amax) keeps amax where v is NaN.
float group_scale(const float* x, int64_t count) {
  __m256 amax = _mm256_set1_ps(kAmaxFloor);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    amax = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(x + i), magnitude_mask()), amax);
  }
  alignas(32) float lanes[kLanes];
  _mm256_store_ps(lanes, amax);
  float result = lanes[0];
  for (int64_t lane = 1; lane < kLanes; ++lane) result = lanes[lane] > result ? lanes[lane] : result;
  for (; i < count; ++i) {
    const float v = __builtin_fabsf(x[i]);
    if (v > result) result = v;
  }
  return result / kE4M3Max;
}

struct Rounded {
  __m256i normal;     // magnitude bits rounded to 3 bits of fraction
  __m256i subnormal;  // in its low bits the multiple of 2^-9 nearest to the magnitude
  __m256 is_subnormal;
  __m256 is_nan;
  __m256 sign;
};

// To nearest even, saturating at 448. Below 2^-6 the codes are multiples of 2^-9: adding 2^14 rounds there.
Rounded round_e4m3(__m256 v) {
  Rounded r;
  r.sign = _mm256_andnot_ps(magnitude_mask(), v);
  r.is_nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  const __m256 magnitude = _mm256_min_ps(_mm256_and_ps(v, magnitude_mask()), _mm256_set1_ps(kE4M3Max));
  const __m256i bits = _mm256_castps_si256(magnitude);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 20), _mm256_set1_epi32(1));
  r.normal = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7ffff)));
  r.subnormal = _mm256_castps_si256(_mm256_add_ps(magnitude, _mm256_set1_ps(0x1.0p14f)));
  r.is_subnormal = _mm256_cmp_ps(magnitude, _mm256_set1_ps(0x1.0p-6f), _CMP_LT_OQ);
  return r;
}

__m256 rounded_value(const Rounded& r) {
  const __m256 normal = _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_set1_epi32(0xfffff), r.normal));
  const __m256 subnormal = _mm256_sub_ps(_mm256_castsi256_ps(r.subnormal), _mm256_set1_ps(0x1.0p14f));
  const __m256 value = _mm256_or_ps(_mm256_blendv_ps(normal, subnormal, r.is_subnormal), r.sign);
  return _mm256_blendv_ps(value, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), r.is_nan);
}

// One code per 32-bit lane.
__m256i rounded_code(const Rounded& r) {
  const __m256i normal = _mm256_sub_epi32(_mm256_srli_epi32(r.normal, 20), _mm256_set1_epi32((127 - 7) << 3));
  const __m256i subnormal = _mm256_and_si256(r.subnormal, _mm256_set1_epi32(0xf));
  const __m256i code = _mm256_blendv_epi8(normal, subnormal, _mm256_castps_si256(r.is_subnormal));
  const __m256i with_sign = _mm256_or_si256(code, _mm256_srli_epi32(_mm256_castps_si256(r.sign), 24));
  return _mm256_blendv_epi8(with_sign, _mm256_set1_epi32(0x7f), _mm256_castps_si256(r.is_nan));
}

void store_codes(__m256i codes, uint8_t* q) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(q), _mm_packus_epi16(words, words));
}

}  // namespace

float quantize_group_avx2(const float* x, int64_t count, uint8_t* q) {
  const float scale = group_scale(x, count);
  const __m256 divisor = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store_codes(rounded_code(round_e4m3(_mm256_div_ps(_mm256_loadu_ps(x + i), divisor))), q + i);
  }
  for (; i < count; ++i) q[i] = f32_to_e4m3(x[i] / scale);
  return scale;
}

void dequantize_group_avx2(const uint8_t* q, float scale, int64_t count, float* y) {
  const __m256 factor = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(q + i)));
    const __m256i magnitude = _mm256_and_si256(codes, _mm256_set1_epi32(0x7f));
    const __m256i sign = _mm256_slli_epi32(_mm256_and_si256(codes, _mm256_set1_epi32(0x80)), 24);
    // Subnormals are multiples of 2^-9; never as f32 subnormals, which some CPUs multiply slowly.
    const __m256 subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(0x1.0p-9f));
    const __m256 normal =
        _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32(magnitude, 20), _mm256_set1_epi32((127 - 7) << 23)));
    const __m256 is_normal = _mm256_castsi256_ps(_mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(7)));
    const __m256 value = _mm256_or_ps(_mm256_blendv_ps(subnormal, normal, is_normal), _mm256_castsi256_ps(sign));
    const __m256i is_nan = _mm256_cmpeq_epi32(magnitude, _mm256_set1_epi32(0x7f));
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_blendv_ps(value, nan, _mm256_castsi256_ps(is_nan)), factor));
  }
  for (; i < count; ++i) y[i] = e4m3_to_f32(q[i]) * scale;
}

void round_trip_group_avx2(const float* x, int64_t count, float* y) {
  const float scale = group_scale(x, count);
  const __m256 factor = _mm256_set1_ps(scale);
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const __m256 value = rounded_value(round_e4m3(_mm256_div_ps(_mm256_loadu_ps(x + i), factor)));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(value, factor));
  }
  for (; i < count; ++i) y[i] = e4m3_to_f32(f32_to_e4m3(x[i] / scale)) * scale;
}

}  // namespace moesaic

MOESAIC_TARGET_END

#endif
