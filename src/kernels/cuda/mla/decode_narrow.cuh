// Decode for tiles of 16 or 32 (query, head) rows: bound by memory. A tile of 64 rows would be mostly padding, so the
// operands change places: S^T = K Q^T has the 64 keys of a block as rows of the product, and O^T = V^T P^T the latents.
// Two warpgroups take alternate blocks, each with its own softmax state and all of O^T; at the end of an item each
// merges half of the latents and writes it. A warp of a third warpgroup loads blocks into a ring of stages.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/mla/decode_kernels.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {

constexpr int kNarrowThreads = 384;  // warpgroups 0 and 1 compute, 2 fills the stages
constexpr int kNarrowStages = 2;
constexpr float kNarrowNoMax = -1e30f;  // finite: exp2(-inf - kNarrowNoMax) is 0

enum NarrowBarrier { kWarpgroup = 1, kBoth = 3 };  // kWarpgroup + 0 and + 1: one warpgroup

// N: rows of the tile, 16 or 32.
template <int N>
struct NarrowShared {
  uint8_t stages[kNarrowStages][9][kTileBytes];  // a block each, as tiles of 64 keys x 64 columns
  uint8_t q[9][N * 128];                         // N rows x 64 columns
  uint8_t p[2][N * 128];                         // of a warpgroup: N rows x 64 keys
  float max[2][4][N];                            // of the keys of each warp
  float sum[2][4][N];
  float other_max[2][N], other_sum[2][N];
  uint64_t q_full, q_empty, full[kNarrowStages], empty[kNarrowStages];
};

struct NarrowTask {
  int first_block, num_blocks;
  int kv_len, q_len;
  int first_row;            // of the tile among the sequence's rows
  int row_begin, num_rows;  // of the tile in q and out; those that are the sequence's own
  int least_limit;          // keys that every row sees
};

// The compiler does not see that all threads load the same value, and orders wgmma with care in branches on it.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffff, value, 0);
}

__device__ __forceinline__ NarrowTask narrow_task(const DecodeItem& item, int num_heads, int tile, int rows) {
  NarrowTask task;
  task.first_block = uniform(item.block_begin);
  task.num_blocks = uniform(item.block_end - item.block_begin);
  task.kv_len = uniform(item.kv_len);
  task.q_len = uniform(item.q_len);
  task.first_row = tile * rows;
  task.row_begin = uniform(item.q_begin * num_heads + tile * rows);
  task.num_rows = uniform(min(item.q_len * num_heads - tile * rows, rows));
  task.least_limit = uniform(item.kv_len - item.q_len + 1);
  return task;
}

template <int N>
struct NarrowMath {
  const DecodeParams& params;
  NarrowShared<N>& shared;
  bool converted;  // the stages were filled by ordinary stores
  int warpgroup, warp, lane, thread;
  uint32_t q_parity;
};

// The column of S^T that is this thread's `c`-th: element d[4 (c / 2) + 2 i + c % 2] of a product is in it.
__device__ __forceinline__ int narrow_column(int lane, int c) {
  return c / 2 * 8 + lane % 4 * 2 + c % 2;
}

template <int N>
__device__ __forceinline__ void narrow_mask(const NarrowMath<N>& math, float (&s)[N / 2], const NarrowTask& task,
                                            int first_key) {
  if (first_key + 64 <= task.least_limit) return;
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
    const int query = min((task.first_row + narrow_column(math.lane, c)) / math.params.num_heads, task.q_len - 1);
    const int limit = task.kv_len - (task.q_len - 1 - query);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first_key + 16 * math.warp + math.lane / 4 + 8 * i;
      if (key >= limit) s[c / 2 * 4 + 2 * i + c % 2] = -INFINITY;
    }
  }
}

