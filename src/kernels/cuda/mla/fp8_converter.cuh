// FP8 rows become the f16 tiles that the wide kernel's products read: a warpgroup loads them into registers (from L2,
// where a bulk prefetch brought them), converts them, and stores them to shared memory. Rotated keys stay bf16, times
// the same power of two.
#pragma once

#include "kernels/cuda/mla/decode_wide.cuh"

namespace moesaic::cuda::wide {

constexpr int kFp8BlockBytes = kMlaBlockTokens * kMlaFp8RowBytes;
constexpr int kFp8KeysOffset = kMlaLatentDim + 16;  // of the rotated keys in a row, in bytes
enum ConverterNamed { kConverter = 8 };

// The blocks of a part in order, some ahead: [0] is the one that is converted next, [1] the one whose loads follow, [2]
// was announced to L2. All threads of the warpgroup have the same.
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

  __device__ __forceinline__ Fp8Blocks(const DecodeParams& params, const DecodePart& part, int first_row, int thread)
      : params_(params), first_row_(first_row), thread_(thread), next_item_(part.begin), end_item_(part.end) {
#pragma unroll 1
    for (int i = 0; i < 3; ++i) advance();
  }

  __device__ __forceinline__ const Block& operator[](int i) const {
    return ahead_[i];
  }
  __device__ __forceinline__ void advance() {
    ahead_[0] = ahead_[1];
    ahead_[1] = ahead_[2];
    ahead_[2] = take();
    if (thread_ == 0 && ahead_[2].exists()) {
      prefetch_to_l2(params_.fp8_rows + int64_t{ahead_[2].block} * kFp8BlockBytes, kFp8BlockBytes);
    }
  }

 private:
  __device__ __forceinline__ Block take() {
    int first = 0;
    while (block_ >= block_end_) {
      if (next_item_ >= end_item_) return {-1, 0};
      const DecodeItem item = params_.plan.items[next_item_++];
      if (item.q_len * params_.num_heads <= first_row_) continue;
      block_ = item.block_begin;
      block_end_ = item.block_end;
      seq_ = item.seq;
      kv_len_ = item.kv_len;
      first = 128;
    }
    // A lane each has 32 entries of the table: a load at a time would be waited for with the latents in flight.
    if (first != 0 || block_ % 32 == 0) {
      const int* table = params_.block_table + seq_ * params_.block_table_stride;
      entries_ = table[min(block_ / 32 * 32 + thread_ % 32, block_end_ - 1)];
    }
    const int block = __shfl_sync(0xffffffff, entries_, block_ % 32);
    const int num_keys = min(kv_len_ - block_ * kMlaBlockTokens, kMlaBlockTokens);
    ++block_;
    return {block, (next_item_ - 1) * 256 + first + num_keys};
  }

  const DecodeParams& params_;
  int first_row_, thread_, next_item_, end_item_;
  int seq_ = 0, kv_len_ = 0, block_ = 0, block_end_ = 0;  // what comes next of the item before next_item_
  int entries_ = 0;                                       // of the table, for the 32 blocks that block_ is one of
  Block ahead_[3] = {{-1, 0}, {-1, 0}, {-1, 0}};
};

// One of a warpgroup's threads. A unit of work is half of a block: 64 keys x 256 latents, four tiles. A thread has 16
// latents of every eighth key: a warp reads the 256 bytes of two keys at a time, and its stores meet no bank twice. Of
// a block's scales it loads two neighbouring ones.
class Fp8Converter {
 public:
  __device__ __forceinline__ Fp8Converter(const uint8_t* rows, int thread) : rows_(rows), thread_(thread) {
    const int lane = thread % 32, warp = thread / 32, key = 2 * warp + lane / 4 % 2;
    latents_ = key * kMlaFp8RowBytes + (lane % 4 + lane / 8 * 4) * 16;
    to_ = lane / 8 * kTile + key * 128 + ((lane % 4 * 2) ^ key) * 16;
    scales_ = (lane / 16 * 8 + key) * 32;
    scales_to_ = (thread % 2 * 16 + thread / 2 % 8) * 32 + thread / 16 * 4;
  }

  // Starts loading a half.
  __device__ __forceinline__ void load(int block, int half) {
#pragma unroll
    for (int batch = 0; batch < kChunks; batch += kBatch) load_batch(block, half, batch);
  }

