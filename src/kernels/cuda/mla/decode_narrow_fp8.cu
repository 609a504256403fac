// FP8 rows for the narrow decode kernel. Nothing is written back to shared memory dequantised: both products take their
// A operand from registers, made from e4m3 bytes on the way.
//
// Keys, for S^T: e4m3 to f16 is exact and one instruction for two elements; the products of the four scale groups are
// summed apart, in units of their scales. Q becomes f16 too, each row shifted by a power of two so that its largest
// element is near 2^14: only elements 2^-31 of that lose bits. Values, for O^T: e4m3 to bf16 times 2^-120 is a shift of
// exponent and mantissa bits; scales and 2^60 go into P, which exists once for each scale group; O^T comes out
// times 2^-60.
//
// Element orders are free where a product sums over them or where its rows are stored: of 64 keys x 128 bytes, lane 4 g
// + c takes the 16-byte chunks 2 c and 2 c + 1 of key g (no bank conflicts under the swizzle), and Q is permuted alike;
// V^T comes by transposing loads of 16-bit pairs of latents, whose even and odd bytes are rows r and r + 8.
#include <cuda_fp16.h>

#include "kernels/cuda/mla/decode_narrow.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kLatentTile = 64 * 128;  // bytes of 64 keys x one scale group

// Two e4m3 to two f16.
__device__ __forceinline__ uint32_t e4m3_to_f16(uint32_t pair) {
  uint32_t result;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, low;\n}\n"
      : "=r"(result)
      : "r"(pair));
  return result;
}
__device__ __forceinline__ uint32_t e4m3_high_to_f16(uint32_t pairs) {
  uint32_t result;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.rn.f16x2.e4m3x2 %0, high;\n}\n"
      : "=r"(result)
      : "r"(pairs));
  return result;
}

// Bytes 0 and 2, or 1 and 3, to two bf16, times 2^-120: sign, then exponent and mantissa four bits lower.
__device__ __forceinline__ uint32_t even_bytes_to_bf16(uint32_t bytes) {
  return (bytes & 0x00800080u) * 256 + (bytes & 0x007f007fu) * 16;
}
__device__ __forceinline__ uint32_t odd_bytes_to_bf16(uint32_t bytes) {
  return (bytes & 0x80008000u) | ((bytes & 0x7f007f00u) >> 4);
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
  // Operands and sums of a pass while the one before is still running: registers allow it beside 16 columns of O^T.
  static constexpr int kBuffers = N == 16 ? 2 : 1;
  static constexpr bool kAdjacent = true;
  static constexpr float kUnit = 0x1p60f;
  struct Stage {
    uint8_t latents[4][kLatentTile];  // a scale group each, 128-byte swizzle
    uint8_t keys[64 * 128];           // 64 rotated keys in bf16, 128-byte swizzle
    float scales[64][4];
  };
  struct Query {
    uint8_t latents[8][N * 128];  // f16, permuted
    uint8_t keys[N * 128];        // bf16
    uint8_t p[2][4][N * 128];     // of a warpgroup and scale group: N rows x 64 keys
    float inverse[N];             // of the powers of two
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
    // 2^e that brings the largest element to [2^14, 2^15): its biased exponent, and the inverse's.
    const uint32_t shift = min(268u - (largest >> 23), 253u);
    const float factor = __uint_as_float(shift << 23);
    auto& query = math.shared.query;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = lane + i * kRowThreads, c = chunk % 16 / 4, h = chunk / 2 % 2;  // chunk 16 g + 4 c + 2 h + half
      uint8_t* tile = query.latents[chunk / 16 * 2 + h] + row * 128;
      const uint32_t pairs[4] = {chunks[i].x, chunks[i].y, chunks[i].z, chunks[i].w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const __half2 value = __floats2half2_rn(__uint_as_float(pairs[k] << 16) * factor,
                                                __uint_as_float(pairs[k] & 0xffff0000u) * factor);
        const int step = chunk % 2 * 2 + k / 2;  // of 16 columns; in it, columns 2 c + 8 (k % 2) and the next
        const int to = ((2 * step + k % 2) ^ (row & 7)) * 16 + 4 * c;
        *reinterpret_cast<__half2*>(tile + to) = value;
      }
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

  static __device__ __forceinline__ void scores(Math& math, float (&s)[N / 2], int stage_index) {
    const Stage& stage = math.shared.stages[stage_index];
    const uint32_t q = shared_address(&math.shared.query);
    const int key = 16 * math.warp + math.lane / 4;
    float groups[kBuffers][N / 2];
    uint32_t a[kBuffers][4][4];
    pin(s);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      wgmma_ss<N>(s, wgmma_operand(shared_address(stage.keys)) + k * 32, wgmma_operand(q) + (8 * N * 128 + k * 32),
                  k > 0);
    }
    wgmma_commit();
    const auto add = [&](int g) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float scale = stage.scales[key + 8 * i][g];
#pragma unroll
        for (int c = 0; c < N / 4; ++c) {
          const int e = c / 2 * 4 + 2 * i + c % 2;
          s[e] = fmaf(groups[g % kBuffers][e], scale, s[e]);
        }
      }
    };
