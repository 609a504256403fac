// y = x W^T in FP8 for many rows: bound by the tensor cores. Rows of x are wgmma's M, rows of W its N.
//
// A persistent grid of clusters of two blocks. A block computes tiles of 128 rows: one producer thread fills a ring of
// k groups by TMA, two math warpgroups multiply 64 rows by kN columns and add the result, scaled, to their f32 sums:
// while one adds, the other keeps the tensor cores busy. kN = 128: tiles of 256 columns, a warpgroup has half of them
// and the rows in two waves. kN = 192: a warpgroup has all columns and half of the rows. What both blocks of the
// cluster need (Share) crosses L2 once. Warpgroups end their tiles independently: while one writes its results, in
// boxes of 64 rows through the copy engine, the other still multiplies. What the next tile needs is found while the
// last k group of a tile is multiplied.
//
// Both blocks of a cluster walk the same list of pairs of tiles. A block without work in a pair (beyond the matrix,
// padding) steps through the ring's barriers all the same, so that its peer never waits for it.
#pragma once

#include "kernels/cuda/gemm/kernel_args.h"
#include "kernels/cuda/gemm/weight_scales.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace moesaic::cuda {

inline constexpr int kTileRows = 128;
inline constexpr int kManyRowsThreads = 384;

template <int kN>
struct ManyRowsShared {
  static constexpr int kStageX = kTileRows * 128;
  // A warpgroup's columns: half of 256 with all rows, or all of 192 with half of the rows.
  static constexpr bool kByRows = kN > 128;
  static constexpr int kWaves = kByRows ? 1 : 2;
  static constexpr int kTileColumns = kByRows ? kN : 2 * kN;
  static constexpr int kStageW = kTileColumns * 128;
  static constexpr int kStageScales = kTileRows * 4;
  // A stage of the ring: rows, columns, the rows' scales, two barriers. One offset finds all of it.
  static constexpr int kW = kStageX;
  static constexpr int kScales = kW + kStageW;
  static constexpr int kFull = kScales + kStageScales;
  static constexpr int kEmpty = kFull + 8;
  static constexpr int kStage = kScales + 1024;
  static constexpr int kOutWave = 64 * kN * 2;  // bf16 results of a warpgroup and wave
  static constexpr int kOut = 2 * kWaves * kOutWave;
  static constexpr int kStages = (232448 - 1024 - kOut) / kStage;
  static constexpr int kRing = kStages * kStage;
  static constexpr int kBytes = 1024 + kRing + kOut;
};

struct RowTile {
  int group;       // contiguous: the raw id of the first row
  int peer_group;  // contiguous: that of the peer's first row
  int row;         // first row within the group
  int column;      // first of the block's columns
  int group_rows;  // rows of the group that count
  bool inside;     // within the matrix
  bool peer_inside;
};

// Ids are loaded when a tile is found and looked at when it begins: by then they have arrived.
// Whether this block has work.
template <Grouping kGrouping>
__device__ inline bool is_active(const KernelArgs& args, const RowTile& tile) {
  return tile.inside && (kGrouping != Grouping::kContiguous || (tile.group >= 0 && tile.group < args.groups));
}

// Whether its peer, then, has work on the same weights or rows.
template <Grouping kGrouping>
__device__ inline bool is_shared(const RowTile& tile) {
  return tile.inside && tile.peer_inside && (kGrouping != Grouping::kContiguous || tile.group == tile.peer_group);
}

