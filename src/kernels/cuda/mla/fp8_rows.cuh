// FP8 rows become the bf16 tiles that the decode kernels' products read: a warpgroup loads them into registers (from
// L2, where a bulk prefetch brought them), converts them, and stores them to shared memory.
//
// e4m3 to bf16 is a shift of exponent and mantissa bits and gives the value times 2^-120; the product with a scale
// times 2^120 is rounded once, the scale being the sum of two bf16. So scales must be below 256 (latents below
// 114,688).
#pragma once

#include "kernels/cuda/mla/decode_kernels.h"
#include "kernels/cuda/ptx.cuh"

namespace moesaic::cuda {

constexpr int kFp8BlockBytes = kMlaBlockTokens * kMlaFp8RowBytes;
constexpr int kFp8Barrier = 8;                      // named, of the warpgroup
constexpr int kFp8KeysOffset = kMlaLatentDim + 16;  // of the rotated keys in a row, in bytes

// The blocks of a part in order, some ahead: [0] is the one that is converted next, [1] the one whose loads follow, [2]
// was announced to L2, and of [3] the entry of the block table is on its way. All threads of the warpgroup have the
// same.
class Fp8Blocks {
 public:
  struct Block {
    int block;  // of the cache, or -1: no more
    int rest;   // item in the plan * 256 + (128 if it is the item's first) + keys (at most 64)
    __device__ __forceinline__ bool exists() const { return block >= 0; }
    __device__ __forceinline__ bool first() const { return (rest & 128) != 0; }
    __device__ __forceinline__ int item() const { return rest >> 8; }
    __device__ __forceinline__ int num_keys() const { return rest & 127; }
  };

  // `announces`: whether this thread announces blocks to L2.
  __device__ __forceinline__ Fp8Blocks(const DecodeParams& params, const DecodePart& part, int first_row,
                                       bool announces)
      : params_(params), announces_(announces), first_row_(first_row), next_item_(part.begin), end_(part.end) {
#pragma unroll 1
    for (int i = 0; i < 4; ++i) advance();
  }

  __device__ __forceinline__ const Block& operator[](int i) const {
    return ahead_[i];
  }
  __device__ __forceinline__ void advance() {
    ahead_[0] = ahead_[1];
    ahead_[1] = ahead_[2];
    ahead_[2] = ahead_[3];
    if (announces_ && ahead_[2].exists()) {
      prefetch_to_l2(params_.fp8_rows + int64_t{ahead_[2].block} * kFp8BlockBytes, kFp8BlockBytes);
    }
    ahead_[3] = take();
  }

 private:
  __device__ __forceinline__ Block take() {
    int first = 0;
    while (block_ >= block_end_) {
      if (next_item_ >= end_) return {-1, 0};
      const DecodeItem item = params_.plan.items[next_item_++];
      if (item.q_len * params_.num_heads <= first_row_) continue;
      block_ = item.block_begin;
      block_end_ = item.block_end;
      seq_ = item.seq;
      num_keys_ = item.kv_len - block_ * kMlaBlockTokens;
      first = 128;
    }
    const int block = params_.block_table[seq_ * params_.block_table_stride + block_++];
    const int num_keys = min(num_keys_, kMlaBlockTokens);
    num_keys_ -= kMlaBlockTokens;
    return {block, (next_item_ - 1) * 256 + first + num_keys};
  }

  const DecodeParams& params_;
  bool announces_;
  int first_row_, next_item_, end_;
  int seq_ = 0, block_ = 0, block_end_ = 0, num_keys_ = 0;  // what comes next of the item before next_item_
  Block ahead_[4] = {{-1, 0}, {-1, 0}, {-1, 0}, {-1, 0}};
};

// Two e4m3 at the high bytes of the halves, as two bf16 times 2^-120.
__device__ __forceinline__ uint32_t high_bytes_to_bf16(uint32_t pair) {
  return (pair & 0x80008000u) | (pair >> 4 & 0x07f007f0u);
}

// (a * b) and (a * b + c) of pairs of bf16.
__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  uint32_t product;
  asm("mul.rn.bf16x2 %0, %1, %2;\n" : "=r"(product) : "r"(a), "r"(b));
  return product;
}
__device__ __forceinline__ uint32_t multiply_add_bf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t sum;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;\n" : "=r"(sum) : "r"(a), "r"(b), "r"(c));
  return sum;
}

