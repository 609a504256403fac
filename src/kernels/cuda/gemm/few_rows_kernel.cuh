// y = x W^T in FP8 for few rows: bound by reading W. The operands change places: rows of W are wgmma's M, which is 64
// at least, rows of x its N, which may be 8. A block computes tiles of kTokens rows by 64 columns a math warpgroup: one
// producer thread fills a ring of k groups by TMA, deep enough to keep memory busy; a math warpgroup multiplies one k
// group while it adds the last one's result, scaled, to its f32 sums, where registers allow.
//
// With `split` > 1, a cluster of that many blocks shares a tile: each takes a run of k groups, and SplitSums adds them
// in the order of k: the same bits in every run. Then a cluster has one tile; without, blocks walk over tiles.
#pragma once

#include "kernels/cuda/gemm/kernel_args.h"
#include "kernels/cuda/gemm/split_sums.cuh"
#include "kernels/cuda/gemm/weight_scales.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace moesaic::cuda {

template <int kTokens, int kWarpgroups>
struct FewRowsShared {
  // Large tiles get most of an SM's registers, through setmaxnreg, which counts in warpgroups; others share the SM with
  // more blocks.
  static constexpr bool kWholeSm = kTokens >= 64 && kWarpgroups == 2;
  static constexpr int kBlocksPerSm = kWholeSm ? 1 : kWarpgroups == 2 || kTokens == 128 ? 2 : 3;
  static constexpr int kThreads = kWarpgroups * 128 + (kWholeSm ? 128 : 32);
  static constexpr bool kTwoAtOnce = kWholeSm || kTokens <= 64;
  static constexpr int kColumns = kWarpgroups * 64;
  static constexpr int kStageX = kTokens * 128;
  static constexpr int kStageW = kColumns * 128;
  static constexpr int kStageScales = (kTokens * 4 + 127) / 128 * 128;
  static constexpr int kStage = kStageX + kStageW + kStageScales;
  static constexpr int kOutTokens = kTokens < 32 ? kTokens : 32;
  static constexpr int kOut = kWarpgroups * 4 * kOutTokens * 32;  // 16 columns of kOutTokens rows a math warp
  static constexpr int kBarriers = 256;
  static constexpr int kFixed = kOut + kBarriers + 1024;
  static constexpr int kBudget = (233472 / kBlocksPerSm - 1024) / 1024 * 1024;  // 228 KB, 1 KB of each block taken
  static constexpr int kFit = (kBudget - kFixed) / kStage;
  static constexpr int kStages = kFit < 14 ? kFit : 14;
  static constexpr int kBytes = kFixed + kStages * kStage;
  // Sums of a split tile and what is received of others lie in the ring: rows of kColumns f32, 4 more so that warps
  // store without bank conflicts.
  static constexpr int kSumPitch = (kColumns + 4) * 4;
  static_assert((2 * kTokens + kMaxSplit) * kSumPitch <= kStages * kStage, "the ring is too small for the sums");
};

struct ColumnTile {
  int group;
  int row;
  int column;
  int rows;  // of the group, that count
};

// The list of tiles: rows fastest, so that L2 holds the columns' weights.
template <Grouping kGrouping, int kTokens, int kColumns>
class ColumnTileWalk {
 public:
  __device__ ColumnTileWalk(const KernelArgs& args, int first, int step) : args_(args), item_(first), step_(step) {
    n_tiles_ = (args.n + kColumns - 1) / kColumns;
    set_rows(kGrouping == Grouping::kMasked ? args.group_rows[0] : args.rows);
  }

  __device__ bool next(ColumnTile& tile) {
    while (item_ - first_item_ >= m_tiles_ * n_tiles_) {
      if (++group_ >= args_.groups) return false;
      first_item_ += m_tiles_ * n_tiles_;
      if (kGrouping == Grouping::kMasked) set_rows(args_.group_rows[group_]);
    }
    const int item = item_ - first_item_;
    tile = {group_, 0, item * kColumns, rows_};
    if (m_tiles_ > 1) {
      tile.row = item % m_tiles_ * kTokens;
      tile.column = item / m_tiles_ * kColumns;
    }
    item_ += step_;
    return true;
  }

 private:
  __device__ void set_rows(int rows) {
    rows_ = min(max(rows, 0), args_.rows);
    m_tiles_ = (rows_ + kTokens - 1) / kTokens;
  }

  const KernelArgs& args_;
  int item_;
  int step_;
  int n_tiles_;
  int m_tiles_;
  int rows_;
  int group_ = 0;
  int first_item_ = 0;
};

