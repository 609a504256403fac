// y = x W^T in bf16. A block computes one tile of kTokens rows by kColumns columns: one producer thread fills a ring of
// k groups of 64 by TMA, a math warpgroup has 64 columns and all rows. Rows of W are wgmma's M, which is 64 at least,
// rows of x its N. Up to 128 rows two blocks share an SM: while one writes its results, the other reads. With `split` >
// 1 a cluster of that many blocks shares a tile; SplitSums adds their runs of k groups in order.
#pragma once

#include "kernels/cuda/gemm/split_sums.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace moesaic::cuda {

struct Bf16GemmParams {
  void* y;  // f32 or bf16
  int64_t y_row_stride;
  int rows;
  int n;
  int k_groups;  // ceil(k / 64)
  int split;
  int share;  // rows of a tile that a block of a split adds
};

template <int kTokens, int kColumns>
struct Bf16GemmShared {
  static constexpr int kMathThreads = kColumns * 2;
  static constexpr int kThreads = kMathThreads + 32;
  static constexpr int kStageX = kTokens * 128;
  static constexpr int kStageW = kColumns * 128;
  static constexpr int kBlocksPerSm = kTokens == 256 ? 1 : 2;
  static constexpr int kFixed = 256 + 1024;  // barriers, alignment
  static constexpr int kBudget = 228 * 1024 / kBlocksPerSm - 1024;
  static constexpr int kFit = (kBudget - kFixed) / (kStageX + kStageW);
  static constexpr int kStages = kFit < 12 ? kFit : 12;
  static constexpr int kBytes = kFixed + kStages * (kStageX + kStageW);
  // Sums, and what is received of others, lie in the ring: rows of kColumns f32, 4 more so that warps store without
  // bank conflicts. Of 128 columns there is no split.
  static constexpr int kSumPitch = (kColumns + 4) * 4;
  static constexpr int kSumRows = kColumns == 128 ? kTokens : 2 * kTokens + kMaxSplit;
  static_assert(kSumRows * kSumPitch <= kStages * (kStageX + kStageW), "the ring is too small for the sums");
};

template <int kTokens, int kColumns, typename Out>
__global__ void __launch_bounds__(Bf16GemmShared<kTokens, kColumns>::kThreads,
                                  Bf16GemmShared<kTokens, kColumns>::kBlocksPerSm)
    bf16_gemm_kernel(const __grid_constant__ Bf16GemmParams params, const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ CUtensorMap w_map) {
  using Shared = Bf16GemmShared<kTokens, kColumns>;
  constexpr int kStages = Shared::kStages, kMathThreads = Shared::kMathThreads;
  extern __shared__ uint8_t shared_raw[];
  const uint32_t base = (shared_address(shared_raw) + 1023) / 1024 * 1024;
  const uint32_t w_ring = base;
  const uint32_t x_ring = w_ring + kStages * Shared::kStageW;
  const uint32_t full = x_ring + kStages * Shared::kStageX;
  const uint32_t empty = full + kStages * 8;
  const uint32_t received = empty + kStages * 8;
  constexpr int kSummed = 1;  // named barrier

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int split = params.split;
  const int rank = split > 1 ? static_cast<int>(cluster_rank()) : 0;
  const int k_begin = params.k_groups * rank / split, k_end = params.k_groups * (rank + 1) / split;
  // Rows fastest, so that L2 holds the columns' weights.
  const int tile = blockIdx.x / split, row_tiles = (params.rows + kTokens - 1) / kTokens;
  const int first_row = tile % row_tiles * kTokens, first_column = tile / row_tiles * kColumns;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, kMathThreads / 32);
    }
    barrier_init(received, 1);
    barrier_init_fence();
  }
  __syncthreads();

  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  };
  if (warp == kMathThreads / 32) {
    if (elect_one()) {
      const uint64_t policy = row_tiles == 1 ? kEvictFirst : kEvictNormal;  // read once, or once for each row of tiles
      for (int g = k_begin; g < k_end; ++g, advance()) {
        const uint32_t ready = full + stage * 8;
        barrier_wait_short(empty + stage * 8, phase ^ 1);
        barrier_expect(ready, Shared::kStageX + Shared::kStageW);
        tma_load_2d(w_ring + stage * Shared::kStageW, &w_map, g * 64, first_column, ready, policy);
        tma_load_2d(x_ring + stage * Shared::kStageX, &x_map, g * 64, first_row, ready, kEvictNormal);
      }
    }
    __syncwarp();
    if (split > 1) {
      cluster_sync_relaxed();
      cluster_sync_relaxed();
    }
    return;
  }

  const WgmmaOperand x_first = wgmma_operand(x_ring), w_first = wgmma_operand(w_ring + warp / 4 * 64 * 128);
  float sums[kTokens / 2];
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  for (int g = k_begin; g < k_end; ++g) {
    const int last = stage == 0 ? kStages - 1 : stage - 1;
    barrier_wait_short(full + stage * 8, phase);
    pin(sums);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_ss<kTokens>(sums, w_first + (stage * Shared::kStageW + k * 32),
                        x_first + (stage * Shared::kStageX + k * 32), true);
    }
    wgmma_commit();
    wgmma_wait<1>();  // the group before has been read
    if (g > k_begin && lane == 0) barrier_arrive(empty + last * 8);
    advance();
  }
  wgmma_wait<0>();
  pin(sums);
  if (split > 1) cluster_arrive();  // this block's ring is free
  named_sync(kSummed, kMathThreads);
#pragma unroll
  for (int i = 0; i < kTokens / 2; i += 2) {
    // wgmma leaves a thread two neighbouring rows of x and two columns.
    const int column = warp * 16 + lane / 4 + i / 2 % 2 * 8, row = i / 4 * 8 + lane % 4 * 2;
    const uint32_t to = base + row * Shared::kSumPitch + column * 4;
    store_shared_f32(to, sums[i]);
    store_shared_f32(to + Shared::kSumPitch, sums[i + 1]);
  }
  if (split > 1) fence_async_shared();
  named_sync(kSummed, kMathThreads);
  const SplitSums sum = {.own = base,
                         .received = base + kTokens * Shared::kSumPitch,
                         .barrier = received,
                         .pitch = Shared::kSumPitch,
                         .share = params.share,
                         .tokens = min(kTokens, params.rows - first_row),
                         .split = split,
                         .rank = rank};
  if (split > 1) {
    cluster_wait();
    if (static_cast<int>(threadIdx.x) < split) sum.send(threadIdx.x);
    barrier_wait_short(received, 0);
    __syncwarp();
    cluster_arrive();  // what was sent to this block is there: who sent it may leave
  }
  sum.write<kColumns>(static_cast<Out*>(params.y) + first_row * params.y_row_stride + first_column, params.y_row_stride,
                      params.n - first_column, threadIdx.x, kMathThreads);
  if (split > 1) cluster_wait();
}

}  // namespace moesaic::cuda