// Maxima over the block's keys, merged into `max`; `factor` is for what was summed so far.
template <int N>
__device__ __forceinline__ void narrow_max(NarrowMath<N>& math, const float (&s)[N / 2], float (&max)[N / 4],
                                           float (&factor)[N / 4]) {
  constexpr int kColumns = N / 4;
  float best[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    best[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + 2 + c % 2]);
#pragma unroll
    for (int step = 4; step < 32; step *= 2) best[c] = fmaxf(best[c], __shfl_xor_sync(0xffffffff, best[c], step));
  }
  auto& maxima = math.shared.max[math.warpgroup];
  if (math.lane < 4) {
#pragma unroll
    for (int c = 0; c < kColumns; c += 2) {
      *reinterpret_cast<float2*>(&maxima[math.warp][narrow_column(math.lane, c)]) = {best[c], best[c + 1]};
    }
  }
  named_sync(kWarpgroup + math.warpgroup, 128);
#pragma unroll
  for (int c = 0; c < kColumns; c += 2) {
    float2 value = {-INFINITY, -INFINITY};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float2 other = *reinterpret_cast<const float2*>(&maxima[w][narrow_column(math.lane, c)]);
      value = {fmaxf(value.x, other.x), fmaxf(value.y, other.y)};
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float before = max[c + e];
      max[c + e] = fmaxf(before, (e == 0 ? value.x : value.y) * math.params.scale_log2);
      factor[c + e] = exp2_approx(before - max[c + e]);
    }
  }
}

// s = exp2(s scale - max), added to `sum`.
template <int N>
__device__ __forceinline__ void narrow_exponentials(const NarrowMath<N>& math, float (&s)[N / 2],
                                                    const float (&max)[N / 4], float (&sum)[N / 4]) {
#pragma unroll
  for (int i = 0; i < N / 2; ++i) {
    const int c = i / 4 * 2 + i % 2;
    s[i] = exp2_approx(fmaf(s[i], math.params.scale_log2, -max[c]));
    sum[c] += s[i];
  }
}

// S^T = K Q^T of a block.
template <int N>
__device__ __forceinline__ void narrow_scores(NarrowMath<N>& math, float (&s)[N / 2], int stage) {
  const uint32_t k = shared_address(math.shared.stages[stage]), q = shared_address(math.shared.q);
  pin(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < 36; ++i) {
    wgmma_ss<N>(s, wgmma_operand(k) + (i / 4 * kTileBytes + i % 4 * 32),
                wgmma_operand(q) + (i / 4 * N * 128 + i % 4 * 32), i > 0);
  }
  wgmma_commit();
  wgmma_wait<0>();
  pin(s);
}

// P^T to shared memory as [N rows][64 keys] of bf16. Also zeros the latents of keys from `num_keys` on: they may hold
// NaN, and 0 * NaN is NaN.
template <int N>
__device__ __forceinline__ void narrow_store_p(NarrowMath<N>& math, const float (&s)[N / 2], int stage, int num_keys) {
#pragma unroll
  for (int j = 0; j < N / 8; j += 2) {  // matrices: keys 0-7 and 8-15 of rows 8 j .., then of rows 8 (j + 1) ..
    const int row = 8 * j + math.lane / 16 * 8 + math.lane % 8, chunk = 2 * math.warp + math.lane / 8 % 2;
    uint32_t m[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = pack_bf16(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]);
    store_matrices_transposed(shared_address(math.shared.p[math.warpgroup]) + row * 128 + ((chunk ^ (row & 7)) * 16),
                              m[0], m[1], m[2], m[3]);
  }
  if (num_keys >= 64) return;
  for (int i = math.thread; i < (64 - num_keys) * 64; i += 128) {
    uint8_t* tile = math.shared.stages[stage][i % 64 / 8];
    *reinterpret_cast<uint4*>(tile + (num_keys + i / 64) * 128 + i % 8 * 16) = make_uint4(0, 0, 0, 0);
  }
}