// The list of pairs of tiles, dealt to clusters in turn.
template <Grouping kGrouping, Share kShare, int kTileColumns>
class RowTileWalk {
 public:
  __device__ RowTileWalk(const KernelArgs& args, int rank)
      : args_(args), rank_(rank), item_(blockIdx.x / 2), step_(gridDim.x / 2) {
    const int tiles = (args.n + kTileColumns - 1) / kTileColumns;
    n_pairs_ = kShare == Share::kWeights ? tiles : (tiles + 1) / 2;
    set_rows(kGrouping == Grouping::kMasked ? args.group_rows[0] : args.rows);
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
    tile.row = m_tile * kTileRows;
    tile.column = n_tile * kTileColumns;
    tile.group_rows = group_rows_;
    const int peer_row = kShare == Share::kWeights ? (m_tile ^ 1) * kTileRows : tile.row;
    const int peer_column = kShare == Share::kWeights ? tile.column : (n_tile ^ 1) * kTileColumns;
    tile.inside = tile.row < group_rows_ && tile.column < args_.n;
    tile.peer_inside = peer_row < group_rows_ && peer_column < args_.n;
    tile.group = group_;
    if (kGrouping == Grouping::kContiguous) {
      tile.group = tile.inside ? __ldg(args_.row_ids + tile.row) : -1;
      tile.peer_group = tile.peer_inside ? __ldg(args_.row_ids + peer_row) : -1;
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

// Starts acc = 64 rows of x times the transposed columns of w.
template <int kN>
__device__ inline void start_rows(float (&acc)[kN / 2], WgmmaOperand x, WgmmaOperand w) {
  pin(acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_ss_e4m3<kN>(acc, x + k * 32, w + k * 32, k > 0);
  wgmma_commit();
  pin(acc);
}

// What a thread's two rows of 64 by kN products are multiplied with: for 128 columns one pair, for 192 one for each 64
// columns. Pairs, because from single values the compiler makes an order of additions that takes 192 columns 1 to 2 %
// longer.
template <int kN>
struct RowScales {
  uint64_t of[kN == 128 ? 1 : 3];
};

// sums += acc, scaled.
template <int kN>
__device__ inline void add_rows(float (&sums)[kN / 2], const float (&acc)[kN / 2], const RowScales<kN>& scales) {
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    float upper, lower;
    unpack_f32x2(scales.of[kN == 128 ? 0 : i / 32], upper, lower);
    sums[i] += acc[i] * (i / 2 % 2 == 0 ? upper : lower);
  }
}

// Where 8 columns of one of a warpgroup's 64 rows lie, as the store's tensor map expects them: boxes of 64 columns in
// 128-byte swizzle.
__device__ inline uint32_t out_offset(uint32_t row, uint32_t unit) {
  return unit / 8 * 8192 + row * 128 + ((unit % 8) ^ (row % 8)) * 16;
}

// Puts a math warp's 16 rows of kN columns, as wgmma leaves them, into shared memory at `out`.
template <int kN>
__device__ inline void stage_rows(const float* sums, uint32_t out) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t row = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (uint32_t unit = 0; unit < kN / 8; unit += 2) {
    const float* a = sums + unit * 4;
    store_matrices(out + out_offset(row, unit + lane / 16), pack_bf16(a[0], a[1]), pack_bf16(a[2], a[3]),
                   pack_bf16(a[4], a[5]), pack_bf16(a[6], a[7]));
  }
}

// Writes a math warp's rows, of which the first is `row`, up to `row_end`, without the copy engine, which would write
// all 64 of the warpgroup.
template <int kN>
__device__ inline void write_some_rows(const KernelArgs& args, __nv_bfloat16* y, uint32_t out, int row, int row_end,
                                       int column) {
  const int rows = min(16, row_end - row);
  for (int i = threadIdx.x % 32; i < rows * (kN / 8); i += 32) {
    const int r = i / (kN / 8), unit = i % (kN / 8);
    if (column + unit * 8 >= args.n) continue;
    *reinterpret_cast<uint4*>(y + (row + r) * args.y_row_stride + column + unit * 8) =
        load_shared(out + out_offset(threadIdx.x / 32 % 4 * 16 + r, unit));
  }
}

template <int kN, Grouping kGrouping, Share kShare>
__global__ void __launch_bounds__(kManyRowsThreads, 1)
    many_rows_kernel(const __grid_constant__ KernelArgs args, const __grid_constant__ CUtensorMap x_map,
                     const __grid_constant__ CUtensorMap scale_map, const __grid_constant__ CUtensorMap w_map,
                     const __grid_constant__ CUtensorMap y_map) {
  using Shared = ManyRowsShared<kN>;
  constexpr uint32_t kStageBytes = Shared::kStageX + Shared::kStageW + Shared::kStageScales;
  extern __shared__ uint8_t shared_raw[];
  const uint32_t ring = (shared_address(shared_raw) + 1023) / 1024 * 1024;
  const uint32_t out = ring + Shared::kRing;

  const int warp = __shfl_sync(0xffffffff, threadIdx.x / 32, 0);
  const int lane = threadIdx.x % 32;
  const int rank = static_cast<int>(cluster_rank());
  if (warp == 8 && elect_one()) {
    prefetch_tensor_map(&x_map);
    prefetch_tensor_map(&scale_map);
    prefetch_tensor_map(&w_map);
    prefetch_tensor_map(&y_map);
    for (uint32_t stage = ring; stage < out; stage += Shared::kStage) {
      barrier_init(stage + Shared::kFull, 1);
      barrier_init(stage + Shared::kEmpty, 2 * 8);  // the math warps of both blocks
    }
    barrier_init_fence();
  }
  cluster_sync_relaxed();

  RowTileWalk<kGrouping, kShare, Shared::kTileColumns> walk(args, rank);
  RowTile tile;
  uint32_t at = 0;  // this stage's offset in the ring
  uint32_t phase = 0;
  const auto advance = [&] {
    at += Shared::kStage;
    if (at == Shared::kRing) {
      at = 0;
      phase ^= 1;
    }
  };

  if (warp >= 8) {
    fewer_registers<40>();
    if (warp == 8 && elect_one()) {
      while (walk.next(tile)) {
        const bool active = is_active<kGrouping>(args, tile), shared = is_shared<kGrouping>(tile);
        const int x_group = kGrouping == Grouping::kContiguous ? 0 : tile.group;
        for (int g = 0; g < args.k_groups; ++g, advance()) {
          const uint32_t x = ring + at, w = x + Shared::kW, ready = x + Shared::kFull;
          barrier_wait_short(x + Shared::kEmpty, phase ^ 1);
          if (!active) {
            barrier_arrive(ready);
            continue;
          }
          barrier_expect(ready, kStageBytes);
          tma_load_3d(x + Shared::kScales, &scale_map, tile.row, g, x_group, ready);
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint32_t x_half = x + half * Shared::kStageX / 2;
            const int x_row = tile.row + half * 64;
            if (kShare == Share::kWeights || !shared) {
              tma_load_3d(x_half, &x_map, g * 128, x_row, x_group, ready);
            } else if (half == rank) {
              tma_load_multicast(x_half, &x_map, g * 128, x_row, x_group, ready, 3);
            }
            const uint32_t w_half = w + half * Shared::kStageW / 2;
            const int w_row = tile.column + half * Shared::kTileColumns / 2;
            if (kShare == Share::kRows || !shared) {
              tma_load_3d(w_half, &w_map, g * 128, w_row, tile.group, ready);
            } else if (half == rank) {
              tma_load_multicast(w_half, &w_map, g * 128, w_row, tile.group, ready, 3);
            }
          }
        }
      }
    }
  } else {
    more_registers<232>();
    const int warpgroup = warp / 4;
    const int first_row = Shared::kByRows ? warpgroup * 64 : 0;
    const int first_column = Shared::kByRows ? 0 : warpgroup * kN;
    const WgmmaOperand x_first = wgmma_operand(ring + first_row * 128);
    const WgmmaOperand w_first = wgmma_operand(ring + Shared::kW + first_column * 128);
    const uint32_t scales_first = ring + Shared::kScales + (first_row + warp % 4 * 16 + lane / 4) * 4;
    const uint32_t full_first = ring + Shared::kFull;
    // Lanes 0 and 1 tell both blocks that a stage was read.
    const uint32_t empty_first = address_in_block(ring + Shared::kEmpty, lane % 2);
    const uint32_t group_out = out + warpgroup * Shared::kWaves * Shared::kOutWave;
    const bool leads = threadIdx.x % 128 == 0;  // this warpgroup's stores
    const int n_blocks = (args.n + 127) / 128;
    WeightScales w_scales, w_scales2;
    // 128 columns lie in one block of weight scales, 192 in two.
    const auto start_scales = [&](const RowTile& t) {
      const int column = t.column + first_column;
      if (!is_active<kGrouping>(args, t) || column >= args.n) return;
      const int64_t block = int64_t{t.group} * n_blocks + column / 128;
      w_scales.start(args.w_scales + block * args.k_groups, 0, args.k_groups);
      if (kN == 128) return;
      const int64_t second = column / 128 + 1 < n_blocks ? block + 1 : block;
      w_scales2.start(args.w_scales + second * args.k_groups, 0, args.k_groups);
    };
    const auto release = [&](uint32_t stage) {
      if (lane < 2) barrier_arrive_at(empty_first + stage);
    };
    bool more = walk.next(tile);
    if (more) start_scales(tile);
    while (more) {
      RowTile following;
      bool more_follow = false;
      const int column = tile.column + first_column;
      if (!is_active<kGrouping>(args, tile) || column >= args.n) {
        for (int g = 0; g < args.k_groups; ++g, advance()) {
          barrier_wait_short(full_first + at, phase);
          release(at);
        }
        more_follow = walk.next(following);
        if (more_follow) start_scales(following);
        tile = following;
        more = more_follow;
        continue;
      }
      int ids[4];
      if (kGrouping == Grouping::kContiguous) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = tile.row + i * 32 + lane;
          ids[i] = r < args.rows ? __ldg(args.row_ids + r) : -1;
        }
      }
      const bool starts_in_half = column % 128 != 0;
      float sums[Shared::kWaves][kN / 2] = {};
      if (kGrouping == Grouping::kContiguous) more_follow = walk.next(following);  // its ids are loaded meanwhile
      barrier_wait_short(full_first + at, phase);
      WgmmaOperand x_at = {x_first.low + at / 16}, w_at = {w_first.low + at / 16};
      // K group `g`, whose operands have arrived. Between two multiplications lie only the additions: with more, both
      // warpgroups together could not keep the tensor cores busy. While the last multiplication of a group runs,
      // `meanwhile` does what is needed later.
      const auto multiply = [&](int g, const auto& meanwhile) {
        const WgmmaOperand x = x_at, w = w_at;
        const uint32_t stage = at;
        float acc[kN / 2];
        start_rows<kN>(acc, x, w);
        const float w_scale = w_scales.get(g);
        RowScales<kN> scales[Shared::kWaves];
        [[maybe_unused]] const float w_scale2 = kN == 128 ? 0.0f : w_scales2.get(g);
#pragma unroll
        for (int i = 0; i < Shared::kWaves; ++i) {
          const float upper = load_shared_f32(scales_first + stage + i * 256);
          const float lower = load_shared_f32(scales_first + stage + i * 256 + 32);
          auto& of = scales[i].of;
          of[0] = pack_f32x2(upper * w_scale, lower * w_scale);
          if constexpr (kN != 128) {
            of[2] = pack_f32x2(upper * w_scale2, lower * w_scale2);
            const float w_scale1 = starts_in_half ? w_scale2 : w_scale;
            of[1] = pack_f32x2(upper * w_scale1, lower * w_scale1);
          }
        }
        if constexpr (Shared::kWaves == 2) {
          wgmma_wait<0>();
          pin(acc);
          add_rows<kN>(sums[0], acc, scales[0]);
          start_rows<kN>(acc, x + 64 * 128, w);
        }
        advance();
        x_at.low = x_first.low + at / 16;
        w_at.low = w_first.low + at / 16;
        meanwhile();
        wgmma_wait<0>();
        pin(acc);
        release(stage);
        add_rows<kN>(sums[Shared::kWaves - 1], acc, scales[Shared::kWaves - 1]);
      };
      const int last = args.k_groups - 1;
      for (int first = 0; first < last; first += 32) {
        const int count = min(last - first, 32);
#pragma unroll(kN == 128 ? 2 : 1)
        for (int i = 0; i < count; ++i) multiply(i, [&] { barrier_wait_short(full_first + at, phase); });
        if (count == 32) {
          w_scales.advance();
          if (kN != 128) w_scales2.advance();
        }
      }
      multiply(last, [&] {
        if (kGrouping != Grouping::kContiguous) more_follow = walk.next(following);
        if (more_follow) start_scales(following);
      });
      int row_end = tile.group_rows;
      if (kGrouping == Grouping::kContiguous) {
        row_end = tile.row;
#pragma unroll
        for (int i = 0; i < 4; ++i) row_end += __popc(__ballot_sync(0xffffffff, ids[i] == tile.group));
      }
      const int y_group = kGrouping == Grouping::kContiguous ? 0 : tile.group;
      if (leads) store_wait_read();  // the last tile's results have left
      named_sync(1 + warpgroup, 128);
#pragma unroll
      for (int wave = 0; wave < Shared::kWaves; ++wave) stage_rows<kN>(sums[wave], group_out + wave * Shared::kOutWave);
      fence_async_shared();
      named_sync(1 + warpgroup, 128);
#pragma unroll
      for (int wave = 0; wave < Shared::kWaves; ++wave) {
        const uint32_t wave_out = group_out + wave * Shared::kOutWave;
        const int row = tile.row + first_row + wave * 64;
        if (row + 64 > row_end) {
          __nv_bfloat16* y = static_cast<__nv_bfloat16*>(args.y) + y_group * args.y_group_stride;
          write_some_rows<kN>(args, y, wave_out, row + warp % 4 * 16, row_end, column);
        } else if (leads) {
#pragma unroll
          for (int box = 0; box < kN / 64; ++box) {
            const int first = column + box * 64;
            if (first < args.n) tma_store(&y_map, wave_out + box * 8192, first, row, y_group);
          }
          store_commit();
        }
      }
      tile = following;
      more = more_follow;
    }
    if (leads) store_wait_read();
  }
  __syncwarp();
  cluster_sync_relaxed();  // a block leaves when its peer no longer arrives at its barriers
}

}  // namespace moesaic::cuda
