// Merges the partial results of split sequences: out = sum_i w_i o_i with w_i = 2^(lse_i - max) / sum. In order of the
// slots, that is of position, in one or four runs that are added last: the same bits
// every time.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/mla/decode_kernels.h"
#include "kernels/cuda/ptx.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kRunThreads = 128;  // a thread has 4 of the 512 columns
constexpr int kAhead = 4;
constexpr int kMaxSlots = 256;  // of one sequence

template <int kRuns>
__device__ __forceinline__ void merge_row(const DecodeParams& params, const DecodeMerge& merge, int row, int run,
                                          int thread, float* weights, float4 (*runs)[kRunThreads]) {
  const int begin = merge.num_slots * run / kRuns, end = merge.num_slots * (run + 1) / kRuns;
  const int64_t first = int64_t{merge.slot_begin} * params.partial_rows + row;
  const float4* from = reinterpret_cast<const float4*>(params.partial_o + first * 512) + thread;
  const int64_t stride = int64_t{params.partial_rows} * 128;
  // The first loads fly while the weights are made.
  float4 ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (begin + i < end) ahead[i] = from[(begin + i) * stride];
  }
  if (threadIdx.x < 32) {
    float max = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < merge.num_slots; i += 32) {
      weights[i] = params.partial_lse[first + int64_t{i} * params.partial_rows];
      max = fmaxf(max, weights[i]);
    }
    for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, step));
    if (max == -INFINITY) max = 0.0f;  // no key at all: zeros
    for (int i = threadIdx.x; i < merge.num_slots; i += 32) sum += weights[i] = exp2f(weights[i] - max);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffff, sum, step);
    const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    for (int i = threadIdx.x; i < merge.num_slots; i += 32) weights[i] *= factor;
  }
  __syncthreads();

  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  const auto add = [&](const float4& value, float weight) {
    sum.x = fmaf(weight, value.x, sum.x);
    sum.y = fmaf(weight, value.y, sum.y);
    sum.z = fmaf(weight, value.z, sum.z);
    sum.w = fmaf(weight, value.w, sum.w);
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    if (begin + i < end) add(ahead[i], weights[begin + i]);
  }
#pragma unroll 8
  for (int i = begin + kAhead; i < end; ++i) add(from[i * stride], weights[i]);
  if (kRuns > 1) {
    if (run > 0) runs[run - 1][thread] = sum;
    __syncthreads();
    if (run > 0) return;
  }
  for (int i = 0; i < kRuns - 1; ++i) {
    sum.x += runs[i][thread].x;
    sum.y += runs[i][thread].y;
    sum.z += runs[i][thread].z;
    sum.w += runs[i][thread].w;
  }
  uint2* out = reinterpret_cast<uint2*>(static_cast<uint16_t*>(params.out) +
                                        (int64_t{merge.q_begin} * params.num_heads + row) * 512);
  out[thread] = make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w));
}

// A thread block merges rows blockIdx.x, blockIdx.x + gridDim.x ...; the rows of all split sequences in turn.
template <int kRuns>
__global__ void __launch_bounds__(kRuns* kRunThreads)
    decode_merge_kernel(const __grid_constant__ DecodeParams params, int max_merges) {
  __shared__ float weights[kMaxSlots];
  __shared__ float4 runs[kRuns][kRunThreads];
  const int run = threadIdx.x / kRunThreads, thread = threadIdx.x % kRunThreads;
  int index = blockIdx.x;
  DecodeMerge merge = params.plan.merges[index / params.partial_rows];  // older than the kernel before: no need to wait
  wait_for_previous();
  for (; merge.num_slots > 0; merge = params.plan.merges[index / params.partial_rows]) {
    const int row = index % params.partial_rows;
    index += gridDim.x;
    if (row < merge.q_len * params.num_heads) {
      merge_row<kRuns>(params, merge, row, run, thread, weights, runs);
      __syncthreads();
    }
    if (index >= max_merges * params.partial_rows) return;
  }
}

}  // namespace

void launch_decode_merge(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params, int num_seqs) {
  MOESAIC_CHECK_LE(layout.num_parts, kMaxSlots);
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  // Few sequences are cut into many parts: more threads a row.
  const int max_merges = std::min(num_seqs, layout.num_parts);
  const bool many_slots = max_merges <= 8;
  const auto kernel = many_slots ? decode_merge_kernel<4> : decode_merge_kernel<1>;
  cudaLaunchConfig_t config{};
  config.gridDim =
      dim3(std::min(max_merges * layout.partial_rows, layout.num_tiles * layout.num_parts * (many_slots ? 4 : 16)));
  config.blockDim = dim3((many_slots ? 4 : 1) * kRunThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  MOESAIC_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params, max_merges));
}

}  // namespace moesaic::cuda
