// y = x W^T in FP8 for many rows: bound by the tensor cores. Rows of x are wgmma's M, rows of W its N.
//
// A persistent grid of clusters of two blocks. A block computes tiles of 128 rows by 2 kN columns: one producer thread
// fills a ring of k groups by TMA, two math warpgroups of kN columns each multiply 64 rows, add the result, scaled, to
// their f32 sums, then the other 64: while one warpgroup adds, the other keeps the tensor cores busy. What both blocks
// of the cluster need (Share) crosses L2 once. Warpgroups end their tiles independently: while one writes its results
// the other still multiplies.
//
// Both blocks of a cluster walk the same list of pairs of tiles. A block without work in a pair (beyond the matrix,
// padding) steps through the ring's barriers all the same, so that its peer never waits for it.
#pragma once

#include "kernels/cuda/gemm/hopper.cuh"
#include "kernels/cuda/gemm/kernel_args.h"
#include "kernels/cuda/gemm/wgmma.cuh"

namespace moesaic::cuda {

inline constexpr int kTileRows = 128;
inline constexpr int kManyRowsThreads = 384;

template <int kN>
struct ManyRowsShared {
  static constexpr int kStageX = kTileRows * 128;
  static constexpr int kStageW = 2 * kN * 128;
  static constexpr int kStageScales = kTileRows * 4;
  static constexpr int kOut = 8 * 2048;  // 16 rows of 64 columns a math warp
  static constexpr int kBarriers = 256;
  static constexpr int kFixed = kOut + kBarriers + 1024;
  static constexpr int kStages = (232448 - kFixed) / (kStageX + kStageW + kStageScales);
  static constexpr int kBytes = kFixed + kStages * (kStageX + kStageW + kStageScales);
};

struct RowTile {
  int group;
  int row;         // first row within the group
  int column;      // first of the block's columns
  int group_rows;  // rows of the group that count
  bool active;     // this block has work
  bool shared;     // so has its peer, on the same weights or rows
};

// The list of pairs of tiles, dealt to clusters in turn.
template <Grouping kGrouping, Share kShare, int kTileColumns>
class RowTileWalk {
 public:
  __device__ RowTileWalk(const KernelArgs& args, int rank)
      : args_(args), rank_(rank), item_(blockIdx.x / 2), step_(gridDim.x / 2) {
    const int tiles = (args.n + kTileColumns - 1) / kTileColumns;
    n_pairs_ = kShare == Share::kWeights ? tiles : (tiles + 1) / 2;
    set_rows(kGrouping == Grouping::kMasked ? 0 : args.rows);
    if (kGrouping == Grouping::kMasked) set_rows(args.group_rows[0]);
  }

  __device__ bool next(RowTile& tile) {
    while (item_ - first_item_ >= m_pairs_ * n_pairs_) {
      if (kGrouping == Grouping::kContiguous || ++group_ >= args_.groups) return false;
      first_item_ += m_pairs_ * n_pairs_;
      if (kGrouping == Grouping::kMasked) set_rows(args_.group_rows[group_]);
    }
    place(item_ - first_item_, tile);
    item_ += step_;
    return true;
  }

 private:
  // Bands of pairs of rows, all columns of a band before the next one: what runs at a time is nearly square, so that
  // L2 holds its rows and columns.
  static constexpr int kBand = kShare == Share::kWeights ? 8 : 16;

  __device__ void set_rows(int rows) {
    group_rows_ = min(max(rows, 0), args_.rows);
    const int tiles = (group_rows_ + kTileRows - 1) / kTileRows;
    m_pairs_ = kShare == Share::kWeights ? (tiles + 1) / 2 : tiles;
  }

  __device__ void place(int item, RowTile& tile) const {
    const int band_first = item / (kBand * n_pairs_) * kBand;
    const int width = min(kBand, m_pairs_ - band_first);
    const int in_band = item - band_first * n_pairs_;
    const int m_pair = band_first + in_band % width;
    const int n_pair = in_band / width;
    const int m_tile = kShare == Share::kWeights ? 2 * m_pair + rank_ : m_pair;
    const int n_tile = kShare == Share::kWeights ? n_pair : 2 * n_pair + rank_;
    tile.group = group_;
    tile.row = m_tile * kTileRows;
    tile.column = n_tile * kTileColumns;
    tile.group_rows = group_rows_;
    tile.active = tile.row < group_rows_ && tile.column < args_.n;
    const int peer_row = kShare == Share::kWeights ? (m_tile ^ 1) * kTileRows : tile.row;
    const int peer_column = kShare == Share::kWeights ? tile.column : (n_tile ^ 1) * kTileColumns;
    tile.shared = tile.active && peer_row < group_rows_ && peer_column < args_.n;
    if (kGrouping == Grouping::kContiguous) {
      tile.group = tile.active ? args_.row_ids[tile.row] : -1;
      tile.active = tile.group >= 0 && tile.group < args_.groups;
      tile.shared = tile.shared && tile.active && args_.row_ids[peer_row] == tile.group;
    }
  }