// O^T += V^T P^T.
template <int N>
__device__ __forceinline__ void narrow_values(NarrowMath<N>& math, float (&o)[8][N / 2], int stage) {
  const uint32_t v = shared_address(math.shared.stages[stage]), p = shared_address(math.shared.p[math.warpgroup]);
#pragma unroll
  for (int t = 0; t < 8; ++t) pin(o[t]);
  wgmma_fence();
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_ss<N, 1, 0>(o[t], wgmma_operand(v) + (t * kTileBytes + i * 2048), wgmma_operand(p) + i * 32, true);
    }
  }
  wgmma_commit();
  wgmma_wait<0>();
#pragma unroll
  for (int t = 0; t < 8; ++t) pin(o[t]);
}

// Sums over all keys, for this thread's columns.
template <int N>
__device__ __forceinline__ void narrow_sums(NarrowMath<N>& math, float (&sum)[N / 4]) {
  auto& sums = math.shared.sum[math.warpgroup];
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum[c] += __shfl_xor_sync(0xffffffff, sum[c], step);
    if (math.lane < 4) sums[math.warp][narrow_column(math.lane, c)] = sum[c];
  }
  named_sync(kWarpgroup + math.warpgroup, 128);
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
    const int column = narrow_column(math.lane, c);
    sum[c] = (sums[0][column] + sums[1][column]) + (sums[2][column] + sums[3][column]);
  }
}

// Each warpgroup gives the other one half of O^T through the stage of its own last block, and merges the half it keeps
// (o[4 warpgroup ..]).
template <int N>
__device__ __forceinline__ void narrow_exchange(NarrowMath<N>& math, float (&o)[8][N / 2], float (&max)[N / 4],
                                                float (&sum)[N / 4], int own_stage, int other_stage) {
  constexpr int kElements = N / 2, kColumns = N / 4;
  static_assert(4 * kElements * 128 * sizeof(float) <= 9 * kTileBytes);
  float* to = reinterpret_cast<float*>(math.shared.stages[own_stage]) + math.thread;
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      to[(t * kElements + i) * 128] = math.warpgroup == 0 ? o[t + 4][i] : o[t][i];
    }
  }
  if (math.warp == 0 && math.lane < 4) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      math.shared.other_max[math.warpgroup][narrow_column(math.lane, c)] = max[c];
      math.shared.other_sum[math.warpgroup][narrow_column(math.lane, c)] = sum[c];
    }
  }
  fence_async_shared();
  named_sync(kBoth, 256);
  const float* from = reinterpret_cast<const float*>(math.shared.stages[other_stage]) + math.thread;
  float own[kColumns], other[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = narrow_column(math.lane, c);
    const float other_max = math.shared.other_max[1 - math.warpgroup][column], before = max[c];
    max[c] = fmaxf(before, other_max);
    own[c] = exp2_approx(before - max[c]);
    other[c] = exp2_approx(other_max - max[c]);
    sum[c] = sum[c] * own[c] + math.shared.other_sum[1 - math.warpgroup][column] * other[c];
  }
#pragma unroll
  for (int t = 0; t < 4; ++t) {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int c = i / 4 * 2 + i % 2;
      const float kept = math.warpgroup == 0 ? o[t][i] : o[t + 4][i];
      const float value = kept * own[c] + from[(t * kElements + i) * 128] * other[c];
      if (math.warpgroup == 0)
        o[t][i] = value;
      else
        o[t + 4][i] = value;
    }
  }
}

// Writes 64 latents of the tile: the output itself, or a slot of partial results.
template <int N>
__device__ __forceinline__ void narrow_write(const NarrowMath<N>& math, const float (&o)[N / 2], int t,
                                             const float (&factor)[N / 4], const NarrowTask& task, int slot) {
#pragma unroll
  for (int c = 0; c < N / 4; ++c) {
    const int row = narrow_column(math.lane, c);
    if (row >= task.num_rows) continue;
    const int64_t slot_row = int64_t{slot} * math.params.partial_rows + task.first_row + row;
    const float values[2] = {o[c / 2 * 4 + c % 2] * factor[c], o[c / 2 * 4 + 2 + c % 2] * factor[c]};
    const int latent = 64 * t + 16 * math.warp;
    if (slot < 0) {
      auto* out = static_cast<__nv_bfloat16*>(math.params.out) + int64_t{task.row_begin + row} * 512 + latent;
      out[math.lane / 4] = __float2bfloat16_rn(values[0]);
      out[math.lane / 4 + 8] = __float2bfloat16_rn(values[1]);
    } else {
      float* out = math.params.partial_o + slot_row * 512 + latent;
      out[math.lane / 4] = values[0];
      out[math.lane / 4 + 8] = values[1];
    }
  }
}

