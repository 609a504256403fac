// A block computes 128 columns of up to 256 rows: two warpgroups take 64 columns each as wgmma's M, rows are its N. A
// warp fills a ring of 64 of k through TMA. Where tiles are fewer than SMs, the blocks of a cluster share the k of a
// tile; each then adds a share of the rows, in the order of k. Sums pass through shared memory, so that the results
// leave in whole lines.
#include "kernels/cuda/gemm/bf16_gemm.h"

#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/gemm/launch.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "tensor/cuda/device.h"
#include "tensor/cuda/tensor_map.h"

namespace moesaic::cuda {
namespace {

constexpr int kColumns = 128;  // of a tile
constexpr int kDepth = 64;     // of k in a stage: 128 bytes, swizzled
constexpr int kMathThreads = 256, kThreads = kMathThreads + 32;
constexpr int kPitch = kColumns + 4;  // floats from one row of sums to the next: no bank conflicts
constexpr int kMaxSplit = 8;

struct Params {
  void* y;
  int64_t y_stride;
  bool y_is_f32;
  int m, n, k_steps, m_tiles, split;
};

// kRows of x to a tile. Up to 128, two blocks fit on an SM: one loads while the other ends.
template <int kRows>
struct Bf16Tile {
  static constexpr int kBlocksPerSm = kRows <= 128 ? 2 : 1;
  static constexpr int kWeightBytes = kColumns * kDepth * 2, kStageBytes = kWeightBytes + kRows * kDepth * 2;
  static constexpr int kStages = std::min(8, (kBlocksPerSm == 2 ? 100 : 200) * 1024 / kStageBytes);
  static constexpr int kSumBytes = kRows * kPitch * 4;
  static constexpr int kBytes = std::max(kStages * kStageBytes, kSumBytes) + 1024;  // the ring begins aligned
};

struct Ring {
  uint64_t full[8], empty[8];
};

template <int kRows>
__device__ void load_stages(const CUtensorMap* x_map, const CUtensorMap* w_map, const Params& p, Ring& ring,
                            uint32_t stages, int first_row, int first_column, int begin, int end) {
  using Tile = Bf16Tile<kRows>;
  for (int step = begin, i = 0; step < end; ++step, ++i) {
    const int slot = i % Tile::kStages;
    const uint32_t full = shared_address(&ring.full[slot]), stage = stages + slot * Tile::kStageBytes;
    if (i >= Tile::kStages) barrier_wait(shared_address(&ring.empty[slot]), (i / Tile::kStages - 1) & 1);
    barrier_expect(full, Tile::kStageBytes);
    tma_load_2d(stage, w_map, step * kDepth, first_column, full, p.m_tiles == 1 ? kEvictFirst : kEvictNormal);
    tma_load_2d(stage + Tile::kWeightBytes, x_map, step * kDepth, first_row, full, kEvictNormal);
  }
}

// The sums of this warpgroup's columns over the steps of this block.
template <int kRows>
__device__ void multiply(float (&sums)[kRows / 2], Ring& ring, uint32_t stages, int num_steps) {
  using Tile = Bf16Tile<kRows>;
  const int warpgroup = threadIdx.x / 128;
  for (int i = 0; i < num_steps; ++i) {
    const int slot = i % Tile::kStages;
    const uint32_t stage = stages + slot * Tile::kStageBytes;
    const WgmmaOperand w = wgmma_operand(stage + warpgroup * 64 * 128), x = wgmma_operand(stage + Tile::kWeightBytes);
    barrier_wait(shared_address(&ring.full[slot]), i / Tile::kStages & 1);
    wgmma_fence();
#pragma unroll
    for (int at = 0; at < kDepth * 2; at += 32) wgmma_ss<kRows>(sums, w + at, x + at, i > 0 || at > 0);
    wgmma_commit();
    wgmma_wait<1>();
    if (i > 0 && threadIdx.x % 32 == 0) barrier_arrive(shared_address(&ring.empty[(i - 1) % Tile::kStages]));
  }
  wgmma_wait<0>();
  pin(sums);
}

// Four columns of a row.
__device__ void write(const Params& p, int row, int column, float4 sum) {
  if (row >= p.m || column >= p.n) return;
  const int64_t at = row * p.y_stride + column;
  if (p.y_is_f32) {
    *reinterpret_cast<float4*>(static_cast<float*>(p.y) + at) = sum;
  } else {
    const uint2 packed = {pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
    *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(p.y) + at) = packed;
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads, Bf16Tile<kRows>::kBlocksPerSm)
    bf16_gemm_kernel(const Params p, const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ CUtensorMap w_map) {
  extern __shared__ uint8_t raw[];
  __shared__ Ring ring;
  const uint32_t base = shared_address(raw), stages = (base + 1023) / 1024 * 1024;
  float* const tile_sums = reinterpret_cast<float*>(raw + (stages - base));
  const auto cluster = cooperative_groups::this_cluster();
  const int rank = static_cast<int>(cluster.block_rank());
  // Neighbouring blocks have the same columns: weights pass from memory once, rows stay in L2.
  const int tile = blockIdx.x / p.split;
  const int first_row = tile % p.m_tiles * kRows, first_column = tile / p.m_tiles * kColumns;
  const int begin = static_cast<int>(int64_t{p.k_steps} * rank / p.split);
  const int end = static_cast<int>(int64_t{p.k_steps} * (rank + 1) / p.split);
  if (threadIdx.x == 0) {
    for (int i = 0; i < Bf16Tile<kRows>::kStages; ++i) {
      barrier_init(shared_address(&ring.full[i]), 1), barrier_init(shared_address(&ring.empty[i]), kMathThreads / 32);
    }
    barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x >= kMathThreads) {
    if (threadIdx.x == kMathThreads) {
      load_stages<kRows>(&x_map, &w_map, p, ring, stages, first_row, first_column, begin, end);
    }
    __syncwarp();
    __syncthreads();
  } else {
    float sums[kRows / 2] = {};
    multiply<kRows>(sums, ring, stages, end - begin);
    __syncthreads();  // nobody reads the ring any more
    const int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) {
      const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
      tile_sums[row * kPitch + column + i / 2 % 2 * 8] = sums[i];
    }
  }
  cluster.sync();
  for (int i = threadIdx.x + rank * kThreads; i < kRows * (kColumns / 4); i += p.split * kThreads) {
    const int row = i / (kColumns / 4), column = i % (kColumns / 4) * 4;
    float4 sum = {};
    for (int other = 0; other < p.split; ++other) {
      const float* from = cluster.map_shared_rank(tile_sums, other) + row * kPitch + column;
      const float4 part = *reinterpret_cast<const float4*>(from);
      sum = {sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w};
    }
    write(p, first_row + row, first_column + column, sum);
  }
  cluster.sync();  // nobody reads a block's sums any more
}

template <int kRows>
absl::Status launch(cudaStream_t stream, const Bf16GemmArgs& args, int num_sms) {
  using Tile = Bf16Tile<kRows>;
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  const int64_t m_tiles = (m + kRows - 1) / kRows, tiles = m_tiles * ((n + kColumns - 1) / kColumns);
  const int64_t k_steps = (k + kDepth - 1) / kDepth;
  // Blocks for all SMs, each with a few steps at least.
  const int64_t most = std::clamp<int64_t>(k_steps / 4, 1, kMaxSplit);
  const int64_t split = std::clamp<int64_t>(num_sms * Tile::kBlocksPerSm / tiles, 1, most);
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap x_map,
                           make_tensor_map(args.x.raw(), DType::kBF16, {k, m}, {args.x.row_stride() * 2},
                                           {kDepth, kRows}, /*swizzle=*/true));
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap w_map, make_tensor_map(args.w.raw(), DType::kBF16, {k, n}, {k * 2},
                                                                    {kDepth, kColumns}, /*swizzle=*/true));
  const Params p{.y = args.y.raw(),
                 .y_stride = args.y.row_stride(),
                 .y_is_f32 = args.y.dtype() == DType::kF32,
                 .m = static_cast<int>(m),
                 .n = static_cast<int>(n),
                 .k_steps = static_cast<int>(k_steps),
                 .m_tiles = static_cast<int>(m_tiles),
                 .split = static_cast<int>(split)};
  return launch_clusters(stream, bf16_gemm_kernel<kRows>, static_cast<int>(tiles * split), kThreads, Tile::kBytes,
                         static_cast<int>(split), p, x_map, w_map);
}

}  // namespace

