// Launches that only benchmarks need. Internal to bench_util.cc.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace moesaic::cuda {

// One thread counts `cycles` of its multiprocessor's clock: cycles over time is the clock under load.
void spin(cudaStream_t stream, int64_t cycles);
// clock[0] = the cycles that multiprocessor 0 has counted, clock[1] = nanoseconds: two readings give its clock between.
void read_clock(cudaStream_t stream, int64_t* clock);
// Copies between 16-byte aligned buffers by ordinary loads and stores; num_bytes is a multiple of 16.
void copy_by_kernel(cudaStream_t stream, void* to, const void* from, int64_t num_bytes);
// data[i] = uniform in [-scale, scale], a function of (seed, i).
void fill_random_f32(cudaStream_t stream, float* data, int64_t count, float scale, uint64_t seed);
void fill_random_bf16(cudaStream_t stream, void* data, int64_t count, float scale, uint64_t seed);
void fill_random_e4m3(cudaStream_t stream, void* data, int64_t count, float scale, uint64_t seed);

}  // namespace moesaic::cuda
