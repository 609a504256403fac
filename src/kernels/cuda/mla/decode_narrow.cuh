// Decode for tiles of 16 or 32 (query, head) rows: bound by memory. A tile of 64 rows would be mostly padding, so the
// operands change places: S^T = K Q^T has the 64 keys of a block as rows of the product, and O^T = V^T P^T the latents.
// Two warpgroups take alternate blocks, each with its own softmax state and all of O^T; at the end of an item each
// merges half of the latents and writes it. A warp of a third warpgroup loads blocks into a ring of stages.
//
// A Format is how the cache's rows become operands:
//   kRows, kStages; Stage and Query, types in shared memory; Maps, the tensor maps;
//   load_query, load_block          by the loading thread
//   begin_item, query_read          by the math threads: Q is there; this warpgroup has read it for the last time
//   scores, store_p, values         S^T, with the unit of the block's latents, P^T to shared memory, O^T += V^T P^T
//   kAdjacent                       whether the products' rows r and r + 8 are adjacent latents (2 r and 2 r + 1 of
//                                   16), or r and r + 8
//   kHeadroom                       log2 of P's largest value where a row's maximum is as it was set
//
// A row's maximum changes only where a block exceeds it by more than kNarrowSlack (log2): O^T is seldom scaled.
#pragma once

#include <cuda_runtime.h>

#include "kernels/cuda/mla/decode_kernels.h"
#include "kernels/cuda/mla/f16_latents.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {

constexpr int kNarrowThreads = 384;     // warpgroups 0 and 1 compute, the first thread of 2 loads
constexpr float kNarrowNoMax = -1e30f;  // finite: exp2(-inf - kNarrowNoMax) is 0

constexpr float kNarrowSlack = 8.0f;

enum NarrowBarrier { kWarpgroup = 1, kBoth = 3 };  // kWarpgroup + 0 and + 1: one warpgroup

// Where the count-th block of a thread block goes. Each `full` barrier is one warpgroup's: whoever waits for a phase
// must have seen the one before, or takes the last but one for it. With an odd number of stages a stage's blocks go to
// both warpgroups in turn, so there are twice as many barriers.
template <typename Format>
struct NarrowPlace {
  static constexpr int kFull = Format::kStages % 2 == 0 ? Format::kStages : 2 * Format::kStages;
  int full, stage;
  uint32_t full_parity;
  __device__ __forceinline__ explicit NarrowPlace(int count)
      : full(count % kFull), stage(full % Format::kStages), full_parity(count / kFull & 1) {}
};

template <typename Format>
struct NarrowShared {
  typename Format::Stage stages[Format::kStages];
  typename Format::Query query;
  float max[2][4][Format::kRows];  // of the keys of each warp
  float sum[2][4][Format::kRows];
  // What the warpgroups tell each other at the end of an item; of two items in turn, as one may be done with the next
  // before the other has read this one's.
  float other_max[2][2][Format::kRows], other_sum[2][2][Format::kRows];
  uint64_t q_full, q_empty, full[NarrowPlace<Format>::kFull], empty[Format::kStages];
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

template <typename Format>
struct NarrowMath {
  static constexpr int kColumns = Format::kRows / 4;  // of S^T and O^T that a thread holds elements of
  const DecodeParams& params;
  NarrowShared<Format>& shared;
  int warpgroup, warp, lane, thread;
  float scale[kColumns];  // softmax scale * log2(e) of a column
  uint32_t q_parity;
  int turn;  // of items with blocks of both warpgroups
};

// The column of S^T that is this thread's `c`-th: element d[4 (c / 2) + 2 i + c % 2] of a product is in it.
__device__ __forceinline__ int narrow_column(int lane, int c) {
  return c / 2 * 8 + lane % 4 * 2 + c % 2;
}

template <typename Format>
__device__ __forceinline__ void narrow_mask(const NarrowMath<Format>& math, float (&s)[Format::kRows / 2],
                                            const NarrowTask& task, int first_key) {
  if (first_key + 64 <= task.least_limit) return;
#pragma unroll
  for (int c = 0; c < Format::kRows / 4; ++c) {
    const int query = min((task.first_row + narrow_column(math.lane, c)) / math.params.num_heads, task.q_len - 1);
    const int limit = task.kv_len - (task.q_len - 1 - query);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = first_key + 16 * math.warp + math.lane / 4 + 8 * i;
      if (key >= limit) s[c / 2 * 4 + 2 * i + c % 2] = -INFINITY;
    }
  }
}