absl::Status bf16_gemm(cudaStream_t stream, const Bf16GemmArgs& args) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  ArgsCheck check("bf16_gemm");
  check.divisible("k", k, 8).divisible("n", n, 8);
  check.size("rows", m, 0, kMost).size("n", n, 8, kMost).size("k", k, 8, kMost);
  check.require((m / 16 + 1) * (n / kColumns + 1) <= kMost / kMaxSplit, "at most 2^27 tiles");
  check.matrix("x", args.x, DType::kBF16, m, k).tensor("w", args.w, DType::kBF16, {n, k});
  check.matrix("y", args.y, args.y.dtype() == DType::kF32 ? DType::kF32 : DType::kBF16, m, n);
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (m == 0) return absl::OkStatus();
  MOESAIC_ASSIGN_OR_RETURN(const int num_sms, current_num_sms());
  if (m <= 16) return launch<16>(stream, args, num_sms);
  // Small tiles where large ones, with k shared, leave SMs idle; large ones read x and W less often out of L2.
  const int64_t n_tiles = (n + kColumns - 1) / kColumns;
  if (m <= 64 || (m <= 128 && n_tiles * kMaxSplit < num_sms)) return launch<64>(stream, args, num_sms);
  const bool large = m > 128 && (m + 255) / 256 * n_tiles * 5 >= num_sms;
  return large ? launch<256>(stream, args, num_sms) : launch<128>(stream, args, num_sms);
}

}  // namespace moesaic::cuda
