// y = x W^T in FP8 for few rows: bound by reading W. The operands change places: rows of W are wgmma's M, which is 64
// at least, rows of x its N, which may be 8. A block computes tiles of kTokens rows by kColumns columns: one producer
// thread fills a ring of k groups by TMA, deep enough to keep memory busy; math warpgroups of 64 kWaves columns each
// multiply and add, scaled, to f32 sums.
//
// With `split` > 1, a cluster of that many blocks shares a tile: each takes a run of k groups, and the sums of all are
// added in the order of k through distributed shared memory: the same bits in every run. Then a cluster has one
// tile; without, blocks walk over tiles.
#pragma once

#include "kernels/cuda/gemm/hopper.cuh"
#include "kernels/cuda/gemm/kernel_args.h"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace moesaic::cuda {

inline constexpr int kMaxSplit = 8;

template <int kTokens, int kWarpgroups, int kWaves, int kBlocksPerSm>
struct FewRowsShared {
  static constexpr int kColumns = kWarpgroups * kWaves * 64;
  static constexpr int kThreads = kWarpgroups * 128 + 32;
  static constexpr int kStageX = kTokens * 128;
  static constexpr int kStageW = kColumns * 128;
  static constexpr int kStageScales = (kTokens * 4 + 127) / 128 * 128;
  static constexpr int kStage = kStageX + kStageW + kStageScales;
  static constexpr int kOutTokens = kTokens < 32 ? kTokens : 32;
  static constexpr int kOut = kWarpgroups * 4 * kOutTokens * 32;  // 16 columns of kOutTokens rows a math warp
  static constexpr int kBarriers = 256;
  static constexpr int kFixed = kOut + kBarriers + 1024;
  static constexpr int kBudget = kBlocksPerSm == 1 ? 232448 : 115712;
  static constexpr int kFit = (kBudget - kFixed) / kStage;
  static constexpr int kStages = kFit < 14 ? kFit : 14;
  static constexpr int kBytes = kFixed + kStages * kStage;
  // Sums of a split tile lie in the ring: rows of kColumns f32, 4 more so that warps store without bank conflicts.
  static constexpr int kSumPitch = (kColumns + 4) * 4;
  static_assert(kSumPitch * kTokens <= kStages * kStage, "the ring is too small for the sums");
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
    tile = {group_, item % m_tiles_ * kTokens, item / m_tiles_ * kColumns, rows_};
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
      store_matrix_transposed(out + (t + lane % 8) * 32 + lane / 8 % 2 * 16, pack_bf16(a[0], a[1]),
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

// Adds the sums that the cluster's blocks left at `sums` and writes this block's share of the tile.
template <int kColumns, int kPitch>
__device__ inline void write_split(const KernelArgs& args, const ColumnTile& tile, uint32_t sums, int tokens, int rank,
                                   int split, int thread, int num_threads) {
  constexpr int kChunks = kColumns / 8;
  __nv_bfloat16* y = static_cast<__nv_bfloat16*>(args.y) + tile.group * args.y_group_stride;
  const int chunks = tokens * kChunks;
  const int end = chunks * (rank + 1) / split;
  for (int i = chunks * rank / split + thread; i < end; i += num_threads) {
    const int token = i / kChunks;
    const int c = i % kChunks * 8;
    const uint32_t at = sums + token * kPitch + c * 4;
    float4 low[kMaxSplit], high[kMaxSplit];
#pragma unroll
    for (int s = 0; s < kMaxSplit; ++s) {
      if (s < split) {
        low[s] = load_remote(at, s);
        high[s] = load_remote(at + 16, s);
      }
    }
    float4 a = low[0], b = high[0];
#pragma unroll
    for (int s = 1; s < kMaxSplit; ++s) {
      if (s < split) {
        a = {a.x + low[s].x, a.y + low[s].y, a.z + low[s].z, a.w + low[s].w};
        b = {b.x + high[s].x, b.y + high[s].y, b.z + high[s].z, b.w + high[s].w};
      }
    }
    if (tile.column + c >= args.n) continue;
    const uint4 packed = {pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w)};
    *reinterpret_cast<uint4*>(y + (tile.row + token) * args.y_row_stride + tile.column + c) = packed;
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

template <int kTokens, int kWarpgroups, int kWaves, int kBlocksPerSm, Grouping kGrouping>
__global__ void __launch_bounds__(kWarpgroups * 128 + 32, kBlocksPerSm)
    few_rows_kernel(const __grid_constant__ KernelArgs args, const __grid_constant__ CUtensorMap x_map,
                    const __grid_constant__ CUtensorMap scale_map, const __grid_constant__ CUtensorMap w_map,
                    const int split) {
  using Shared = FewRowsShared<kTokens, kWarpgroups, kWaves, kBlocksPerSm>;
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

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int rank = split > 1 ? static_cast<int>(cluster_rank()) : 0;
  const bool is_producer = warp == kWarpgroups * 4;
  if (is_producer && elect_one()) {
    prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&x_map);
    prefetch_tensor_map(&scale_map);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, kWarpgroups * 4);
    }
    barrier_init_fence();
  }
  __syncthreads();