// Maxima over the block's keys, merged into `max`. Where one changes, for all threads of the warpgroup alike, the
// result is true and `factor` is for what was summed so far.
template <typename Format>
__device__ __forceinline__ bool narrow_max(NarrowMath<Format>& math, const float (&s)[Format::kRows / 2],
                                           const LatentUnit& unit, float (&max)[Format::kRows / 4],
                                           float (&factor)[Format::kRows / 4]) {
  constexpr int kColumns = Format::kRows / 4;
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
  bool changed = false;
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
      const float largest = fmaf(e == 0 ? value.x : value.y, math.scale[c + e], unit.exponent - Format::kHeadroom);
      const bool exceeds = largest > max[c + e] + kNarrowSlack;
      factor[c + e] = exceeds ? exp2_approx(max[c + e] - largest) : 1.0f;
      if (exceeds) max[c + e] = largest;
      changed |= exceeds;
    }
  }
  return __any_sync(0xffffffff, changed);
}

// s = exp2(s scale + exponent - max), added to `sum`.
template <typename Format>
__device__ __forceinline__ void narrow_exponentials(const NarrowMath<Format>& math, float (&s)[Format::kRows / 2],
                                                    const LatentUnit& unit, const float (&max)[Format::kRows / 4],
                                                    float (&sum)[Format::kRows / 4]) {
#pragma unroll
  for (int c = 0; c < Format::kRows / 4; ++c) {
    float part = 0.0f;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float& value = s[c / 2 * 4 + 2 * i + c % 2];
      value = exp2_approx(fmaf(value, math.scale[c], unit.exponent - max[c]));
      part += value;
    }
    sum[c] = fmaf(part, unit.inverse, sum[c]);
  }
}

// P^T, pairs of rows in p[2 j + i], i = 0, 1 for the thread's two keys, to shared memory as [rows][64 keys] of 16 bits.
template <int kRows>
__device__ __forceinline__ void store_transposed(uint32_t to, const uint32_t (&p)[kRows / 4], int warp, int lane) {
#pragma unroll
  for (int j = 0; j < kRows / 8; j += 2) {  // matrices: keys 0-7 and 8-15 of rows 8 j .., then of rows 8 (j + 1) ..
    const int row = 8 * j + lane / 16 * 8 + lane % 8, chunk = 2 * warp + lane / 8 % 2;
    store_matrices_transposed(to + row * 128 + ((chunk ^ (row & 7)) * 16), p[2 * j], p[2 * j + 1], p[2 * j + 2],
                              p[2 * j + 3]);
  }
}

// Sums over all keys, for this thread's columns.
template <typename Format>
__device__ __forceinline__ void narrow_sums(NarrowMath<Format>& math, float (&sum)[Format::kRows / 4]) {
  auto& sums = math.shared.sum[math.warpgroup];
#pragma unroll
  for (int c = 0; c < Format::kRows / 4; ++c) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum[c] += __shfl_xor_sync(0xffffffff, sum[c], step);
    if (math.lane < 4) sums[math.warp][narrow_column(math.lane, c)] = sum[c];
  }
  named_sync(kWarpgroup + math.warpgroup, 128);
#pragma unroll
  for (int c = 0; c < Format::kRows / 4; ++c) {
    const int column = narrow_column(math.lane, c);
    sum[c] = (sums[0][column] + sums[1][column]) + (sums[2][column] + sums[3][column]);
  }
}

