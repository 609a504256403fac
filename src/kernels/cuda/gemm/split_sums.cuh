// How the blocks of a cluster add the sums of one tile, each of which holds those of its own run of k. Every block
// becomes owner of a share of the tile's rows; all send it their sums of these rows in one bulk copy each; it adds them
// in the order of k and writes the result. Copies by loads from distributed shared memory took four times as long.
#pragma once

#include "kernels/cuda/gemm/kernel_args.h"
#include "kernels/cuda/ptx.cuh"

namespace moesaic::cuda {

inline constexpr int kMaxSplit = 8;

__device__ inline void write_eight(__nv_bfloat16* y, const float4& low, const float4& high) {
  *reinterpret_cast<uint4*>(y) = {pack_bf16(low.x, low.y), pack_bf16(low.z, low.w), pack_bf16(high.x, high.y),
                                  pack_bf16(high.z, high.w)};
}
__device__ inline void write_eight(float* y, const float4& low, const float4& high) {
  reinterpret_cast<float4*>(y)[0] = low;
  reinterpret_cast<float4*>(y)[1] = high;
}

// Where things lie, in every block at the same addresses.
struct SplitSums {
  uint32_t own;       // [tokens][pitch] bytes of f32: this block's sums
  uint32_t received;  // [split][share][pitch]: what each block sent for this block's rows
  uint32_t barrier;   // counts the bytes received; one arrival
  int pitch;
  int share;   // rows of a block
  int tokens;  // rows of the tile that count
  int split;
  int rank;

  __device__ int first_token(int of_rank) const { return min(share * of_rank, tokens); }
  __device__ int num_tokens(int of_rank) const { return first_token(of_rank + 1) - first_token(of_rank); }

  // Thread `peer` sends to block `peer`; after all of this block's sums are written and fenced, and the peer's ring is
  // no longer in use. Thread 0 also says how much this block will receive.
  __device__ void send(int peer) const {
    if (peer == 0) barrier_expect(barrier, (split - 1) * num_tokens(rank) * pitch);
    const int bytes = num_tokens(peer) * pitch;
    if (peer == rank || bytes == 0) return;
    copy_to_block(received + rank * share * pitch, own + first_token(peer) * pitch, barrier, bytes, peer);
  }

  // Adds and writes this block's rows: y points to the tile's first row and column, of which `columns` are written.
  template <int kColumns, typename Out>
  __device__ void write(Out* y, int64_t y_row_stride, int columns, int thread, int num_threads) const {
    constexpr int kChunks = kColumns / 8;
    const int first = first_token(rank);
    const int chunks = num_tokens(rank) * kChunks;
    for (int i = thread; i < chunks; i += num_threads) {
      const int token = i / kChunks;
      const int column = i % kChunks * 8;
      if (column >= columns) continue;
      const uint32_t at = token * pitch + column * 4;
      float4 low = {}, high = {};
#pragma unroll 1  // code that runs once costs what loading it takes
      for (int s = 0; s < split; ++s) {
        const uint32_t from = (s == rank ? own + first * pitch : received + s * share * pitch) + at;
        const float4 a = load_shared_f32x4(from), b = load_shared_f32x4(from + 16);
        low = {low.x + a.x, low.y + a.y, low.z + a.z, low.w + a.w};
        high = {high.x + b.x, high.y + b.y, high.z + b.z, high.w + b.w};
      }
      write_eight(y + (first + token) * y_row_stride + column, low, high);
    }
  }
};

}  // namespace moesaic::cuda