template <int N>
__device__ __forceinline__ void narrow_release(const NarrowMath<N>& math, uint64_t* barrier) {
  __syncwarp();
  if (math.lane == 0) barrier_arrive(shared_address(barrier));
}

// An item; `first` counts the blocks that this thread block has taken before.
template <int N>
__device__ __forceinline__ void narrow_item(NarrowMath<N>& math, const NarrowTask& task, int slot, int first) {
  constexpr int kColumns = N / 4, kStages = kNarrowStages;
  const bool both = task.num_blocks > 1;
  barrier_wait(shared_address(&math.shared.q_full), math.q_parity);
  math.q_parity ^= 1;
  if (math.warpgroup == 1 && !both) return narrow_release(math, &math.shared.q_empty);
  float o[8][N / 2], max[kColumns], sum[kColumns];
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) o[t][i] = 0.0f;
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    max[c] = kNarrowNoMax;
    sum[c] = 0.0f;
  }
  int stage = 0;
#pragma unroll 1
  for (int b = math.warpgroup; b < task.num_blocks; b += 2) {
    const int first_key = (task.first_block + b) * 64;
    stage = (first + b) % kStages;
    float s[N / 2], factor[kColumns];
    barrier_wait(shared_address(&math.shared.full[stage]), (first + b) / kStages & 1);
    if (math.converted) fence_async_shared();
    narrow_scores(math, s, stage);
    if (b + 2 >= task.num_blocks) narrow_release(math, &math.shared.q_empty);
    narrow_mask(math, s, task, first_key);
    narrow_max(math, s, max, factor);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] *= factor[c];
    narrow_exponentials(math, s, max, sum);
    narrow_store_p(math, s, stage, task.kv_len - first_key);
    fence_async_shared();
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int i = 0; i < N / 2; ++i) o[t][i] *= factor[i / 4 * 2 + i % 2];
    }
    named_sync(kWarpgroup + math.warpgroup, 128);
    narrow_values(math, o, stage);
    if (b + 2 < task.num_blocks) narrow_release(math, &math.shared.empty[stage]);
  }
  narrow_sums(math, sum);
  // The two last blocks are one of each warpgroup; each releases the one that it has read last.
  const int other_stage = (first + task.num_blocks - 1 - (task.num_blocks - 1 + math.warpgroup + 1) % 2) % kStages;
  if (both) narrow_exchange(math, o, max, sum, stage, other_stage);
  narrow_release(math, &math.shared.empty[both ? other_stage : stage]);
  float factor[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    factor[c] = sum[c] > 0.0f ? 1.0f / sum[c] : 0.0f;
    const int row = narrow_column(math.lane, c);
    if (slot >= 0 && math.warpgroup == 0 && math.warp == 0 && math.lane < 4 && row < task.num_rows) {
      math.params.partial_lse[int64_t{slot} * math.params.partial_rows + task.first_row + row] =
          sum[c] > 0.0f ? max[c] + log2f(sum[c]) : -INFINITY;
    }
  }
  if (math.warpgroup == 0) {
#pragma unroll
    for (int t = 0; t < 4; ++t) narrow_write(math, o[t], t, factor, task, slot);
  }
  if (math.warpgroup == 1 || !both) {
#pragma unroll
    for (int t = 4; t < 8; ++t) narrow_write(math, o[t], t, factor, task, slot);
  }
}

}  // namespace moesaic::cuda