#pragma unroll
    for (int pass = 0; pass < 8; ++pass) {  // 64 columns: scale group pass / 2
      const int g = pass / 2, h = pass % 2, buffer = pass % kBuffers;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int row = key + 8 * i, chunk = (2 * (math.lane % 4) + h) ^ (row & 7);
        const uint4 bytes = *reinterpret_cast<const uint4*>(stage.latents[g] + row * 128 + chunk * 16);
        const uint32_t words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          a[buffer][k][i] = e4m3_to_f16(words[k]);
          a[buffer][k][2 + i] = e4m3_high_to_f16(words[k]);
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) pin(a[buffer][k]);
      if (h == 0) pin(groups[g % kBuffers]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        wgmma_rs_f16<N>(groups[g % kBuffers], a[buffer][k], wgmma_operand(q) + (pass * N * 128 + k * 32),
                        h > 0 || k > 0);
      }
      wgmma_commit();
      wgmma_wait<kBuffers - 1>();
      const int done = pass + 1 - kBuffers;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        if (done >= 0) pin(a[done % kBuffers][k]);
      }
      if (pass == 0) pin(s);
      if (done >= 0 && done % 2 == 1) {
        pin(groups[done / 2 % kBuffers]);
        add(done / 2);
      }
    }
    if (kBuffers == 1) return;
    wgmma_wait<0>();
    pin(groups[kBuffers - 1]);
    add(3);
  }

  // P times the keys' scales; keys from `num_keys` on may have any scale, NaN too.
  static __device__ __forceinline__ void store_p(Math& math, const float (&s)[N / 2], int stage, int num_keys) {
    const int key = 16 * math.warp + math.lane / 4;
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      float scales[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        scales[i] = key + 8 * i < num_keys ? math.shared.stages[stage].scales[key + 8 * i][g] * 0x1p60f : 0.0f;
      }
      store_transposed<N>(shared_address(math.shared.query.p[math.warpgroup][g]), s, math.warp, math.lane,
                          [&](int i) { return scales[i]; });
    }
  }

  static __device__ __forceinline__ void values(Math& math, float (&o)[8][N / 2], int stage) {
    const uint32_t v = shared_address(&math.shared.stages[stage]);
    const uint32_t p = shared_address(math.shared.query.p[math.warpgroup]);
    uint32_t a[kBuffers][4][4];
#pragma unroll
    for (int t = 0; t < 8; ++t) {
      const int buffer = t % kBuffers;
      const uint32_t row =
          v + t / 2 * kLatentTile + math.lane * 128 + (((4 * (t % 2) + math.warp) ^ (math.lane & 7)) * 16);
#pragma unroll
      for (int half = 0; half < 2; ++half) {  // 32 keys
        uint32_t m[4];
        load_matrices_transposed(m, row + half * 32 * 128);
#pragma unroll
        for (int k = 0; k < 2; ++k) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            a[buffer][2 * half + k][2 * i] = even_bytes_to_bf16(m[2 * k + i]);
            a[buffer][2 * half + k][2 * i + 1] = odd_bytes_to_bf16(m[2 * k + i]);
          }
        }
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) pin(a[buffer][k]);
      pin(o[t]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k) wgmma_rs<N>(o[t], a[buffer][k], wgmma_operand(p) + (t / 2 * N * 128 + k * 32), true);
      wgmma_commit();
      wgmma_wait<kBuffers - 1>();
      const int done = t + 1 - kBuffers;
      if (done >= 0) {
        pin(o[done]);
#pragma unroll
        for (int k = 0; k < 4; ++k) pin(a[done % kBuffers][k]);
      }
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