// Each warpgroup gives the other one half of O^T through the stage of its own last block, and merges the half it keeps
// (o[4 warpgroup ..]).
template <typename Format>
__device__ __forceinline__ void narrow_exchange(NarrowMath<Format>& math, float (&o)[8][Format::kRows / 2],
                                                float (&max)[Format::kRows / 4], float (&sum)[Format::kRows / 4],
                                                int own_stage, int other_stage) {
  constexpr int kElements = Format::kRows / 2, kColumns = Format::kRows / 4;
  const int turn = math.turn;
  math.turn ^= 1;
  static_assert(4 * kElements * 128 * sizeof(float) <= sizeof(typename Format::Stage));
  float* to = reinterpret_cast<float*>(&math.shared.stages[own_stage]) + math.thread;
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
      math.shared.other_max[turn][math.warpgroup][narrow_column(math.lane, c)] = max[c];
      math.shared.other_sum[turn][math.warpgroup][narrow_column(math.lane, c)] = sum[c];
    }
  }
  fence_async_shared();
  named_sync(kBoth, 256);
  const float* from = reinterpret_cast<const float*>(&math.shared.stages[other_stage]) + math.thread;
  float own[kColumns], other[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int column = narrow_column(math.lane, c);
    const float other_max = math.shared.other_max[turn][1 - math.warpgroup][column], before = max[c];
    max[c] = fmaxf(before, other_max);
    own[c] = exp2_approx(before - max[c]);
    other[c] = exp2_approx(other_max - max[c]);
    sum[c] = sum[c] * own[c] + math.shared.other_sum[turn][1 - math.warpgroup][column] * other[c];
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
template <typename Format>
__device__ __forceinline__ void narrow_write(const NarrowMath<Format>& math, const float (&o)[Format::kRows / 2], int t,
                                             const float (&factor)[Format::kRows / 4], const NarrowTask& task,
                                             int slot) {
#pragma unroll
  for (int c = 0; c < Format::kRows / 4; ++c) {
    const int row = narrow_column(math.lane, c);
    if (row >= task.num_rows) continue;
    const int64_t slot_row = int64_t{slot} * math.params.partial_rows + task.first_row + row;
    const float values[2] = {o[c / 2 * 4 + c % 2] * factor[c], o[c / 2 * 4 + 2 + c % 2] * factor[c]};
    const int latent = 64 * t + 16 * math.warp;
    if (slot < 0) {
      auto* out = static_cast<__nv_bfloat16*>(math.params.out) + int64_t{task.row_begin + row} * 512 + latent;
      if constexpr (Format::kAdjacent) {
        reinterpret_cast<uint32_t*>(out)[math.lane / 4] = pack_bf16(values[0], values[1]);
      } else {
        out[math.lane / 4] = __float2bfloat16_rn(values[0]);
        out[math.lane / 4 + 8] = __float2bfloat16_rn(values[1]);
      }
    } else {
      float* out = math.params.partial_o + slot_row * 512 + latent;
      if constexpr (Format::kAdjacent) {
        reinterpret_cast<float2*>(out)[math.lane / 4] = {values[0], values[1]};
      } else {
        out[math.lane / 4] = values[0];
        out[math.lane / 4 + 8] = values[1];
      }
    }
  }
}

template <typename Format>
__device__ __forceinline__ void narrow_release(const NarrowMath<Format>& math, uint64_t* barrier) {
  __syncwarp();
  if (math.lane == 0) barrier_arrive(shared_address(barrier));
}

// An item; `first` counts the blocks that this thread block has taken before.
template <typename Format>
__device__ __forceinline__ void narrow_item(NarrowMath<Format>& math, const NarrowTask& task, int slot,
                                            const typename Format::Maps& maps, int first) {
  constexpr int kRows = Format::kRows, kColumns = kRows / 4, kStages = Format::kStages;
  const bool both = task.num_blocks > 1;
  Format::begin_item(math, task, maps);
  if (math.warpgroup == 1 && !both) return Format::query_read(math);
  float o[8][kRows / 2], max[kColumns], sum[kColumns];
#pragma unroll
  for (int t = 0; t < 8; ++t) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) o[t][i] = 0.0f;
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
    const NarrowPlace<Format> place(first + b);
    stage = place.stage;
    float s[kRows / 2], factor[kColumns];
    barrier_wait(shared_address(&math.shared.full[place.full]), place.full_parity);
    const LatentUnit unit = Format::scores(math, s, stage, task.kv_len - first_key);
    if (b + 2 >= task.num_blocks) Format::query_read(math);
    narrow_mask(math, s, task, first_key);
    if (narrow_max(math, s, unit, max, factor)) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) sum[c] *= factor[c];