// One math warp's results: 16 columns of kTokens rows, turned in its own shared memory, 32 bytes a row.
template <int kTokens, int kOutTokens>
__device__ inline void write_columns(const KernelArgs& args, const ColumnTile& tile, const float* sums, uint32_t out,
                                     int column) {
  const int lane = threadIdx.x % 32;
  __nv_bfloat16* y = static_cast<__nv_bfloat16*>(args.y) + tile.group * args.y_group_stride;
#pragma unroll
  for (int begin = 0; begin < kTokens; begin += kOutTokens) {
#pragma unroll
    for (int t = 0; t < kOutTokens; t += 8) {
      const float* a = sums + (begin + t) / 2;
      store_matrices_transposed(out + (t + lane % 8) * 32 + lane / 8 % 2 * 16, pack_bf16(a[0], a[1]),
                                pack_bf16(a[2], a[3]));
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < kOutTokens * 2; i += 32) {
      const uint4 value = load_shared(out + i * 16);
      const int row = tile.row + begin + i / 2;
      const int c = column + i % 2 * 8;
      if (row < tile.rows && c < args.n) *reinterpret_cast<uint4*>(y + row * args.y_row_stride + c) = value;
    }
    __syncwarp();
  }
}

// sums += acc * x_scale[token] * w_scale; a thread has two neighbouring tokens of every 8.
template <int kTokens>
__device__ inline void add_scaled(float (&sums)[kTokens / 2], const float (&acc)[kTokens / 2], uint32_t x_scales,
                                  float w_scale) {
#pragma unroll
  for (int i = 0; i < kTokens / 8; ++i) {
    float2 scale = load_shared_f32x2(x_scales + i * 32);
    scale.x *= w_scale;
    scale.y *= w_scale;
    sums[i * 4 + 0] += acc[i * 4 + 0] * scale.x;
    sums[i * 4 + 1] += acc[i * 4 + 1] * scale.y;
    sums[i * 4 + 2] += acc[i * 4 + 2] * scale.x;
    sums[i * 4 + 3] += acc[i * 4 + 3] * scale.y;
  }
}

