// The parts of the wide decode kernel around its schedule: what lies in shared memory, loading, masks and exponentials,
// products, writing.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "kernels/cuda/mla/decode_kernels.h"
#include "kernels/cuda/mla/f16_latents.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace moesaic::cuda::wide {

constexpr int kTile = kTileBytes;
constexpr int kBlock = 9 * kTile;  // of a cache block, and of Q
constexpr int kThreads = 384;      // warpgroups 0 and 1 compute, the first warp of 2 loads
constexpr int kMathThreads = 256;
constexpr float kNoMax = -1e30f;  // finite: exp2(-inf - kNoMax) is 0
constexpr float kSlack = 8.0f;

enum Part { kLeft, kRight, kRope };
enum Named { kScale0 = 1, kScale1, kP0, kP1, kSums, kWarpgroup };  // kWarpgroup + 0 and + 1

struct Shared {
  uint8_t q[kBlock];
  uint8_t blocks[2][kBlock];
  float max[64], scale[2][64], sum[2][64];
  // FP8 rows: of Q's rows, what they were multiplied with; of the blocks, units and scales in them (f16, each twice).
  float q_inverse[64];
  alignas(16) float units[2][4];  // LatentUnit's, in order
  uint32_t scales[2][4][8][8];    // of group g and key 8 i + j in [g][j][i]
  uint32_t largest[4];            // scale that each warp of the converter has seen
  uint64_t keys_full[2];          // rotated keys as they are in the cache
  uint64_t q_full, q_empty;
  // Of a tile of 64 columns each, so that products start before the block is whole; where they are converted, the first
  // of four stands for all.
  uint64_t full[2][9];
  uint64_t empty[2][2];  // the rope part falls free with the right one of block 0, with the left one of block 1
};

// Where things lie, as one register and constants.
struct Layout {
  uint32_t base;   // of Shared
  bool converted;  // the tiles are filled by ordinary stores, latents are f16
  __device__ uint32_t q() const { return base + offsetof(Shared, q); }
  __device__ uint32_t block(int which) const { return base + offsetof(Shared, blocks) + which * kBlock; }
  __device__ uint32_t p(int which) const { return block(which) + 8 * kTile; }  // in place of the rope keys
  __device__ uint32_t scales(int which) const { return base + offsetof(Shared, scales) + which * 1024; }
  __device__ uint32_t unit(int which) const { return base + offsetof(Shared, units) + which * 16; }
  __device__ uint32_t largest() const { return base + offsetof(Shared, largest); }
  __device__ uint32_t keys_full(int which) const { return base + offsetof(Shared, keys_full) + which * 8; }
  __device__ uint32_t q_full() const { return base + offsetof(Shared, q_full); }
  __device__ uint32_t q_empty() const { return base + offsetof(Shared, q_empty); }
  __device__ uint32_t full(int which, int tile) const { return base + offsetof(Shared, full) + (which * 9 + tile) * 8; }
  __device__ uint32_t empty(int which, Part part) const {
    return base + offsetof(Shared, empty) + (which * 2 + part) * 8;
  }
};

// Byte offset of the 16-byte chunk `chunk` of row `row` in a tile with 128-byte swizzle.
__device__ __forceinline__ uint32_t swizzled(int row, int chunk) {
  return row * 128 + ((chunk ^ (row & 7)) * 16);
}

// s[64, 64] (+)= Q[:, tiles] K[:, tiles]^T of one block, each tile as it arrives.
template <int kFirst, int kCount>
__device__ __forceinline__ void scores(float (&s)[32], const Layout& at, int which, uint32_t parity, bool accumulate) {
#pragma unroll
  for (int t = kFirst; t < kFirst + kCount; ++t) {
    if (!at.converted || t % 4 == 0) barrier_wait(at.full(which, t), parity);
    if (at.converted && t % 4 == 0) fence_async_shared();
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const WgmmaOperand q = wgmma_operand(at.q()) + (t * kTile + k * 32);
      const WgmmaOperand keys = wgmma_operand(at.block(which)) + (t * kTile + k * 32);
      const bool sums = accumulate || t > kFirst || k > 0;
      if (at.converted && t < 8)
        wgmma_ss<64, 0, 0, F16Operands>(s, q, keys, sums);
      else
        wgmma_ss<64>(s, q, keys, sums);
    }
  }
}

// o[64, 256] += P V, P in registers as the scores' fragments packed to 16 bits.
__device__ __forceinline__ void values_from_registers(float (&o)[128], const uint32_t (&p)[4][4], uint32_t v,
                                                      bool f16) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (f16)
      wgmma_rs<256, 1, F16Operands>(o, p[k], wgmma_operand(v, kTile) + k * 2048, true);
    else
      wgmma_rs<256, 1>(o, p[k], wgmma_operand(v, kTile) + k * 2048, true);
  }
}
// The same with P in shared memory.
__device__ __forceinline__ void values_from_shared(float (&o)[128], uint32_t p, uint32_t v, bool f16) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (f16)
      wgmma_ss<256, 0, 1, F16Operands>(o, wgmma_operand(p) + k * 32, wgmma_operand(v, kTile) + k * 2048, true);
    else
      wgmma_ss<256, 0, 1>(o, wgmma_operand(p) + k * 32, wgmma_operand(v, kTile) + k * 2048, true);
  }
}