  const KernelArgs& args_;
  int rank_;
  int item_;
  int step_;
  int n_pairs_;
  int m_pairs_;
  int group_rows_;
  int group_ = 0;
  int first_item_ = 0;
};

// One math warp's part of the results: 16 rows of kN columns, through its own 2 KB of shared memory so that rows are
// written in whole lines. `sums` as wgmma leaves them.
template <int kN, Grouping kGrouping>
__device__ inline void write_rows(const KernelArgs& args, const RowTile& tile, const float* sums, uint32_t out, int row,
                                  int column) {
  const int lane = threadIdx.x % 32;
  __nv_bfloat16* y = static_cast<__nv_bfloat16*>(args.y);
  if (kGrouping != Grouping::kContiguous) y += tile.group * args.y_group_stride;
  const uint32_t store_row = lane % 8 + lane / 8 % 2 * 8;
#pragma unroll
  for (int begin = 0; begin < kN / 8; begin += 8) {
    constexpr int kUnits = kN / 8;
    const int units = begin + 8 <= kUnits ? 8 : kUnits - begin;
#pragma unroll
    for (int unit = 0; unit < units; unit += 2) {
      const float* a = sums + (begin + unit) * 4;
      const float* b = unit + 1 < units ? a + 4 : a;
      const uint32_t chunk = (unit + lane / 16) ^ (store_row % 8);
      store_matrix(out + store_row * 128 + chunk * 16, pack_bf16(a[0], a[1]), pack_bf16(a[2], a[3]),
                   pack_bf16(b[0], b[1]), pack_bf16(b[2], b[3]));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int in_warp = i * 4 + lane / 8;
      const int unit = lane % 8;
      const uint4 value = load_shared(out + in_warp * 128 + ((unit ^ (in_warp % 8)) * 16));
      const int r = row + in_warp;
      const int c = column + (begin + unit) * 8;
      bool valid = unit < units && r < tile.group_rows && c < args.n;
      if (kGrouping == Grouping::kContiguous) valid = valid && args.row_ids[r] >= 0;
      if (valid) *reinterpret_cast<uint4*>(y + r * args.y_row_stride + c) = value;
    }
    __syncwarp();
  }
}

template <int kN, Grouping kGrouping, Share kShare>
__global__ void __launch_bounds__(kManyRowsThreads, 1)
    many_rows_kernel(const __grid_constant__ KernelArgs args, const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ CUtensorMap scale_map, const __grid_constant__ CUtensorMap w_map) {
  using Shared = ManyRowsShared<kN>;
  constexpr int kStages = Shared::kStages;
  constexpr uint32_t kStageBytes = Shared::kStageX + Shared::kStageW + Shared::kStageScales;
  extern __shared__ uint8_t shared_raw[];
  const uint32_t base = (shared_address(shared_raw) + 1023) / 1024 * 1024;
  const uint32_t x_ring = base;
  const uint32_t w_ring = x_ring + kStages * Shared::kStageX;
  const uint32_t out = w_ring + kStages * Shared::kStageW;
  const uint32_t scale_ring = out + Shared::kOut;
  const uint32_t full = scale_ring + kStages * Shared::kStageScales;
  const uint32_t empty = full + kStages * 8;

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  if (warp == 8 && elect_one()) {
    prefetch_tensor_map(&x_map);
    prefetch_tensor_map(&scale_map);
    prefetch_tensor_map(&w_map);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(full + i * 8, 1);
      barrier_init(empty + i * 8, 2 * 8);  // the math warps of both blocks
    }
    barrier_init_fence();
  }
  cluster_sync();

  RowTileWalk<kGrouping, kShare, 2 * kN> walk(args, rank);
  RowTile tile;
  int stage = 0;
  uint32_t phase = 0;
  const auto advance = [&] {
    if (++stage == kStages) {
      stage = 0;
      phase ^= 1;
    }
  };