#pragma unroll
      for (int t = 0; t < 8; ++t) {
#pragma unroll
        for (int i = 0; i < kRows / 2; ++i) o[t][i] *= factor[i / 4 * 2 + i % 2];
      }
    }
    narrow_exponentials(math, s, unit, max, sum);
    Format::store_p(math, s, unit, stage, task.kv_len - first_key);
    fence_async_shared();
    named_sync(kWarpgroup + math.warpgroup, 128);
    Format::values(math, o, stage);
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

template <typename Format>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    decode_narrow_kernel(const __grid_constant__ DecodeParams params,
                         const __grid_constant__ typename Format::Maps maps) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = *reinterpret_cast<NarrowShared<Format>*>(raw);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init(shared_address(&shared.q_empty), 8);
    for (uint64_t& full : shared.full) barrier_init(shared_address(&full), 1);
    for (uint64_t& empty : shared.empty) barrier_init(shared_address(&empty), 4);
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous();
  const int tile = blockIdx.x;
  const DecodePart part = params.plan.parts[blockIdx.y];
  const int warpgroup = uniform(threadIdx.x / 128);
  DecodeItem item = part.first;
  int taken = 0;
  if (warpgroup == 2) {
    fewer_registers<40>();
    if (threadIdx.x != 256) return;
    int num_queries = 0;
    for (int i = part.begin; i < part.end; ++i) {
      if (i > part.begin) item = params.plan.items[i];
      if (item.q_len * params.num_heads <= tile * Format::kRows) continue;
      const int* table = params.block_table + item.seq * params.block_table_stride + item.block_begin;
      const int num_blocks = item.block_end - item.block_begin;
      int next_row = num_blocks > 0 ? table[0] * 64 : 0;
      for (int b = 0; b < num_blocks; ++b, ++taken) {
        const NarrowPlace<Format> place(taken);
        const int row = next_row;
        if (b + 1 < num_blocks) next_row = table[b + 1] * 64;  // arrives meanwhile
        barrier_wait(shared_address(&shared.empty[place.stage]), (taken / Format::kStages & 1) ^ 1);
        Format::load_block(maps, shared.stages[place.stage], row, shared_address(&shared.full[place.full]));
        if (b == 0)
          Format::load_query(maps, shared, item.q_begin * params.num_heads + tile * Format::kRows, num_queries++);
      }
    }
    return;
  }
  more_registers<232>();
  const int thread = threadIdx.x % 128;
  NarrowMath<Format> math{params, shared, warpgroup, uniform(thread / 32), thread % 32, thread};
  math.q_parity = 0;
  math.turn = 0;
  for (int i = part.begin; i < part.end; ++i) {
    const NarrowTask task = narrow_task(item, params.num_heads, tile, Format::kRows);
    const int slot = uniform(item.slot);
    if (i + 1 < part.end) item = params.plan.items[i + 1];  // arrives meanwhile
    if (task.num_rows <= 0) continue;
    if (task.num_blocks == 0) {
      uint4* out = reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.out) + int64_t{task.row_begin} * 512);
      for (int j = threadIdx.x; j < task.num_rows * 64; j += 256) out[j] = make_uint4(0, 0, 0, 0);
    } else {
      narrow_item(math, task, slot, maps, taken);
    }
    taken += task.num_blocks;
  }
  launch_dependents();
}

template <typename Format>
void launch_narrow(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params,
                   const typename Format::Maps& maps) {
  constexpr int kSharedBytes = sizeof(NarrowShared<Format>);
  static_assert(kSharedBytes <= 227 * 1024);
  const auto kernel = decode_narrow_kernel<Format>;
  MOESAIC_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(layout.num_tiles, layout.num_parts);
  config.blockDim = dim3(kNarrowThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  MOESAIC_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params, maps));
}

}  // namespace moesaic::cuda