// The scores' fragments are those of operand A, 16 columns at a time.
__device__ __forceinline__ void pack(const float (&s)[32], uint32_t (&p)[4][4], bool f16) {
#pragma unroll
  for (int k = 0; k < 4; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float lo = s[8 * k + 2 * i], hi = s[8 * k + 2 * i + 1];
      p[k][i] = f16 ? pack_f16(lo, hi) : pack_bf16(lo, hi);
    }
  }
}
__device__ __forceinline__ void store_p(uint32_t to, const uint32_t (&p)[4][4], int warp, int lane) {
  const int row = 16 * warp + lane % 16;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    store_matrices(to + swizzled(row, 2 * k + lane / 16), p[k][0], p[k][1], p[k][2], p[k][3]);
  }
}

// Zeros the rows from `first` on of 256 columns: V beyond the sequence may hold NaN, and 0 * NaN is NaN.
__device__ __forceinline__ void clear_rows(uint32_t v, int first, int thread, int warpgroup) {
  for (int i = thread; i < (64 - first) * 32; i += 128) {
    const uint32_t address = v + i % 32 / 8 * kTile + (first + i / 32) * 128 + i % 8 * 16;
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};\n" ::"r"(address), "r"(0) : "memory");
  }
  fence_async_shared();
  named_sync(kWarpgroup + warpgroup, 128);
}

// One sequence as a tile sees it.
struct Task {
  int first_block, num_blocks;
  int kv_len;
  int row_begin;  // of the tile in q and out
  int num_rows;   // that are the sequence's own
  int limit[2];   // keys seen by this thread's two rows
  int least_limit;
  int slot;  // as in DecodeItem
};

// The compiler does not see that all threads load the same value, and orders wgmma with care in branches on it.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffff, value, 0);
}

__device__ __forceinline__ Task make_task(const DecodeItem& item, int num_heads, int tile, int warp, int lane) {
  Task task{};
  task.first_block = uniform(item.block_begin);
  task.num_blocks = uniform(item.block_end - item.block_begin);
  task.kv_len = uniform(item.kv_len);
  task.row_begin = item.q_begin * num_heads + tile * 64;
  task.num_rows = uniform(min(item.q_len * num_heads - tile * 64, 64));
  task.slot = uniform(item.slot);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int query = min((tile * 64 + 16 * warp + lane / 4 + 8 * i) / num_heads, item.q_len - 1);
    task.limit[i] = item.kv_len - (item.q_len - 1 - query);
  }
  task.least_limit = uniform(item.kv_len - item.q_len + 1);
  return task;
}

__device__ __forceinline__ void mask(float (&s)[32], const Task& task, int first_key, int lane) {
  if (first_key + 64 <= task.least_limit) return;
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    const int key = first_key + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (key >= task.limit[i / 2 % 2]) s[i] = -INFINITY;
  }
}

__device__ __forceinline__ float row_max(const float (&s)[32], int i) {
  float value = -INFINITY;
#pragma unroll
  for (int j = 0; j < 8; ++j) value = fmaxf(value, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
  value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, 1));
  return fmaxf(value, __shfl_xor_sync(0xffffffff, value, 2));
}

// s = exp2(s * scale - max), and its sum over this thread's columns.
__device__ __forceinline__ float exponentials(float (&s)[32], int i, float scale, float max) {
  float sum = 0.0f;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float& value = s[4 * j + 2 * i + e];
      value = exp2_approx(fmaf(value, scale, -max));
      sum += value;
    }
  }
  return sum;
}

// A row's maximum changes only where a block exceeds it by more than kSlack (log2): the output is seldom scaled.
__device__ __forceinline__ float raised(float max, float largest) {
  return largest > max + kSlack ? largest : max;
}
__device__ __forceinline__ void scale_rows(float (&o)[128], const float (&factor)[2]) {
  if (!__any_sync(0xffffffff, factor[0] != 1.0f || factor[1] != 1.0f)) return;
#pragma unroll
  for (int j = 0; j < 128; ++j) o[j] *= factor[j / 2 % 2];
}

struct Math {
  const DecodeParams& params;
  Shared& shared;
  Layout at;
  int warp, lane, thread;  // within the warpgroup
  uint32_t q_parity = 0, parity = 0;
  float scale[2];  // softmax scale * log2(e) of this thread's rows, as they lie in shared memory
  __device__ __forceinline__ LatentUnit unit(int which) const {
    if (!at.converted) return {};
    const float4 unit = load_shared_f32x4(at.unit(which));
    return {unit.x, unit.y, unit.z};
  }
};

