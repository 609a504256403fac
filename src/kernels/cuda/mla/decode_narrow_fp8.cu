// FP8 rows for the narrow decode kernel. Nothing is written back to shared memory dequantised.
//
// Keys, for S^T: the tensor cores read their bytes. A row of Q, times a power of two that brings its largest element
// near 2^8, is the sum of two e4m3, high + low / 16: exactly where an element is within 2^-14 of the largest, and
// within 2^-22 of the largest everywhere. The products of both halves and the four scale groups are summed apart; the
// tensor cores' sums of 128 such products are 1e-4 off. Values, for O^T: bytes become f16 in registers; P has their
// scales, so it exists once for each scale group.
//
// V^T comes by transposing loads of 16-bit pairs of latents, whose even and odd bytes are rows r and r + 8.
#include "kernels/cuda/mla/decode_narrow.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kLatentTile = 64 * 128;  // bytes of 64 keys x one scale group

// (lo, hi) as two e4m3.
__device__ __forceinline__ uint32_t pack_e4m3(float lo, float hi) {
  uint16_t packed;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(packed) : "f"(hi), "f"(lo));
  return packed;
}

__device__ __forceinline__ void load_matrices_transposed(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

template <int N>
struct Fp8Format {
  static constexpr int kRows = N, kStages = N == 16 ? 4 : 3;
  static constexpr bool kAdjacent = true;
  static constexpr float kHeadroom =
      6.0f;  // P times a scale, after kNarrowSlack and a scale of almost 2, is below 2^15
  struct Stage {
    uint8_t latents[4][kLatentTile];  // a scale group each, 128-byte swizzle
    uint8_t keys[64 * 128];           // 64 rotated keys in bf16, 128-byte swizzle
    float scales[64][4];
  };
  struct Query {
    uint8_t latents[4][2 * N * 128];  // a scale group each: N rows of high halves, then N of low ones
    uint8_t keys[N * 128];            // bf16
    uint8_t p[2][4][N * 128];         // of a warpgroup and scale group: N rows x 64 keys
    float inverse[N];                 // of the powers of two
  };
  struct Maps {
    CUtensorMap latents;  // boxes of 128 bytes x 64 rows, swizzled; the keys too
    CUtensorMap scales;   // 16 bytes x 64 rows
    const uint16_t* q;    // bf16 [rows, 576]
  };
  using Shared = NarrowShared<Fp8Format>;
  using Math = NarrowMath<Fp8Format>;

  static __device__ __forceinline__ void load_query(const Maps&, Shared&, int, int) {}

  static __device__ __forceinline__ void load_block(const Maps& maps, Stage& stage, int row, uint32_t full) {
    barrier_expect(full, sizeof(Stage));
    for (int g = 0; g < 4; ++g) {
      tma_load_2d(shared_address(stage.latents[g]), &maps.latents, g * 128, row, full, kEvictFirst);
    }
    tma_load_2d(shared_address(stage.scales), &maps.scales, kMlaLatentDim, row, full, kEvictFirst);
    tma_load_2d(shared_address(stage.keys), &maps.latents, kMlaLatentDim + 16, row, full, kEvictFirst);
  }

  // All math threads together convert the tile's rows of Q.
  static __device__ __forceinline__ void begin_item(Math& math, const NarrowTask& task, const Maps& maps) {
    named_sync(kBoth, 256);                                           // nobody reads the last item's any more
    constexpr int kRowThreads = 256 / N, kChunks = 64 / kRowThreads;  // a chunk is 8 columns
    const int thread = math.warpgroup * 128 + math.thread, row = thread / kRowThreads, lane = thread % kRowThreads;
    const uint4* from = reinterpret_cast<const uint4*>(maps.q + int64_t{task.row_begin + row} * 576);
    const bool exists = row < task.num_rows;
    uint4 chunks[kChunks];
    uint32_t largest = 0;  // of the magnitudes' bits
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      chunks[i] = exists ? from[lane + i * kRowThreads] : make_uint4(0, 0, 0, 0);
#pragma unroll
      for (const uint32_t pair : {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w}) {
        largest = max(largest, max(pair << 16 & 0x7fff0000u, pair & 0x7fff0000u));
      }
    }
#pragma unroll
    for (int step = kRowThreads / 2; step > 0; step /= 2) {
      largest = max(largest, __shfl_xor_sync(0xffffffff, largest, step));
    }
    // 2^e that brings the largest element to [2^7, 2^8): its biased exponent, and the inverse's.
    const uint32_t shift = min(261u - (largest >> 23), 253u);
    const float factor = __uint_as_float(shift << 23);
    auto& query = math.shared.query;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = lane + i * kRowThreads;  // of 16 in a scale group
      const uint32_t pairs[4] = {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w};
      uint32_t high[4], low[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float2 value = {__uint_as_float(pairs[k] << 16) * factor,
                              __uint_as_float(pairs[k] & 0xffff0000u) * factor};
        high[k] = pack_e4m3(value.x, value.y);
        const uint32_t back = low_e4m3_to_f16(high[k]);
        const float2 rounded = __half22float2(reinterpret_cast<const __half2&>(back));
        low[k] = pack_e4m3((value.x - rounded.x) * 16.0f, (value.y - rounded.y) * 16.0f);
      }
      uint8_t* to = query.latents[chunk / 16] + row * 128 + ((chunk % 16 / 2) ^ (row & 7)) * 16 + chunk % 2 * 8;
      *reinterpret_cast<uint2*>(to) = make_uint2(high[0] | high[1] << 16, high[2] | high[3] << 16);
      *reinterpret_cast<uint2*>(to + N * 128) = make_uint2(low[0] | low[1] << 16, low[2] | low[3] << 16);
    }
    if (lane < 8) {
      const uint4 keys = exists ? from[64 + lane] : make_uint4(0, 0, 0, 0);
      const auto scaled = [&](uint32_t pair) {
        return pack_bf16(__uint_as_float(pair << 16) * factor, __uint_as_float(pair & 0xffff0000u) * factor);
      };
      *reinterpret_cast<uint4*>(query.keys + row * 128 + ((lane ^ (row & 7)) * 16)) =
          make_uint4(scaled(keys.x), scaled(keys.y), scaled(keys.z), scaled(keys.w));
    }
    if (lane == 0) query.inverse[row] = __uint_as_float((254 - shift) << 23);
    fence_async_shared();
    named_sync(kBoth, 256);
#pragma unroll
    for (int c = 0; c < N / 4; ++c) math.scale[c] = math.params.scale_log2 * query.inverse[narrow_column(math.lane, c)];
  }
  static __device__ __forceinline__ void query_read(Math&) {}

  // Of the block's `num_keys` keys; the scores of others may be anything.
  static __device__ __forceinline__ LatentUnit scores(Math& math, float (&s)[N / 2], int stage_index, int num_keys) {
    const Stage& stage = math.shared.stages[stage_index];
    const uint32_t q = shared_address(&math.shared.query), k = shared_address(&stage);
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_ss<N>(s, wgmma_operand(k) + (4 * kLatentTile + i * 32), wgmma_operand(q) + (8 * N * 128 + i * 32), i > 0);
    }
    float sums[N];  // of a scale group: high halves of Q, then low ones
    LatentUnit unit;
    float4 scales[2];
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      pin(sums);
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma_ss_e4m3<2 * N>(sums, wgmma_operand(k) + (g * kLatentTile + i * 32),
                             wgmma_operand(q) + (g * 2 * N * 128 + i * 32), i > 0);
      }
      wgmma_commit();
      if (g == 0) {  // meanwhile
        const auto* all = reinterpret_cast<const float4*>(stage.scales);
        const uint32_t largest = max(largest_scale(all[math.lane], math.lane < num_keys),
                                     largest_scale(all[math.lane + 32], math.lane + 32 < num_keys));
        unit = latent_unit(__reduce_max_sync(0xffffffff, largest));
#pragma unroll
        for (int i = 0; i < 2; ++i) scales[i] = all[16 * math.warp + math.lane / 4 + 8 * i];
      }
      wgmma_wait<0>();
      pin(sums);
      if (g == 0) pin(s);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float scale = g == 0 ? scales[i].x : g == 1 ? scales[i].y : g == 2 ? scales[i].z : scales[i].w;
