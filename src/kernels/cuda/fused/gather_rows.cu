// The first blocks copy rows, a warp each; the others scales, which lie k group major: a thread a row, so that lines
// are written whole.
#include "kernels/cuda/fused/gather_rows.h"

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kInFlight = 7;     // loads of 16 bytes a lane: two rounds for 7,168
constexpr int kScaleGroups = 8;  // k groups of a block of scales

struct Params {
  const uint4* q;  // vectors of 16 codes
  const float* scales;
  int64_t scale_stride;
  const int32_t* row_tokens;
  int64_t num_tokens, rows;
  int row_vecs, k_groups;
  uint4* q_out;
  float* scales_out;
  int64_t scale_stride_out;
  int64_t row_blocks, blocks_per_column;
};

__device__ bool is_token(const Params& p, int64_t token) {
  return token >= 0 && token < p.num_tokens;
}

__device__ void copy_row(const Params& p, int64_t row) {
  const int64_t token = row < p.rows ? p.row_tokens[row] : -1;
  if (!is_token(p, token)) return;
  const uint4* from = p.q + token * p.row_vecs;
  uint4* to = p.q_out + row * p.row_vecs;
  for (int begin = threadIdx.x % 32; begin < p.row_vecs; begin += kInFlight * 32) {
    uint4 vecs[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (begin + i * 32 < p.row_vecs) vecs[i] = from[begin + i * 32];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (begin + i * 32 < p.row_vecs) to[begin + i * 32] = vecs[i];
    }
  }
}

__device__ void copy_scales(const Params& p, int64_t row, int first_group) {
  const int64_t token = row < p.rows ? p.row_tokens[row] : -1;
  if (!is_token(p, token)) return;
#pragma unroll
  for (int i = 0; i < kScaleGroups; ++i) {
    const int g = first_group + i;
    if (g < p.k_groups) p.scales_out[g * p.scale_stride_out + row] = p.scales[g * p.scale_stride + token];
  }
}

__global__ void __launch_bounds__(kThreads) gather_rows_kernel(const Params p) {
  if (blockIdx.x < p.row_blocks) return copy_row(p, int64_t{blockIdx.x} * kWarps + threadIdx.x / 32);
  const int64_t block = blockIdx.x - p.row_blocks, column = block / p.blocks_per_column;
  copy_scales(p, (block - column * p.blocks_per_column) * kThreads + threadIdx.x,
              static_cast<int>(column) * kScaleGroups);
}

int64_t blocks_of(int64_t size, int64_t unit) {
  return (size + unit - 1) / unit;
}

}  // namespace

absl::Status gather_rows(cudaStream_t stream, const GatherRowsArgs& args) {
  const int64_t num_tokens = args.q.dim(0), k = args.q.dim(1), rows = args.row_tokens.dim(0);
  ArgsCheck check("gather_rows");
  check.divisible("k", k, kScaleGroup).size("k", k, kScaleGroup, 1 << 20).size("rows", rows, 0, 1 << 30);
  check.tensor("q", args.q, DType::kE4M3, {num_tokens, k}).tensor("row_tokens", args.row_tokens, DType::kI32, {rows});
  check.tensor("scales", args.scales, DType::kF32, {k / kScaleGroup, scale_row_stride(num_tokens)});
  check.tensor("q_out", args.q_out, DType::kE4M3, {rows, k});
  check.tensor("scales_out", args.scales_out, DType::kF32, {k / kScaleGroup, scale_row_stride(rows)});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (rows == 0) return absl::OkStatus();
  const Params p{.q = args.q.data<uint4>(),
                 .scales = args.scales.data<float>(),
                 .scale_stride = scale_row_stride(num_tokens),
                 .row_tokens = args.row_tokens.data<int32_t>(),
                 .num_tokens = num_tokens,
                 .rows = rows,
                 .row_vecs = static_cast<int>(k / 16),
                 .k_groups = static_cast<int>(k / kScaleGroup),
                 .q_out = args.q_out.data<uint4>(),
                 .scales_out = args.scales_out.data<float>(),
                 .scale_stride_out = scale_row_stride(rows),
                 .row_blocks = blocks_of(rows, kWarps),
                 .blocks_per_column = blocks_of(rows, kThreads)};
  const int64_t blocks = p.row_blocks + p.blocks_per_column * blocks_of(p.k_groups, kScaleGroups);
  gather_rows_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(p);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
