#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "kernels/cuda/bench_kernels.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

__global__ void spin_kernel(int64_t cycles) {
  const int64_t begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

__global__ void clock_kernel(int64_t* clock) {
  uint32_t sm;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  if (sm != 0) return;
  int64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  clock[0] = clock64();
  clock[1] = nanoseconds;
}

__global__ void copy_kernel(uint4* to, const uint4* from, int64_t count) {
  constexpr int kInFlight = 4;
  const int64_t begin = int64_t{blockIdx.x} * blockDim.x * kInFlight + threadIdx.x;
  uint4 values[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    if (begin + i * blockDim.x < count) values[i] = from[begin + i * blockDim.x];
  }
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    if (begin + i * blockDim.x < count) to[begin + i * blockDim.x] = values[i];
  }
}

// SplitMix64 of (seed, i), the generator of base/rng.h.
__device__ float uniform(uint64_t seed, int64_t i, float scale) {
  uint64_t z = seed + (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return (static_cast<float>(z >> 40) * 0x1p-23f - 1.0f) * scale;
}

template <typename T>
__global__ void fill_kernel(T* data, int64_t count, float scale, uint64_t seed) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    data[i] = T(uniform(seed, i, scale));
  }
}

template <typename T>
void fill(cudaStream_t stream, T* data, int64_t count, float scale, uint64_t seed) {
  if (count == 0) return;
  fill_kernel<<<1024, 256, 0, stream>>>(data, count, scale, seed);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
}

}  // namespace

void spin(cudaStream_t stream, int64_t cycles) {
  spin_kernel<<<1, 1, 0, stream>>>(cycles);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
}

void read_clock(cudaStream_t stream, int64_t* clock) {
  constexpr int kBlocks = 1024;  // more than one for each multiprocessor
  clock_kernel<<<kBlocks, 1, 0, stream>>>(clock);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
}

void copy_by_kernel(cudaStream_t stream, void* to, const void* from, int64_t num_bytes) {
  constexpr int kThreads = 256;
  const int64_t count = num_bytes / 16, blocks = (count + kThreads * 4 - 1) / (kThreads * 4);
  copy_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(static_cast<uint4*>(to),
                                                                      static_cast<const uint4*>(from), count);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
}

void fill_random_f32(cudaStream_t stream, float* data, int64_t count, float scale, uint64_t seed) {
  fill(stream, data, count, scale, seed);
}

void fill_random_bf16(cudaStream_t stream, void* data, int64_t count, float scale, uint64_t seed) {
  fill(stream, static_cast<__nv_bfloat16*>(data), count, scale, seed);
}

void fill_random_e4m3(cudaStream_t stream, void* data, int64_t count, float scale, uint64_t seed) {
  fill(stream, static_cast<__nv_fp8_e4m3*>(data), count, scale, seed);
}

}  // namespace moesaic::cuda
