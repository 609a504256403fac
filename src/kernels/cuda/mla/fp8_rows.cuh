// FP8 rows become the bf16 tiles that the decode kernels' products read: a warpgroup loads them into registers (from
// L2, where a bulk prefetch brought them), converts them, and stores them to shared memory.
//
// e4m3 to bf16 is a shift of exponent and mantissa bits and gives the value times 2^-120; the product with a scale
// times 2^120 is rounded once, the scale being the sum of two bf16. So scales must be below 256 (latents below
// 114,688).
#pragma once

#include "kernels/cuda/mla/decode_kernels.h"
#include "kernels/cuda/mla/hopper.cuh"

namespace moesaic::cuda {

constexpr int kFp8BlockBytes = kMlaBlockTokens * kMlaFp8RowBytes;
constexpr int kFp8KeysOffset = kMlaLatentDim + 16;  // of the rotated keys in a row, in bytes

// The blocks of a part in order, some ahead: [0] is the one that is converted next, [1] the one whose loads follow, [2]
// is announced to L2, and of [3] the entry of the block table is on its way. All threads of the warpgroup have the
// same.
class Fp8Blocks {
 public:
  struct Block {
    int block;     // of the cache; -1: the item has none
    int num_keys;  // from here to the sequence's end; may exceed 64
    int item;      // index in the plan; -1: no more blocks
    bool first;    // of its item
  };

  __device__ __forceinline__ Fp8Blocks(const DecodeParams& params, const DecodePart& part, int first_row)
      : params_(params), first_row_(first_row), next_item_(part.begin), end_(part.end) {
#pragma unroll
    for (Block& block : ahead_) {
      block = take();
      announce(block);
    }
  }

  __device__ __forceinline__ const Block& operator[](int i) const {
    return ahead_[i];
  }
  __device__ __forceinline__ void advance() {
    ahead_[0] = ahead_[1];
    ahead_[1] = ahead_[2];
    ahead_[2] = ahead_[3];
    announce(ahead_[2]);
    ahead_[3] = take();
  }

 private:
  __device__ __forceinline__ Block take() {
    bool first = false;
    if (block_ >= item_.block_end) {
      do {
        if (next_item_ >= end_) return {-1, 0, -1, true};
        item_ = params_.plan.items[next_item_++];
      } while (item_.q_len * params_.num_heads <= first_row_);
      block_ = item_.block_begin;
      first = true;
      if (block_ >= item_.block_end) return {-1, 0, next_item_ - 1, true};
    }
    const int block = params_.block_table[item_.seq * params_.block_table_stride + block_];
    const int num_keys = item_.kv_len - block_++ * kMlaBlockTokens;
    return {block, num_keys, next_item_ - 1, first};
  }

  __device__ __forceinline__ void announce(const Block& block) const {
    if (threadIdx.x % 128 == 0 && block.block >= 0) {
      prefetch_to_l2(params_.fp8_rows + int64_t{block.block} * kFp8BlockBytes, kFp8BlockBytes);
    }
  }

  const DecodeParams& params_;
  int first_row_, next_item_, end_, block_ = 0;
  DecodeItem item_{};
  Block ahead_[4];
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
// latents of every second of a warp's 16 keys: a warp reads the 256 bytes of two keys at a time, and its stores meet no
// bank twice.
class Fp8Converter {
 public:
  __device__ __forceinline__ Fp8Converter(const uint8_t* rows, int thread) {
    const int lane = thread % 32, key = thread / 32 * 16 + lane / 4 % 2, chunk = lane % 4 + lane / 8 * 4;
    first_key_ = key;
    latents_ = rows + key * kMlaFp8RowBytes + chunk * 16;
    scales_ = rows + key * kMlaFp8RowBytes + kMlaLatentDim + chunk / 8 * 4;
    to_ = lane / 8 * kTileBytes + key * 128 + ((lane % 4 * 2) ^ (key & 1)) * 16;
  }

  // Starts loading; nothing if there is no such block (-1).
  __device__ __forceinline__ void load(int block, int half) {
    if (block < 0) return;
    const int64_t from = offset(block, half);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) load_chunk(from, half, i);
  }

  // Writes the half that was loaded last to the four tiles at `to`; latents of keys from `num_keys` on, which may hold
  // anything, become zeros. Meanwhile loads the next half, if there is one.
  __device__ __forceinline__ void convert(uint32_t to, int num_keys, int next_block, int next_half) {
    const int64_t from = offset(next_block, next_half);
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const uint4 bytes = bytes_[i];
      const float scale = first_key_ + 2 * i < num_keys ? scale_[i] * 0x1p120f : 0.0f;
      if (next_block >= 0) load_chunk(from, next_half, i);
      const uint32_t high = pack_bf16(scale, scale);
      const float rest = scale - __uint_as_float(high << 16);
      const uint32_t low = pack_bf16(rest, rest);
      const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
      uint32_t values[8];
#pragma unroll
      for (int w = 0; w < 8; ++w) {
        const uint32_t value = high_bytes_to_bf16(__byte_perm(words[w / 2], 0, w % 2 == 0 ? 0x1404 : 0x3424));
        values[w] = multiply_add_bf16(value, high, multiply_bf16(value, low));
      }
      const uint32_t address = (to + to_) ^ (i % 4 * 32);
      store_shared(address + i * 256, values[0], values[1], values[2], values[3]);
      store_shared((address ^ 16) + i * 256, values[4], values[5], values[6], values[7]);
    }
    fence_async_shared();
    __syncwarp();
  }

 private:
  static constexpr int kChunks = 8;

  static __device__ __forceinline__ int64_t offset(int block, int half) {
    return int64_t{block} * kFp8BlockBytes + half * 256;
  }
  __device__ __forceinline__ void load_chunk(int64_t from, int half, int i) {
    bytes_[i] = load_global_once(latents_ + from + i * 2 * kMlaFp8RowBytes);
    scale_[i] = load_global_once_f32(scales_ + from - half * 248 + i * 2 * kMlaFp8RowBytes);
  }

  const uint8_t* latents_;
  const uint8_t* scales_;
  int first_key_;
  uint32_t to_;
  uint4 bytes_[kChunks];
  float scale_[kChunks];
};

}  // namespace moesaic::cuda
