// Who fills shared memory for the wide decode kernel: one thread where rows are bf16, a warpgroup where they are FP8.
#pragma once

#include "kernels/cuda/mla/decode_wide.cuh"
#include "kernels/cuda/mla/fp8_converter.cuh"

namespace moesaic::cuda::wide {

// By one thread, as soon as the math threads are done with the Q of the item before.
__device__ __forceinline__ void load_query(const DecodeParams& params, const CUtensorMap* q_map, const Layout& at,
                                           int tile, int q_begin, uint32_t& q_parity) {
  barrier_wait(at.q_empty(), q_parity ^ 1);
  q_parity ^= 1;
  barrier_expect(at.q_full(), kBlock);
#pragma unroll 1
  for (int t = 0; t < 9; ++t) {
    tma_load_2d(at.q() + t * kTile, q_map, t * 64, q_begin * params.num_heads + tile * 64, at.q_full(), kEvictFirst);
  }
}

// One thread loads everything, in the order in which the space falls free.
__device__ __forceinline__ void load(const DecodeParams& params, const CUtensorMap* q_map, const CUtensorMap* rows_map,
                                     const Layout& at, int tile, const DecodePart& part) {
  uint32_t q_parity = 0, parity[2] = {0, 0};
  // A fresh barrier lets the first wait, for the phase before, pass.
  const auto refill = [&](int which, int first, int last, int row) {
#pragma unroll 1
    for (int t = first; t < last; ++t) {
      barrier_expect(at.full(which, t), kTile);
      tma_load_3d(at.block(which) + t * kTile, rows_map, 0, row, t, at.full(which, t), kEvictFirst);
    }
  };
  DecodeItem item = part.first;
  for (int i = part.begin; i < part.end; ++i) {
    if (i > part.begin) item = params.plan.items[i];
    if (item.q_len * params.num_heads <= tile * 64) continue;
    const int* table = params.block_table + item.seq * params.block_table_stride;
    const auto row_of = [&](int b) { return b < item.block_end ? table[b] * 64 : -1; };
    int row0 = row_of(item.block_begin), row1 = row_of(item.block_begin + 1);
    if (item.block_begin < item.block_end) load_query(params, q_map, at, tile, item.q_begin, q_parity);
    for (int b = item.block_begin; b < item.block_end; b += 2) {
      const int next0 = row_of(b + 2), next1 = row_of(b + 3);
      barrier_wait(at.empty(0, kLeft), parity[0] ^ 1);
      refill(0, 0, 4, row0);
      if (row1 >= 0) {
        barrier_wait(at.empty(1, kRight), parity[1] ^ 1);
        refill(1, 4, 8, row1);
      }
      barrier_wait(at.empty(0, kRight), parity[0] ^ 1);
      refill(0, 4, 9, row0);
      if (row1 >= 0) {
        barrier_wait(at.empty(1, kLeft), parity[1] ^ 1);
        refill(1, 0, 4, row1);
        refill(1, 8, 9, row1);
        parity[1] ^= 1;
      }
      parity[0] ^= 1;
      row0 = next0;
      row1 = next1;
    }
  }
}

// A value that the compiler cannot work out again where it is used: reading special registers takes 20 cycles and more.
__device__ __forceinline__ uint32_t kept(uint32_t value) {
  return __shfl_xor_sync(0xffffffff, value, 0);
}

// A warpgroup converts FP8 rows, in the same order.
__device__ __forceinline__ void convert(const DecodeParams& params, const CUtensorMap* q_map,
                                        const CUtensorMap* rows_map, const Layout& layout, int tile,
                                        const DecodePart& part) {
  const int thread = static_cast<int>(kept(threadIdx.x % 128));
  const Layout at{kept(layout.base), layout.converted};
  Fp8Blocks blocks(params, part, tile * 64, thread);
  Fp8Converter converter(params.fp8_rows, thread);
  uint32_t q_parity = 0, parities = 0;  // parities: of both blocks' waits, a bit each
  if (blocks[0].exists()) converter.load(blocks[0].block, 0);
  while (blocks[0].exists()) {
    const Fp8Blocks::Block block0 = blocks[0], block1 = blocks[1];
    if (block0.first() && thread == 0) {
      load_query(params, q_map, at, tile, params.plan.items[block0.item()].q_begin, q_parity);
    }
    const bool pair = block1.exists() && !block1.first();
    blocks.advance();  // waits for the loads in flight, so not in the loop
    if (pair) blocks.advance();
    // Halves of the blocks: left of 0, right of 1, right of 0, left of 1.
    const auto half_of = [](int step) { return (step + 1) / 2 % 2; };
#pragma unroll 1
    for (int step = 0; step < 4; step += pair ? 1 : 2) {
      const int which = step % 2, half = half_of(step), next_step = step + (pair ? 1 : 2);
      const int next = next_step > 3 ? blocks[0].block : next_step % 2 == 0 ? block0.block : block1.block;
      const bool second = step >= 2;  // of the block's halves
      barrier_wait(at.empty(which, half == 0 ? kLeft : kRight), (parities >> which & 1) ^ 1);
      if (second) {
        if (thread == 0) {
          barrier_expect(at.keys_full(which), kTile);
          tma_load_2d(at.block(which) + 8 * kTile, rows_map, kFp8KeysOffset,
                      (which == 0 ? block0.block : block1.block) * 64, at.keys_full(which), kEvictFirst);
        }
      } else {
        converter.prepare(at, which, which == 0 ? block0.num_keys() : block1.num_keys());
      }
      converter.convert(at.block(which) + half * 4 * kTile, at.scales(which), half, next,
                        next_step > 3 ? 0 : half_of(next_step));
      if (thread % 32 == 0) barrier_arrive(at.full(which, half * 4));
      if (second) {
        barrier_wait(at.keys_full(which), parities >> which & 1);
        parities ^= 1 << which;
        converter.scale_keys(at.block(which) + 8 * kTile, load_shared_f32(at.unit(which) + 8));
        __syncwarp();
        if (thread % 32 == 0) barrier_arrive(at.full(which, 8));
      }
    }
  }
}

}  // namespace moesaic::cuda::wide
