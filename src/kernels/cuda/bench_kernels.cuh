// Launches that only benchmarks need. Internal to bench_util.cc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace moesaic::cuda {

// One thread counts `cycles` of its multiprocessor's clock: cycles over time is the clock under load.
void spin(cudaStream_t stream, int64_t cycles);
// data[i] = uniform in [-scale, scale], a function of (seed, i).
void fill_random_f32(cudaStream_t stream, float* data, int64_t count, float scale, uint64_t seed);
void fill_random_bf16(cudaStream_t stream, void* data, int64_t count, float scale, uint64_t seed);
void fill_random_e4m3(cudaStream_t stream, void* data, int64_t count, float scale, uint64_t seed);

}  // namespace moesaic::cuda