// One of a warpgroup's threads. A unit of work is half of a block: 64 keys x 256 latents, four tiles. A thread has 16
// latents of every eighth key: a warp reads the 256 bytes of two keys at a time, and its stores meet no bank twice. Of
// the scales it loads one of the 32 that its warp needs.
class Fp8Converter {
 public:
  __device__ __forceinline__ Fp8Converter(const uint8_t* rows, int thread) : rows_(rows) {
    const int lane = thread % 32, warp = thread / 32, key = 2 * warp + lane / 4 % 2;
    latents_ = key * kMlaFp8RowBytes + (lane % 4 + lane / 8 * 4) * 16;
    to_ = lane / 8 * kTileBytes + key * 128 + ((lane % 4 * 2) ^ key) * 16;
    scale_lane_ = lane / 4 % 2 * 2 + lane / 16;
    scale_key_ = lane / 4 * 8 + 2 * warp + lane / 2 % 2;
    scales_ = scale_key_ * kMlaFp8RowBytes + kMlaLatentDim + lane % 2 * 4;
  }

  // Starts loading a half. Its second batch is loaded by convert.
  __device__ __forceinline__ void load(int block, int half) { load_batch(block, half, 0); }

  // Writes the half for which load was called last, `half` of `block`, to the four tiles at `to`; latents of keys from
  // `num_keys` on, which may hold anything, become zeros. Starts loading the next half. The fence to the async proxy is
  // the readers': here it would wait for these loads.
  __device__ __forceinline__ void convert(uint32_t to, int num_keys, int block, int half, int next_block,
                                          int next_half) {
    __syncwarp();  // threads that had more to do come back; shuffles of a split warp take twice the time
    const float scale = scale_key_ < num_keys ? scale_ * 0x1p120f : 0.0f;
    uint32_t scales = pack_bf16(scale, 0.0f);  // as two bf16
    scales = pack_bf16(scale, scale - __uint_as_float(scales << 16));
    // Between barriers loads stay where they are; the compiler would let them sink behind the conversion that hides
    // them. The loop's branches wait for all loads in flight, so the second batch is not loaded before them.
    load_batch(block, half, 1);
    named_sync(kFp8Barrier, 128);
    convert_batch(to + to_, scales, 0);
    named_sync(kFp8Barrier, 128);
    load_batch(next_block, next_half, 0);
    named_sync(kFp8Barrier, 128);
    convert_batch(to + to_, scales, 1);
    __syncwarp();
  }

 private:
  // Chunks of 16 latents that a thread has of a half, and those that are loaded together: loads in flight are told
  // apart by six counters only, so that waiting for one of many waits for those behind it too.
  static constexpr int kChunks = 8, kBatch = 4;

  __device__ __forceinline__ void convert_batch(uint32_t even, uint32_t scales, int batch) const {
#pragma unroll
    for (int i = batch * kBatch; i < (batch + 1) * kBatch; ++i) {
      const uint32_t own = __shfl_sync(0xffffffff, scales, scale_lane_ + 4 * i);
      const uint32_t high = __byte_perm(own, 0, 0x1010), low = __byte_perm(own, 0, 0x3232);
      uint32_t values[8];
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        const uint32_t value = high_bytes_to_bf16(__byte_perm(words_[i][w / 2], 0, w % 2 == 0 ? 0x1404 : 0x3424));
        values[w] = multiply_add_bf16(value, high, multiply_bf16(value, low));
      }
      store_shared(even + i * 1024, values[0], values[1], values[2], values[3]);
      store_shared((even ^ 16) + i * 1024, values[4], values[5], values[6], values[7]);
    }
  }

  __device__ __forceinline__ void load_batch(int block, int half, int batch) {
    // Where there is no block, the first of all: a condition would keep the old registers alive beside the new ones.
    const uint8_t* from = rows_ + int64_t{max(block, 0)} * kFp8BlockBytes;
    if (batch == 0) scale_ = load_global_once_f32(from + scales_ + half * 8);
    from += latents_ + half * 256;
#pragma unroll
    for (int i = batch * kBatch; i < (batch + 1) * kBatch; ++i) {
      const uint4 bytes = load_global_once(from + i * 8 * kMlaFp8RowBytes);
      words_[i][0] = bytes.x;
      words_[i][1] = bytes.y;
      words_[i][2] = bytes.z;
      words_[i][3] = bytes.w;
    }
  }

  const uint8_t* rows_;
  int latents_, scales_;  // offsets of this thread's in a block
  int scale_key_, scale_lane_;
  uint32_t to_;
  uint32_t words_[kChunks][4];
  float scale_;
};

}  // namespace moesaic::cuda