  // Before a block's first half is converted; the scales came with that half. Scales of keys from `num_keys` on may be
  // anything. Sets the block's unit.
  __device__ __forceinline__ void prepare(const Layout& at, int which, int num_keys) {
    const uint32_t own = __float_as_uint(fmaxf(fabsf(scale_.x), fabsf(scale_.y)));
    const uint32_t largest = __reduce_max_sync(0xffffffff, thread_ / 2 < num_keys ? own : 0);
    if (thread_ % 32 == 0) store_shared_u32(at.largest() + thread_ / 32 * 4, largest);
    named_sync(kConverter, 128);
    const uint4 all = load_shared(at.largest());
    const LatentUnit unit = latent_unit(max(max(all.x, all.y), max(all.z, all.w)));
    const float2 scale = {scale_.x * unit.inverse, scale_.y * unit.inverse};
    const uint32_t to = at.scales(which) + scales_to_;
    store_shared_u32(to, pack_f16(scale.x, scale.x));
    store_shared_u32(to + 256, pack_f16(scale.y, scale.y));
    if (thread_ == 0) {
      store_shared(at.unit(which), __float_as_uint(unit.exponent), __float_as_uint(unit.power),
                   __float_as_uint(unit.inverse), 0);
    }
    named_sync(kConverter, 128);
  }

  // Writes the half for which load was called last, `half` of a prepared block, to the four tiles at `to`, and loads
  // the next one into the registers that fall free. The fence to the async proxy is the readers': here it would wait
  // for these loads.
  __device__ __forceinline__ void convert(uint32_t to, uint32_t scales, int half, int next_block, int next_half) {
    __syncwarp();  // threads that had more to do come back; a split warp takes longer ways
    scales += scales_ + half * 512;
    to += to_;
    uint4 scale = load_shared(scales);
#pragma unroll
    for (int batch = 0; batch < kChunks; batch += kBatch) {
      if (batch == 4) scale = load_shared(scales + 16);
      convert_batch(to, batch % 4 == 0 ? make_uint2(scale.x, scale.y) : make_uint2(scale.z, scale.w), batch);
      load_batch(next_block, next_half, batch);
      __syncwarp();  // the compiler would let the loads sink to where they are used
    }
  }

  // The rotated keys at `keys` times the inverse of the block's unit, in place.
  __device__ __forceinline__ void scale_keys(uint32_t keys, float inverse) const {
    const uint32_t factor = __byte_perm(__float_as_uint(inverse), 0, 0x3232);
    keys += thread_ * 16;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
      const uint4 v[2] = {load_shared(keys + i * 2048), load_shared(keys + (i + 1) * 2048)};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        store_shared(keys + (i + j) * 2048, multiply_bf16(v[j].x, factor), multiply_bf16(v[j].y, factor),
                     multiply_bf16(v[j].z, factor), multiply_bf16(v[j].w, factor));
      }
    }
  }

 private:
  // Chunks of 16 latents that a thread has of a half, and those that are loaded together: loads in flight are told
  // apart by six counters only, so that waiting for one of many waits for those behind it too.
  static constexpr int kChunks = 8, kBatch = 2;

  __device__ __forceinline__ void convert_batch(uint32_t even, const uint2& scale, int batch) const {
#pragma unroll
    for (int i = batch; i < batch + kBatch; ++i) {
      const uint32_t factor = i == batch ? scale.x : scale.y;
      uint32_t values[8];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        values[2 * w] = multiply_f16(low_e4m3_to_f16(words_[i][w]), factor);
        values[2 * w + 1] = multiply_f16(high_e4m3_to_f16(words_[i][w]), factor);
      }
      store_shared(even + i * 1024, values[0], values[1], values[2], values[3]);
      store_shared((even ^ 16) + i * 1024, values[4], values[5], values[6], values[7]);
    }
  }

  __device__ __forceinline__ void load_batch(int block, int half, int batch) {
    // Where there is no block, the first of all: a condition would keep the old registers alive beside the new ones.
    const uint8_t* from = rows_ + int64_t{max(block, 0)} * kFp8BlockBytes;
    if (batch == 0) {
      scale_ = load_global_once_f32x2(from + thread_ / 2 * kMlaFp8RowBytes + kMlaLatentDim + thread_ % 2 * 8);
    }
    from += latents_ + half * 256;
#pragma unroll
    for (int i = batch; i < batch + kBatch; ++i) {
      const uint4 bytes = load_global_once(from + i * 8 * kMlaFp8RowBytes);
      words_[i][0] = bytes.x;
      words_[i][1] = bytes.y;
      words_[i][2] = bytes.z;
      words_[i][3] = bytes.w;
    }
  }

  const uint8_t* rows_;
  int thread_;
  int latents_;  // offset of this thread's in a block
  uint32_t to_, scales_, scales_to_;
  uint32_t words_[kChunks][4];
  float2 scale_;
};

}  // namespace moesaic::cuda::wide
