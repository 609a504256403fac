// y = x W^T in FP8 for few rows: bound by reading W. A block computes tiles of kTokens rows by 64 or 128 columns: one
// producer thread fills a ring of k groups by TMA, deep enough to keep memory busy; a math warpgroup multiplies one k
// group while it adds the last one's result, scaled, to its f32 sums. Up to 32 rows the operands change places: rows of
// W are wgmma's M, which is 64 at least, rows of x its N, which may be 8. From 64 on rows are M: a thread has two of
// them, hence two scales, instead of a quarter of all.
//
// Where an SM has one small tile, two warpgroups divide its k groups (`kParts`): one alone spends longer on the steps
// of a product, which follow one another, than its operands take to arrive.
//
// With `split` > 1, a cluster of that many blocks shares a tile: each takes a run of k groups, and SplitSums adds them
// in the order of k: the same bits in every run. Then a cluster has one tile; without, blocks walk over tiles.
#pragma once

#include <algorithm>

#include "kernels/cuda/gemm/kernel_args.h"
#include "kernels/cuda/gemm/split_sums.cuh"
#include "kernels/cuda/gemm/weight_scales.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace moesaic::cuda {

template <int kTokens, int kColumns, int kParts>
struct FewRowsShared {
  static constexpr bool kRowsAreM = kTokens >= 64;
  // A warpgroup has 64 columns and all rows, or, of 128 rows, 64 and all columns.
  static constexpr bool kByRows = kTokens == 128;
  static constexpr int kTileWarpgroups = kByRows || kColumns == 128 ? 2 : 1;
  static constexpr int kWarpgroups = kTileWarpgroups * kParts;
  static constexpr int kN = !kRowsAreM ? kTokens : kByRows || kColumns < 64 ? kColumns : 64;
  // Large tiles get most of an SM's registers, through setmaxnreg, which counts in warpgroups; others share the SM with
  // more blocks.
  static constexpr bool kWholeSm = kTokens >= 64 && kColumns == 128;
  static constexpr int kBlocksPerSm = kTokens == 128 || kWholeSm || kParts > 1 ? 1
                                      : kTokens == 64 || kColumns == 128       ? 2
                                                                               : 3;
  static constexpr int kThreads = kWarpgroups * 128 + (kWholeSm ? 128 : 32);
  static constexpr int kStageX = kTokens * 128;
  static constexpr int kStageW = kColumns * 128;
  static constexpr int kStageScales = (kTokens * 4 + 127) / 128 * 128;
  static constexpr int kStage = kStageX + kStageW + kStageScales;
  // A math warp's results, or some of them; before, its sums of the second part.
  static constexpr int kOutWarp = kTokens < 32 ? kTokens * 32 : kParts > 1 ? kN * 64 : 1024;
  static constexpr int kOut = kTileWarpgroups * 4 * kOutWarp;
  static constexpr int kBarriers = 384;
  static constexpr int kFixed = kOut + kBarriers + 1024;
  static constexpr int kBudget = (233472 / kBlocksPerSm - 1024) / 1024 * 1024;  // 228 KB, 1 KB of each block taken
  static constexpr int kFit = (kBudget - kFixed) / kStage;
  // A stage is always the same part's: whoever waits for a phase of its barrier must have seen the one before, as a
  // phase is told by its parity alone.
  static constexpr int kStages = std::min(kFit, 20) / kParts * kParts;
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

// A math warp's results, 16 columns of kTokens rows from (row, column), through its own shared memory, 32 bytes a row.
template <int kTokens>
__device__ inline void write_columns(const KernelArgs& args, const ColumnTile& tile, const float* sums, uint32_t out,
                                     int row, int column) {
  constexpr int kAtOnce = kTokens < 32 ? kTokens : 32;
  const int lane = threadIdx.x % 32;
  __nv_bfloat16* y = static_cast<__nv_bfloat16*>(args.y) + tile.group * args.y_group_stride;
#pragma unroll
  for (int begin = 0; begin < kTokens; begin += kAtOnce) {
#pragma unroll
    for (int t = 0; t < kAtOnce; t += 8) {
      const float* a = sums + (begin + t) / 2;
      store_matrices_transposed(out + (t + lane % 8) * 32 + lane / 8 % 2 * 16, pack_bf16(a[0], a[1]),
                                pack_bf16(a[2], a[3]));
    }
    __syncwarp();
#pragma unroll
    for (int i = lane; i < kAtOnce * 2; i += 32) {
      const uint4 value = load_shared(out + i * 16);
      const int r = row + begin + i / 2, c = column + i % 2 * 8;
      if (r < tile.rows && c < args.n) *reinterpret_cast<uint4*>(y + r * args.y_row_stride + c) = value;
    }
    __syncwarp();
  }
}

// The same of 16 rows of kN columns: 32 columns at a time, 64 bytes a row.
template <int kN>
__device__ inline void write_rows(const KernelArgs& args, const ColumnTile& tile, const float* sums, uint32_t out,
                                  int row, int column) {
  const int lane = threadIdx.x % 32;
  __nv_bfloat16* y = static_cast<__nv_bfloat16*>(args.y) + tile.group * args.y_group_stride;
  const auto at = [&](int r, int unit) { return out + r * 64 + (unit ^ (r / 2 % 4)) * 16; };  // no bank conflicts
#pragma unroll
  for (int begin = 0; begin < kN; begin += 32) {
#pragma unroll
    for (int unit = 0; unit < 4; unit += 2) {
      const float* a = sums + (begin / 8 + unit) * 4;
      store_matrices(at(lane % 16, unit + lane / 16), pack_bf16(a[0], a[1]), pack_bf16(a[2], a[3]),
                     pack_bf16(a[4], a[5]), pack_bf16(a[6], a[7]));
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int r = i * 8 + lane / 4, unit = lane % 4;
      const uint4 value = load_shared(at(r, unit));
      const int c = column + begin + unit * 8;
      if (row + r < tile.rows && c < args.n) *reinterpret_cast<uint4*>(y + (row + r) * args.y_row_stride + c) = value;
    }
    __syncwarp();
  }
}

// sums += acc * x_scale[row] * w_scale, of the product that has rows as its N: a thread has two neighbouring rows of
// every 8.
template <int kTokens>
__device__ inline void add_scaled_columns(float (&sums)[kTokens / 2], const float (&acc)[kTokens / 2],
                                          uint32_t x_scales, float w_scale) {
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

// The same of the product that has rows as its M: a thread has two rows.
template <int kN>
__device__ inline void add_scaled_rows(float (&sums)[kN / 2], const float (&acc)[kN / 2], uint32_t x_scales,
                                       float w_scale) {
  const float upper = load_shared_f32(x_scales) * w_scale, lower = load_shared_f32(x_scales + 32) * w_scale;
#pragma unroll
  for (int i = 0; i < kN / 8; ++i) {
    sums[i * 4 + 0] += acc[i * 4 + 0] * upper;
    sums[i * 4 + 1] += acc[i * 4 + 1] * upper;
    sums[i * 4 + 2] += acc[i * 4 + 2] * lower;
    sums[i * 4 + 3] += acc[i * 4 + 3] * lower;
  }
}

// Starts acc = the product of one k group, 64 rows of operand `m` by kN rows of operand `n`.
template <int kN>
__device__ inline void start_multiply(float (&acc)[kN / 2], uint32_t m, uint32_t n) {
  const WgmmaOperand m_operand = wgmma_operand(m), n_operand = wgmma_operand(n);
  pin(acc);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 4; ++k) wgmma_ss_e4m3<kN>(acc, m_operand + k * 32, n_operand + k * 32, k > 0);
  wgmma_commit();
  pin(acc);
}

template <int kTokens, int kColumns, int kParts, Grouping kGrouping>
__global__ void __launch_bounds__(FewRowsShared<kTokens, kColumns, kParts>::kThreads,
                                  FewRowsShared<kTokens, kColumns, kParts>::kBlocksPerSm)
    few_rows_kernel(const __grid_constant__ KernelArgs args, const __grid_constant__ CUtensorMap x_map,
                    const __grid_constant__ CUtensorMap scale_map, const __grid_constant__ CUtensorMap w_map,
                    const int split, const int share) {
  using Shared = FewRowsShared<kTokens, kColumns, kParts>;
  constexpr int kStages = Shared::kStages;
  constexpr int kWarpgroups = Shared::kWarpgroups;
  constexpr int kN = Shared::kN;
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
  constexpr int kReady = 1, kSummed = 2, kPartDone = 3;  // named barriers

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
  const auto advance = [&](int by) {
    stage += by;
    if (stage >= kStages) {
      stage -= kStages;
      phase ^= 1;
    }
  };
  // Each part is a run of k groups; they are loaded in turns.
  const auto part_begin = [&](int p) { return k_begin + ((k_end - k_begin) * p + kParts - 1) / kParts; };

  if (warp >= kWarpgroups * 4) {
    if constexpr (Shared::kWholeSm) fewer_registers<40>();
    if (warp == kWarpgroups * 4) {
      const bool elected = elect_one();
      if (elected) {
        for (int i = 0; i < kStages; ++i) {
          barrier_init(full + i * 8, 1);
          barrier_init(empty + i * 8, Shared::kTileWarpgroups * 4);
        }
        barrier_init(received, 1);
        barrier_init_fence();
      }
      __syncwarp();
      named_arrive(kReady, kMathThreads + 32);
      if (elected) {
        while (walk.next(tile)) {
          for (int i = 0; i < k_end - k_begin; ++i, advance(1)) {
            const int g = part_begin(i % kParts) + i / kParts;
            const uint32_t ready = full + stage * 8;
            barrier_wait_short(empty + stage * 8, phase ^ 1);
            barrier_expect(ready, kStageBytes);
            const uint32_t w = w_ring + stage * Shared::kStageW;
            // Read once, or by blocks that run at the same time. A masked GEMM's weights, many times L2, come faster
            // without the hint.
            if (kGrouping == Grouping::kDense) {
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
  const int part = kParts > 1 ? warp / 4 : 0, tile_warp = kParts > 1 ? warp % 4 : warp;
  const int part_end = part_begin(part + 1);
  k_begin = part_begin(part);
  k_end = part_end;
  stage = part;
  // Where the warpgroup's piece of a tile begins, and the warp's.
  const int first_row = Shared::kByRows ? tile_warp / 4 * 64 : 0;
  const int first_column = Shared::kByRows ? 0 : tile_warp / 4 * 64;
  const int warp_row = first_row + (Shared::kRowsAreM ? warp % 4 * 16 : 0);
  const int warp_column = first_column + (Shared::kRowsAreM ? 0 : warp % 4 * 16);
  const int n_blocks = (args.n + 127) / 128;
  int done = part;  // the stage that is given back next
  while (walk.next(tile)) {
    const int block = min((tile.column + first_column) / 128, n_blocks - 1);
    WeightScales w_scales;
    w_scales.start(args.w_scales + (int64_t{tile.group} * n_blocks + block) * args.k_groups, k_begin, k_end);
    float sums[kN / 2] = {};
    const auto start = [&](float(&acc)[kN / 2]) {
      barrier_wait_short(full + stage * 8, phase);
      const uint32_t w = w_ring + stage * Shared::kStageW + first_column * 128;
      const uint32_t x = x_ring + stage * Shared::kStageX + first_row * 128;
      if constexpr (Shared::kRowsAreM) {
        start_multiply<kN>(acc, x, w);
      } else {
        start_multiply<kN>(acc, w, x);
      }
      advance(kParts);
    };
    const auto finish = [&](float(&acc)[kN / 2], int g) {
      pin(acc);
      const uint32_t x_scales = scale_ring + done * Shared::kStageScales;
      if (g > k_begin && (g - k_begin) % 32 == 0) w_scales.advance();
      const float w_scale = w_scales.get(g - k_begin);
      if constexpr (Shared::kRowsAreM) {
        add_scaled_rows<kN>(sums, acc, x_scales + (warp_row + lane / 4) * 4, w_scale);
      } else {
        add_scaled_columns<kN>(sums, acc, x_scales + lane % 4 * 8, w_scale);
      }
      __syncwarp();
      if (lane == 0) barrier_arrive(empty + done * 8);
      done += kParts;
      if (done >= kStages) done -= kStages;
    };
    float acc[kN / 2], other[kN / 2];
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
    const uint32_t warp_out = out + tile_warp * Shared::kOutWarp;
    if constexpr (kParts > 1) {
      const uint32_t at = warp_out + lane * 16;
      if (part > 0) {
#pragma unroll
        for (int i = 0; i < kN / 2; i += 4) store_shared_f32x4(at + i * 128, &sums[i]);
      }
      named_sync(kPartDone, kMathThreads);
      if (part > 0 && split == 1) break;
#pragma unroll
      for (int i = 0; i < kN / 2; i += 4) {
        const float4 second = load_shared_f32x4(at + i * 128);
        sums[i] += second.x;
        sums[i + 1] += second.y;
        sums[i + 2] += second.z;
        sums[i + 3] += second.w;
      }
      __syncwarp();
    }
    if (split == 1) {
      if constexpr (Shared::kRowsAreM) {
        write_rows<kN>(args, tile, sums, warp_out, tile.row + warp_row, tile.column + warp_column);
      } else {
        write_columns<kN>(args, tile, sums, warp_out, tile.row + warp_row, tile.column + warp_column);
      }
      continue;
    }
    cluster_arrive();  // this block's ring is free
    named_sync(kSummed, kMathThreads);
    if (part == 0) {
#pragma unroll
      for (int i = 0; i < kN / 2; i += 2) {
        // wgmma leaves a thread two neighbours in N of two rows of M.
        const int m = lane / 4 + i / 2 % 2 * 8, n = i / 4 * 8 + lane % 4 * 2;
        if constexpr (Shared::kRowsAreM) {
          const uint32_t to = base + (warp_row + m) * Shared::kSumPitch + (warp_column + n) * 4;
          store_shared_f32x2(to, sums[i], sums[i + 1]);
        } else {
          const uint32_t to = base + n * Shared::kSumPitch + (warp_column + m) * 4;
          store_shared_f32(to, sums[i]);
          store_shared_f32(to + Shared::kSumPitch, sums[i + 1]);
        }
      }
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