  if (warp >= 8) {
    registers_lower<40>();
    if (warp == 8 && elect_one()) {
      while (walk.next(tile)) {
        const int x_group = kGrouping == Grouping::kContiguous ? 0 : tile.group;
        for (int g = 0; g < args.k_groups; ++g, advance()) {
          const uint32_t ready = full + stage * 8;
          const uint32_t x = x_ring + stage * Shared::kStageX;
          const uint32_t w = w_ring + stage * Shared::kStageW;
          barrier_wait_cluster(empty + stage * 8, phase ^ 1);
          if (!tile.active) {
            barrier_arrive(ready);
            continue;
          }
          barrier_arrive_expect(ready, kStageBytes);
          tma_load(scale_ring + stage * Shared::kStageScales, &scale_map, ready, tile.row, g, x_group);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t x_half = x + half * Shared::kStageX / 2;
            const int x_row = tile.row + half * 64;
            if (kShare == Share::kWeights || !tile.shared) {
              tma_load(x_half, &x_map, ready, g * 128, x_row, x_group);
            } else if (half == rank) {
              tma_load_multicast(x_half, &x_map, ready, g * 128, x_row, x_group, 3);
            }
            const uint32_t w_half = w + half * Shared::kStageW / 2;
            const int w_row = tile.column + half * kN;
            if (kShare == Share::kRows || !tile.shared) {
              tma_load(w_half, &w_map, ready, g * 128, w_row, tile.group);
            } else if (half == rank) {
              tma_load_multicast(w_half, &w_map, ready, g * 128, w_row, tile.group, 3);
            }
          }
        }
      }
    }
  } else {
    registers_raise<232>();
    const int warpgroup = warp / 4;
    const int row_in_wave = warp % 4 * 16 + lane / 4;
    const uint32_t warp_out = out + warp * 2048;
    const int n_blocks = (args.n + 127) / 128;
    while (walk.next(tile)) {
      const int column = tile.column + warpgroup * kN;
      if (!tile.active || column >= args.n) {
        for (int g = 0; g < args.k_groups; ++g, advance()) {
          barrier_wait(full + stage * 8, phase);
          if (lane < 2) barrier_arrive_at(empty + stage * 8, lane);
        }
        continue;
      }
      // A warpgroup's columns lie in one block of weight scales, or, if kN is no divisor of 128, in two.
      const float* w_scales = args.w_scales + (int64_t{tile.group} * n_blocks + column / 128) * args.k_groups;
      const int second = column / 128 + 1 < n_blocks ? args.k_groups : 0;
      const int first_units = kN == 128 ? kN / 8 : (128 - column % 128) / 8;
      float w_scale_lane = 0.0f, w_scale2_lane = 0.0f;
      float sums[2][kN / 2] = {};
      for (int g = 0; g < args.k_groups; ++g, advance()) {
        if (g % 32 == 0) {
          const int at = min(g + lane, args.k_groups - 1);
          w_scale_lane = __ldg(w_scales + at);
          if (kN != 128) w_scale2_lane = __ldg(w_scales + second + at);
        }
        const float w_scale = __shfl_sync(0xffffffff, w_scale_lane, g % 32);
        const float w_scale2 = kN != 128 ? __shfl_sync(0xffffffff, w_scale2_lane, g % 32) : w_scale;
        barrier_wait(full + stage * 8, phase);
        const uint64_t w = operand_descriptor(w_ring + stage * Shared::kStageW + warpgroup * kN * 128);
        const uint32_t x_scales = scale_ring + stage * Shared::kStageScales + row_in_wave * 4;
        float x_scale[2][2];
#pragma unroll
        for (int wave = 0; wave < 2; ++wave) {
          x_scale[wave][0] = load_shared_f32(x_scales + wave * 256);
          x_scale[wave][1] = load_shared_f32(x_scales + wave * 256 + 32);
        }
#pragma unroll
        for (int wave = 0; wave < 2; ++wave) {
          const uint64_t x = operand_descriptor(x_ring + stage * Shared::kStageX + wave * 64 * 128);
          float acc[kN / 2];
          wgmma_fence(acc);
          wgmma_arrive();
#pragma unroll
          for (int k = 0; k < 4; ++k) Wgmma<kN>::mma(acc, x + k * 2, w + k * 2, k > 0);
          wgmma_commit();
          wgmma_fence(acc);
          wgmma_wait<0>();
          wgmma_fence(acc);
          if (wave == 1 && lane < 2) barrier_arrive_at(empty + stage * 8, lane);
          const float upper = x_scale[wave][0] * w_scale, lower = x_scale[wave][1] * w_scale;
          const float upper2 = x_scale[wave][0] * w_scale2, lower2 = x_scale[wave][1] * w_scale2;
#pragma unroll
          for (int unit = 0; unit < kN / 8; ++unit) {
            const bool first = kN == 128 || unit < first_units;
            sums[wave][unit * 4 + 0] += acc[unit * 4 + 0] * (first ? upper : upper2);
            sums[wave][unit * 4 + 1] += acc[unit * 4 + 1] * (first ? upper : upper2);
            sums[wave][unit * 4 + 2] += acc[unit * 4 + 2] * (first ? lower : lower2);
            sums[wave][unit * 4 + 3] += acc[unit * 4 + 3] * (first ? lower : lower2);
          }
        }
      }
#pragma unroll
      for (int wave = 0; wave < 2; ++wave) {
        write_rows<kN, kGrouping>(args, tile, sums[wave], warp_out, tile.row + wave * 64 + warp % 4 * 16, column);
      }
    }
  }
  __syncwarp();
  cluster_sync();  // a block leaves when its peer no longer arrives at its barriers
}

}  // namespace moesaic::cuda