#pragma unroll
        for (int c = 0; c < N / 4; ++c) {
          const int e = c / 2 * 4 + 2 * i + c % 2;
          s[e] = fmaf(fmaf(sums[N / 2 + e], 0.0625f, sums[e]), scale, s[e]);
        }
      }
    }
    return unit;
  }

  // P times the keys' scales. Keys from `num_keys` on may have any scale and latents, NaN too: those become zeros, as 0
  // * NaN is NaN.
  static __device__ __forceinline__ void store_p(Math& math, const float (&s)[N / 2], const LatentUnit& unit,
                                                 int stage_index, int num_keys) {
    Stage& stage = math.shared.stages[stage_index];
    const int key = 16 * math.warp + math.lane / 4;
    uint32_t p[N / 4];
#pragma unroll
    for (int i = 0; i < N / 4; ++i) p[i] = pack_f16(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      uint32_t scaled[N / 4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float scale = key + 8 * i < num_keys ? stage.scales[key + 8 * i][g] * unit.inverse : 0.0f;
        const uint32_t pair = pack_f16(scale, scale);
#pragma unroll
        for (int j = 0; j < N / 8; ++j) scaled[2 * j + i] = multiply_f16(p[2 * j + i], pair);
      }
      store_transposed<N>(shared_address(math.shared.query.p[math.warpgroup][g]), scaled, math.warp, math.lane);
    }
    if (num_keys >= 64) return;
    for (int i = math.thread; i < (64 - num_keys) * 32; i += 128) {
      uint8_t* row = stage.latents[i % 32 / 8] + (num_keys + i / 32) * 128;
      *reinterpret_cast<uint4*>(row + i % 8 * 16) = make_uint4(0, 0, 0, 0);
    }
  }

  // Operands of one product are made while the one before is running.
  static __device__ __forceinline__ void values(Math& math, float (&o)[8][N / 2], int stage) {
    const uint32_t v = shared_address(&math.shared.stages[stage]);
    const uint32_t p = shared_address(math.shared.query.p[math.warpgroup]);
    uint32_t bytes[2][2][4], a[2][4][4];
    const auto load = [&](int t) {  // 32 keys at a time
      const uint32_t row =
          v + t / 2 * kLatentTile + math.lane * 128 + (((4 * (t % 2) + math.warp) ^ (math.lane & 7)) * 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) load_matrices_transposed(bytes[t % 2][half], row + half * 32 * 128);
    };
    load(0);
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      if (t < 7) load(t + 1);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t pairs = __byte_perm(bytes[t % 2][half][i], 0, 0x3120);  // even latents of both keys, then odd
          a[t % 2][2 * half + i / 2][i % 2 * 2] = low_e4m3_to_f16(pairs);
          a[t % 2][2 * half + i / 2][i % 2 * 2 + 1] = high_e4m3_to_f16(pairs);
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) pin(a[t % 2][k]);
      pin(o[t]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma_rs<N, 0, F16Operands>(o[t], a[t % 2][k], wgmma_operand(p) + (t / 2 * N * 128 + k * 32), true);
      }
      wgmma_commit();
      wgmma_wait<1>();
      if (t == 0) continue;
      pin(o[t - 1]);
#pragma unroll
      for (int k = 0; k < 4; ++k) pin(a[(t - 1) % 2][k]);
    }
    wgmma_wait<0>();
    pin(o[7]);
  }
};

}  // namespace

void launch_decode_narrow_fp8(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params,
                              const void* q, const CUtensorMap& latents_map, const CUtensorMap& scales_map) {
  const auto* bits = static_cast<const uint16_t*>(q);
  if (layout.tile_rows == 16) {
    return launch_narrow<Fp8Format<16>>(stream, layout, params, {latents_map, scales_map, bits});
  }
  MOESAIC_CHECK_EQ(layout.tile_rows, 32);
  launch_narrow<Fp8Format<32>>(stream, layout, params, {latents_map, scales_map, bits});
}

}  // namespace moesaic::cuda
