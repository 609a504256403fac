// bf16 rows for the narrow decode kernel: wgmma reads keys and latents from shared memory as TMA leaves them.
#include "kernels/cuda/mla/decode_narrow.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kTile = 8192;  // bytes of 64 keys x 64 columns

template <int N>
struct Bf16Format {
  static constexpr int kRows = N, kStages = 2;
  static constexpr bool kAdjacent = false;
  static constexpr float kHeadroom = 0.0f;
  struct Stage {
    uint8_t tiles[9][kTile];
  };
  struct Query {
    uint8_t tiles[9][N * 128];  // N rows x 64 columns
    uint8_t p[2][N * 128];      // of a warpgroup: N rows x 64 keys
  };
  struct Maps {
    CUtensorMap q, rows;
  };
  using Shared = NarrowShared<Bf16Format>;
  using Math = NarrowMath<Bf16Format>;

  static __device__ __forceinline__ void load_query(const Maps& maps, Shared& shared, int row, int num_before) {
    const uint32_t full = shared_address(&shared.q_full);
    barrier_wait(shared_address(&shared.q_empty), (num_before & 1) ^ 1);
    barrier_expect(full, 9 * N * 128);
    for (int t = 0; t < 9; ++t) {
      tma_load_2d(shared_address(shared.query.tiles[t]), &maps.q, t * 64, row, full, kEvictFirst);
    }
  }

  static __device__ __forceinline__ void load_block(const Maps& maps, Stage& stage, int row, uint32_t full) {
    barrier_expect(full, 9 * kTile);
    for (int t = 0; t < 9; t += 3) {
      tma_load_3d(shared_address(stage.tiles[t]), &maps.rows, 0, row, t, full, kEvictFirst);
    }
  }

  static __device__ __forceinline__ void begin_item(Math& math, const NarrowTask&, const Maps&) {
#pragma unroll
    for (int c = 0; c < N / 4; ++c) math.scale[c] = math.params.scale_log2;
    barrier_wait(shared_address(&math.shared.q_full), math.q_parity);
    math.q_parity ^= 1;
  }
  static __device__ __forceinline__ void query_read(Math& math) {
    narrow_release(math, &math.shared.q_empty);
  }

  static __device__ __forceinline__ LatentUnit scores(Math& math, float (&s)[N / 2], int stage, int) {
    const uint32_t k = shared_address(&math.shared.stages[stage]), q = shared_address(&math.shared.query);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 36; ++i) {
      wgmma_ss<N>(s, wgmma_operand(k) + (i / 4 * kTile + i % 4 * 32), wgmma_operand(q) + (i / 4 * N * 128 + i % 4 * 32),
                  i > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    pin(s);
    return {};
  }

  // Also zeros the latents of rows from `num_keys` on: they may hold NaN, and 0 * NaN is NaN.
  static __device__ __forceinline__ void store_p(Math& math, const float (&s)[N / 2], const LatentUnit&, int stage,
                                                 int num_keys) {
    uint32_t p[N / 4];
#pragma unroll
    for (int i = 0; i < N / 4; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    store_transposed<N>(shared_address(math.shared.query.p[math.warpgroup]), p, math.warp, math.lane);
    if (num_keys >= 64) return;
    for (int i = math.thread; i < (64 - num_keys) * 64; i += 128) {
      uint8_t* tile = math.shared.stages[stage].tiles[i % 64 / 8];
      *reinterpret_cast<uint4*>(tile + (num_keys + i / 64) * 128 + i % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
  }

  static __device__ __forceinline__ void values(Math& math, float (&o)[8][N / 2], int stage) {
    const uint32_t v = shared_address(&math.shared.stages[stage]);
    const uint32_t p = shared_address(math.shared.query.p[math.warpgroup]);
#pragma unroll
    for (int t = 0; t < 8; ++t) pin(o[t]);
    wgmma_fence();
#pragma unroll
    for (int t = 0; t < 8; ++t) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma_ss<N, 1, 0>(o[t], wgmma_operand(v) + (t * kTile + i * 2048), wgmma_operand(p) + i * 32, true);
      }
    }
    wgmma_commit();
    wgmma_wait<0>();
#pragma unroll
    for (int t = 0; t < 8; ++t) pin(o[t]);
  }
};

}  // namespace

void launch_decode_narrow(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params,
                          const CUtensorMap& q_map, const CUtensorMap& rows3_map) {
  if (layout.tile_rows == 16) return launch_narrow<Bf16Format<16>>(stream, layout, params, {q_map, rows3_map});
  MOESAIC_CHECK_EQ(layout.tile_rows, 32);
  launch_narrow<Bf16Format<32>>(stream, layout, params, {q_map, rows3_map});
}

}  // namespace moesaic::cuda