  const int k_begin = args.k_groups * rank / split;
  const int k_end = args.k_groups * (rank + 1) / split;
  ColumnTileWalk<kGrouping, kTokens, kColumns> walk(args, blockIdx.x / split, gridDim.x / split);
  ColumnTile tile;
  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  };

  if (is_producer) {
    if (elect_one()) {
      const uint64_t policy = streaming_policy();
      while (walk.next(tile)) {
        for (int g = k_begin; g < k_end; ++g, advance()) {
          const uint32_t ready = full + stage * 8;
          barrier_wait(empty + stage * 8, phase ^ 1);
          barrier_arrive_expect(ready, kStageBytes);
          const uint32_t w = w_ring + stage * Shared::kStageW;
          if (tile.rows <= kTokens) {
            tma_load(w, &w_map, ready, g * 128, tile.column, tile.group, policy);
          } else {
            tma_load(w, &w_map, ready, g * 128, tile.column, tile.group);
          }
          tma_load(x_ring + stage * Shared::kStageX, &x_map, ready, g * 128, tile.row, tile.group);
          tma_load(scale_ring + stage * Shared::kStageScales, &scale_map, ready, tile.row, g, tile.group);
        }
        if (split > 1) break;
      }
    }
    __syncwarp();
  } else {
    const int warpgroup = warp / 4;
    const int n_blocks = (args.n + 127) / 128;
    while (walk.next(tile)) {
      const int column = tile.column + warpgroup * kWaves * 64;
      const int block = min(column / 128, n_blocks - 1);
      const float* w_scales = args.w_scales + (int64_t{tile.group} * n_blocks + block) * args.k_groups;
      float w_scale_lane = 0.0f;
      float sums[kWaves][kTokens / 2] = {};
      for (int g = k_begin; g < k_end; ++g, advance()) {
        const int in_chunk = (g - k_begin) % 32;
        if (in_chunk == 0) w_scale_lane = __ldg(w_scales + min(g + lane, args.k_groups - 1));
        const float w_scale = __shfl_sync(0xffffffff, w_scale_lane, in_chunk);
        barrier_wait(full + stage * 8, phase);
        const uint64_t x = operand_descriptor(x_ring + stage * Shared::kStageX);
        const uint32_t w_tile = w_ring + stage * Shared::kStageW + warpgroup * kWaves * 64 * 128;
        const uint32_t x_scales = scale_ring + stage * Shared::kStageScales + lane % 4 * 8;
        // All waves multiply at once, unless their results would not fit in registers.
        constexpr int kAtOnce = kTokens * kWaves <= 128 ? kWaves : 1;
#pragma unroll
        for (int first = 0; first < kWaves; first += kAtOnce) {
          float acc[kAtOnce][kTokens / 2];
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) wgmma_fence(acc[i]);
          wgmma_arrive();
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            const uint64_t w = operand_descriptor(w_tile + (first + i) * 64 * 128);
#pragma unroll
            for (int k = 0; k < 4; ++k) Wgmma<kTokens>::mma(acc[i], w + k * 2, x + k * 2, k > 0);
            wgmma_commit();
          }
          wgmma_wait<0>();
#pragma unroll
          for (int i = 0; i < kAtOnce; ++i) {
            wgmma_fence(acc[i]);
            add_scaled<kTokens>(sums[first + i], acc[i], x_scales, w_scale);
          }
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + stage * 8);
      }
      if (split > 1) {
        named_sync(1, kMathThreads);  // the ring is no longer read
        const int n = warpgroup * kWaves * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
        for (int wave = 0; wave < kWaves; ++wave) {
#pragma unroll
          for (int i = 0; i < kTokens / 2; ++i) {
            const int token = i / 4 * 8 + lane % 4 * 2 + i % 2;
            store_shared_f32(base + token * Shared::kSumPitch + (n + wave * 64 + i / 2 % 2 * 8) * 4, sums[wave][i]);
          }
        }
        break;
      }
#pragma unroll
      for (int wave = 0; wave < kWaves; ++wave) {
        write_columns<kTokens, Shared::kOutTokens>(args, tile, sums[wave], out + warp * Shared::kOutTokens * 32,
                                                   column + wave * 64 + warp % 4 * 16);
      }
    }
  }
  if (split > 1) {
    cluster_sync();
    if (!is_producer) {
      const int tokens = min(kTokens, tile.rows - tile.row);
      write_split<kColumns, Shared::kSumPitch>(args, tile, base, tokens, rank, split, threadIdx.x, kMathThreads);
    }
    cluster_sync();  // sums stay until all have read them
  }
}

}  // namespace moesaic::cuda