// Q for products with converted blocks, in place: latents' columns f16, each row times a power of two that brings its
// largest element near 2^14, so that only elements 2^-28 of that lose bits.
__device__ __forceinline__ void convert_query(Math& math, int warpgroup) {
  const int thread = warpgroup * 128 + math.thread, row = thread / 4;
  const auto chunk_address = [&](int i) {  // of 72 in a row, 18 a thread
    return math.at.q() + i / 2 * kTile + swizzled(row, i % 2 * 4 + thread % 4);
  };
  uint4 chunks[18];
  uint32_t largest = 0;  // of the magnitudes' bits
#pragma unroll
  for (int i = 0; i < 18; ++i) {
    chunks[i] = load_shared(chunk_address(i));
#pragma unroll
    for (const uint32_t pair : {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w}) {
      largest = max(largest, max(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u));
    }
  }
  largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 1));
  largest = max(largest, __shfl_xor_sync(0xffffffff, largest, 2));
  const uint32_t shift = min(268u - (largest >> 23), 253u);  // biased exponent of the factor
  const float factor = __uint_as_float(shift << 23);
#pragma unroll
  for (int i = 0; i < 18; ++i) {
    const auto scaled = [&](uint32_t pair) {
      const float lo = __uint_as_float(pair << 16) * factor, hi = __uint_as_float(pair & 0xffff0000u) * factor;
      return i < 16 ? pack_f16(lo, hi) : pack_bf16(lo, hi);
    };
    store_shared(chunk_address(i), scaled(chunks[i].x), scaled(chunks[i].y), scaled(chunks[i].z), scaled(chunks[i].w));
  }
  if (thread % 4 == 0) math.shared.q_inverse[row] = __uint_as_float((254 - shift) << 23);
  fence_async_shared();
  named_sync(kSums, kMathThreads);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    math.scale[i] = math.params.scale_log2 * math.shared.q_inverse[16 * math.warp + math.lane / 4 + 8 * i];
  }
}

__device__ __forceinline__ void release(const Math& math, uint32_t barrier) {
  __syncwarp();
  if (math.lane == 0) barrier_arrive(barrier);
}

// Writes this warpgroup's 256 columns: the output itself, or a slot of partial results.
__device__ __forceinline__ void write(const Math& math, const float (&o)[128], const Task& task, int tile,
                                      int warpgroup, const float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 16 * math.warp + math.lane / 4 + 8 * i;
    const bool exists = row < task.num_rows;
    const float factor = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
    const int64_t slot_row = int64_t{task.slot} * math.params.partial_rows + tile * 64 + row;
    if (task.slot < 0) {
      // Of two neighbouring lanes one takes four columns of the even, the other of the odd tile of 8: whole sectors.
      const int odd = math.lane % 2;
      auto* out = static_cast<__nv_bfloat16*>(math.params.out) + int64_t{task.row_begin + row} * 512 + 256 * warpgroup +
                  8 * odd + (math.lane % 4 - odd) * 2;
#pragma unroll
      for (int j = 0; j < 32; j += 2) {
        const uint32_t even_tile = pack_bf16(o[4 * j + 2 * i] * factor, o[4 * j + 2 * i + 1] * factor);
        const uint32_t odd_tile = pack_bf16(o[4 * j + 4 + 2 * i] * factor, o[4 * j + 5 + 2 * i] * factor);
        const uint32_t other = __shfl_xor_sync(0xffffffff, odd ? even_tile : odd_tile, 1);
        const uint2 value = odd ? make_uint2(other, odd_tile) : make_uint2(even_tile, other);
        if (exists) *reinterpret_cast<uint2*>(out + 8 * j) = value;
      }
    } else if (exists) {
      float* out = math.params.partial_o + slot_row * 512 + 256 * warpgroup + math.lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < 32; ++j) {
        *reinterpret_cast<float2*>(out + 8 * j) = {o[4 * j + 2 * i] * factor, o[4 * j + 2 * i + 1] * factor};
      }
      if (warpgroup == 0 && math.lane % 4 == 0) {
        math.params.partial_lse[slot_row] = sum[i] > 0.0f ? math.shared.max[row] + log2f(sum[i]) : -INFINITY;
      }
    }
  }
}

// Sums of both warpgroups, for this thread's rows.
__device__ __forceinline__ void total_sums(const Math& math, int warpgroup, float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += __shfl_xor_sync(0xffffffff, sum[i], 1);
    sum[i] += __shfl_xor_sync(0xffffffff, sum[i], 2);
    if (math.lane % 4 == 0) math.shared.sum[warpgroup][16 * math.warp + math.lane / 4 + 8 * i] = sum[i];
  }
  named_sync(kSums, kMathThreads);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = 16 * math.warp + math.lane / 4 + 8 * i;
    sum[i] = math.shared.sum[0][row] + math.shared.sum[1][row];
  }
}

// A sequence without keys: zeros.
__device__ __forceinline__ void write_zeros(const DecodeParams& params, const Task& task, int thread) {
  uint4* out = reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.out) + int64_t{task.row_begin} * 512);
  for (int i = thread; i < task.num_rows * 64; i += kMathThreads) out[i] = make_uint4(0, 0, 0, 0);
}

}  // namespace moesaic::cuda::wide