// Starts acc = W x^T of one k group: 64 rows of W at `w`, kTokens rows of x at `x`.
template <int kTokens>
__device__ inline void start_multiply(float (&acc)[kTokens / 2], uint32_t w, uint32_t x) {
  const WgmmaOperand w_operand = wgmma_operand(w), x_operand = wgmma_operand(x);
  pin(acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_ss_e4m3<kTokens>(acc, w_operand + k * 32, x_operand + k * 32, k > 0);
  wgmma_commit();
  pin(acc);
}

template <int kTokens, int kWarpgroups, Grouping kGrouping>
__global__ void __launch_bounds__(FewRowsShared<kTokens, kWarpgroups>::kThreads,
                                  FewRowsShared<kTokens, kWarpgroups>::kBlocksPerSm)
    few_rows_kernel(const __grid_constant__ KernelArgs args, const __grid_constant__ CUtensorMap x_map,
                    const __grid_constant__ CUtensorMap scale_map, const __grid_constant__ CUtensorMap w_map,
                    const int split, const int share) {
  using Shared = FewRowsShared<kTokens, kWarpgroups>;
  constexpr int kStages = Shared::kStages;
  constexpr int kColumns = Shared::kColumns;
  constexpr int kMathThreads = kWarpgroups * 128;
  constexpr uint32_t kStageBytes = Shared::kStageX + Shared::kStageW + kTokens * 4;
  extern __shared__ uint8_t shared_raw[];
  const uint32_t base = (shared_address(shared_raw) + 1023) / 1024 * 1024;
  const uint32_t w_ring = base;
  const uint32_t x_ring = w_ring + kStages * Shared::kStageW;
  const uint32_t scale_ring = x_ring + kStages * Shared::kStageX;
  const uint32_t out = scale_ring + kStages * Shared::kStageScales;
  const uint32_t full = out + Shared::kOut;
  const uint32_t empty = full + kStages * 8;
  const uint32_t received = empty + kStages * 8;
  constexpr int kReady = 1, kSummed = 2;  // named barriers

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int rank = split > 1 ? static_cast<int>(cluster_rank()) : 0;
  int k_begin = 0, k_end = args.k_groups, cluster = blockIdx.x;
  if (split > 1) {
    k_begin = args.k_groups * rank / split;
    k_end = args.k_groups * (rank + 1) / split;
    cluster = static_cast<int>(cluster_index());
  }
  ColumnTileWalk<kGrouping, kTokens, kColumns> walk(args, cluster, gridDim.x);
  ColumnTile tile;
  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  };

  if (warp >= kWarpgroups * 4) {
    if constexpr (Shared::kWholeSm) fewer_registers<40>();
    if (warp == kWarpgroups * 4) {
      const bool elected = elect_one();
      if (elected) {
        for (int i = 0; i < kStages; ++i) {
          barrier_init(full + i * 8, 1);
          barrier_init(empty + i * 8, kWarpgroups * 4);
        }
        barrier_init(received, 1);
        barrier_init_fence();
      }
      __syncwarp();
      named_arrive(kReady, kMathThreads + 32);
      if (elected) {
        while (walk.next(tile)) {
          for (int g = k_begin; g < k_end; ++g, advance()) {
            const uint32_t ready = full + stage * 8;
            barrier_wait_short(empty + stage * 8, phase ^ 1);
            barrier_expect(ready, kStageBytes);
            const uint32_t w = w_ring + stage * Shared::kStageW;
            if (tile.rows <= kTokens) {
              tma_load_3d(w, &w_map, g * 128, tile.column, tile.group, ready, kEvictFirst);
            } else {
              tma_load_3d(w, &w_map, g * 128, tile.column, tile.group, ready);
            }
            tma_load_3d(x_ring + stage * Shared::kStageX, &x_map, g * 128, tile.row, tile.group, ready);
            tma_load_3d(scale_ring + stage * Shared::kStageScales, &scale_map, tile.row, g, tile.group, ready);
          }
          if (split > 1) break;
        }
      }
      __syncwarp();
    }
    if (split > 1) {
      cluster_sync_relaxed();
      cluster_sync_relaxed();
    }
    return;
  }

  if constexpr (Shared::kWholeSm) more_registers<232>();
  named_sync(kReady, kMathThreads + 32);
  const int warpgroup = warp / 4;
  const int n_blocks = (args.n + 127) / 128;
  int done = 0;  // the stage that is given back next
  while (walk.next(tile)) {
    const int column = tile.column + warpgroup * 64;
    const int block = min(column / 128, n_blocks - 1);
    WeightScales w_scales;
    w_scales.start(args.w_scales + (int64_t{tile.group} * n_blocks + block) * args.k_groups, k_begin, k_end);
    float sums[kTokens / 2] = {};
    const auto start = [&](float(&acc)[kTokens / 2]) {
      barrier_wait_short(full + stage * 8, phase);
      start_multiply<kTokens>(acc, w_ring + stage * Shared::kStageW + warpgroup * 64 * 128,
                              x_ring + stage * Shared::kStageX);
      advance();
    };
    const auto finish = [&](float(&acc)[kTokens / 2], int g) {
      pin(acc);
      add_scaled<kTokens>(sums, acc, scale_ring + done * Shared::kStageScales + lane % 4 * 8, w_scales.get(g));
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + done * 8);
      done = done + 1 == kStages ? 0 : done + 1;
    };
    float acc[kTokens / 2];
    if constexpr (Shared::kTwoAtOnce) {
      float other[kTokens / 2];
      int g = k_begin;
      start(acc);
      for (; g + 2 < k_end; g += 2) {
        start(other);
        wgmma_wait<1>();
        finish(acc, g);
        start(acc);
        wgmma_wait<1>();
        finish(other, g + 1);
      }
      if (g + 1 < k_end) {
        start(other);
        wgmma_wait<1>();
        finish(acc, g);
        wgmma_wait<0>();
        finish(other, g + 1);
      } else {
        wgmma_wait<0>();
        finish(acc, g);
      }
    } else {
      for (int g = k_begin; g < k_end; ++g) {
        start(acc);
        wgmma_wait<0>();
        finish(acc, g);
      }
    }
    if (split == 1) {
      write_columns<kTokens, Shared::kOutTokens>(args, tile, sums, out + warp * Shared::kOutTokens * 32,
                                                 column + warp % 4 * 16);
      continue;
    }
    cluster_arrive();  // this block's ring is free
    named_sync(kSummed, kMathThreads);
    const int n = warpgroup * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kTokens / 2; ++i) {
      const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
      store_shared_f32(base + token * Shared::kSumPitch + (n + i / 2 % 2 * 8) * 4, sums[i]);
    }
    fence_async_shared();
    named_sync(kSummed, kMathThreads);
    cluster_wait();
    const SplitSums sum = {.own = base,
                           .received = base + kTokens * Shared::kSumPitch,
                           .barrier = received,
                           .pitch = Shared::kSumPitch,
                           .share = share,
                           .tokens = min(kTokens, tile.rows - tile.row),
                           .split = split,
                           .rank = rank};
    if (static_cast<int>(threadIdx.x) < split) sum.send(threadIdx.x);
    barrier_wait_short(received, 0);
    __syncwarp();
    cluster_arrive();  // what was sent to this block has been read
    __nv_bfloat16* y = static_cast<__nv_bfloat16*>(args.y) + tile.group * args.y_group_stride;
    sum.write<kColumns>(y + tile.row * args.y_row_stride + tile.column, args.y_row_stride, args.n - tile.column,
                        threadIdx.x, kMathThreads);
    cluster_wait();
    break;
  }
}

}  // namespace moesaic::cuda
