// FP8 latents as operands of f16 products. e4m3 to f16 is exact, one instruction for two. f16 has a narrow range, so
// the scales of a block of 64 keys are taken relative to a power of two, 2^exponent, just below the largest of them:
// what is rounded, to 11 bits, is at most 2^-25 of the block's largest latent off. The exponent goes into the softmax:
// with rows' maxima M of x = logit + exponent, P' = exp2(x - M) is P times 2^exponent, the numerator P' V 2^-exponent
// is right, and the denominator adds up P' 2^-exponent.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/mla/decode_kernels.h"
#include "kernels/cuda/ptx.cuh"

namespace moesaic::cuda {

// Bytes 0 and 1, or 2 and 3, as two f16.
__device__ __forceinline__ uint32_t low_e4m3_to_f16(uint32_t bytes) {
  uint32_t result;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}\n"
      : "=r"(result)
      : "r"(bytes));
  return result;
}
__device__ __forceinline__ uint32_t high_e4m3_to_f16(uint32_t bytes) {
  uint32_t result;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}\n"
      : "=r"(result)
      : "r"(bytes));
  return result;
}

// (lo, hi) as two f16, rounded to nearest even.
__device__ __forceinline__ uint32_t pack_f16(float lo, float hi) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}
__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
// Of two bf16.
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(product) : "r"(a), "r"(b));
  return product;
}

// The bits of the largest of four scales' magnitudes; the scales of keys that do not exist may be anything.
__device__ __forceinline__ uint32_t largest_scale(const float4& scales, bool exists) {
  const float largest = fmaxf(fmaxf(fabsf(scales.x), fabsf(scales.y)), fmaxf(fabsf(scales.z), fabsf(scales.w)));
  return exists ? __float_as_uint(largest) : 0;
}

// Of a block whose largest scale has these bits: exponent, at least -60, so that sums of P' 2^-exponent stay finite,
// and at most 126 (the scale may be infinity or NaN), power (2^exponent) and inverse (2^-exponent). Where latents are
// not FP8, the exponent is 0.
struct LatentUnit {
  float exponent = 0.0f, power = 1.0f, inverse = 1.0f;
};
__device__ __forceinline__ LatentUnit latent_unit(uint32_t largest) {
  const uint32_t biased = min(max(largest >> 23, 67u), 253u);
  return {static_cast<float>(static_cast<int>(biased) - 127), __uint_as_float(biased << 23),
          __uint_as_float((254 - biased) << 23)};
}

}  // namespace moesaic::cuda
