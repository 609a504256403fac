// Device code that the kernels of this folder share: 16-byte vectors of bf16, quantisation of groups of 128 channels by
// half warps, reductions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/scales.h"

namespace moesaic::cuda {

using Bf16 = __nv_bfloat16;

inline constexpr int kVec = 8;                             // bf16 elements of a 16-byte access
inline constexpr int kLanesPerGroup = kScaleGroup / kVec;  // threads that hold one scale group
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kE4M3Largest = 448.0f;
inline constexpr float kAmaxFloor = 1e-4f;  // as kernels/cpu/quantize_plain.cc

// Eight bf16 values, packed.
__device__ inline uint4 load_vec(const Bf16* p) {
  return *reinterpret_cast<const uint4*>(p);
}
// The same, staying where it stands: the compiler, to save registers, would move loads down to their uses, one after
// the other. Not `nc`: with chained launches the data may be written while the kernel waits to begin.
__device__ inline uint4 stream_vec(const Bf16* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ inline void store_vec(Bf16* p, uint4 v) {
  *reinterpret_cast<uint4*>(p) = v;
}

__device__ inline void unpack(uint4 v, float (&x)[kVec]) {
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

// Rounds to nearest even.
__device__ inline uint4 pack(const float (&x)[kVec]) {
  uint32_t words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
    words[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  return {words[0], words[1], words[2], words[3]};
}

__device__ inline float max_abs(const float (&x)[kVec]) {
  float most = fabsf(x[0]);
#pragma unroll
  for (int i = 1; i < kVec; ++i) most = fmaxf(most, fabsf(x[i]));
  return most;
}

// The largest value of the lanes that hold one scale group. All lanes of the warp call it.
template <int kLanes = kLanesPerGroup>
__device__ inline float group_max(float value) {
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lane));
  return value;
}

// max(amax, floor) / 448 and e4m3(x / scale) with the bits of the divisions: the remainder corrects the product with
// the reciprocal (Markstein, "Computation of elementary functions on the IBM RISC System/6000", 1990). Signs are such
// that -0 stays -0.
__device__ inline float scale_of(float amax) {
  constexpr float kInverse = 1.0f / kE4M3Largest;
  const float x = fmaxf(amax, kAmaxFloor), scale = x * kInverse;
  return fmaf(-fmaf(scale, kE4M3Largest, -x), kInverse, scale);
}

__device__ inline float approx_rcp(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x, to rounding.
__device__ inline float reciprocal(float x) {
  const float rough = approx_rcp(x);
  return fmaf(rough, fmaf(-x, rough, 1.0f), rough);
}

__device__ inline uint2 to_e4m3(const float (&x)[kVec]) {
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    pairs[i] = __nv_cvt_float2_to_fp8x2(float2{x[2 * i], x[2 * i + 1]}, __NV_SATFINITE, __NV_E4M3);
  }
  return {pairs[0] | pairs[1] << 16, pairs[2] | pairs[3] << 16};
}

// Without kExact the remainder is not looked at: for values that are themselves rounded otherwise than the CPU's.
template <bool kExact>
__device__ inline uint2 quantize_vec(const float (&x)[kVec], float scale) {
  const float inverse = reciprocal(scale);
  float q[kVec];
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    q[i] = x[i] * inverse;
    if constexpr (kExact) q[i] = fmaf(-fmaf(q[i], scale, -x[i]), inverse, q[i]);
  }
  return to_e4m3(q);
}

// 1 / (1 + e^-x), to about 1e-6.
__device__ inline float approx_sigmoid(float x) {
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -1.44269504f));
  return approx_rcp(1.0f + e);
}

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(kAllLanes, value, lane);
  return value;
}

// Sum over the block, the same order in every run; `scratch` has a place a warp. One barrier before it may be reused.
__device__ inline float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_warps = blockDim.x / 32;
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < num_warps ? scratch[lane] : 0.0f);
}

// How each of m rows of n channels is spread over a block: vectors a thread, threads. With many rows few threads with
// several loads in flight are fastest, as small blocks overlap one's arithmetic with another's loads; with few rows
// time is latency, so that many threads do little each.
struct RowSplit {
  static constexpr int kMaxThreads = 512;
  static constexpr int64_t kMaxChannels = 4 * kMaxThreads * kVec;
  static constexpr int64_t kManyRows = 1024;
  RowSplit(int64_t m, int64_t n, int most_vecs = 4) {
    const int64_t count = (n + kVec - 1) / kVec;
    if (m >= kManyRows) {
      while (vecs < most_vecs && count % (vecs * 64) == 0 && count / (vecs * 2) >= 64) vecs *= 2;
    }
    while (count > int64_t{vecs} * kMaxThreads) vecs *= 2;
    threads = static_cast<unsigned>((count + vecs * 32 - 1) / (vecs * 32) * 32);
  }
  int vecs = 1;
  unsigned threads = 0;
};

}  // namespace moesaic::cuda
