// Flash attention for 192-wide keys and 128-wide values. A thread block has 128 queries of one head: two warpgroups of
// 64 rows each, and a warp that loads tiles of 128 keys and values into two stages. Within a warpgroup the scores of
// the next tile and the values of the current one are in the tensor cores while nobody waits; between warpgroups, turns
// (named barriers) let one compute its softmax while the other multiplies: FlashAttention-3's two overlaps (Shah et al.
// 2024, section 3). Tiles of queries are handed out by a counter, long ones first.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/mla/mla_prefill.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "tensor/cuda/cuda_error.h"
#include "tensor/cuda/tensor_map.h"

namespace moesaic::cuda {
namespace {

constexpr int kQueries = 128, kKeys = 128, kStages = 2;
constexpr int kChunk = 128 * 128;  // bytes of 128 rows x 64 columns
constexpr int kKeyChunks = kMlaKeyDim / 64, kValueChunks = kMlaValueDim / 64;
constexpr int kThreads = 384;     // warpgroups 0 and 1 compute, the first warp of 2 loads
constexpr float kNoMax = -1e30f;  // finite: exp2(-inf - kNoMax) is 0
constexpr double kLog2E = 1.4426950408889634;

enum Named { kTurn = 1, kWarpgroup = 3 };  // + warpgroup

// 128 queries of a head of a sequence.
struct Tile {
  int head;            // -1: no more
  int first_query;     // of the sequence
  int q_begin, q_len;  // tokens
  int kv_begin, kv_len;
};

struct Shared {
  uint8_t q[kKeyChunks][kChunk];
  uint8_t k[kStages][kKeyChunks][kChunk];
  uint8_t v[kStages][kValueChunks][kChunk];
  Tile tiles[2];
  uint64_t tile_full[2], tile_empty[2], q_full, q_empty;
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
};

struct Params {
  const int* q_begin;
  const int* kv_begin;
  int num_seqs, num_heads;
  float scale_log2;
  int* next_tile;  // zero at the start
  __nv_bfloat16* out;
  int64_t out_stride;
};

// Tile `index` of all; the warp looks at 32 sequences at a time. Tiles of a sequence come head by head, late queries,
// which see most keys, first.
__device__ Tile find_tile(const Params& params, int index) {
  const int lane = threadIdx.x % 32;
  for (int base = 0; base < params.num_seqs; base += 32) {
    const int seq = base + lane;
    const int q_len = seq < params.num_seqs ? params.q_begin[seq + 1] - params.q_begin[seq] : 0;
    const int row_tiles = (q_len + kQueries - 1) / kQueries, num_tiles = row_tiles * params.num_heads;
    int end = num_tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(0xffffffff, end, step);
      if (lane >= step) end += before;
    }
    const unsigned found = __ballot_sync(0xffffffff, index < end);
    if (found == 0) {
      index -= __shfl_sync(0xffffffff, end, 31);
      continue;
    }
    const int owner = __ffs(found) - 1;
    const int local = index - __shfl_sync(0xffffffff, end - num_tiles, owner);
    const int tiles = __shfl_sync(0xffffffff, row_tiles, owner);
    Tile tile;
    tile.head = local / tiles;
    tile.first_query = (tiles - 1 - local % tiles) * kQueries;
    tile.q_begin = params.q_begin[base + owner];
    tile.q_len = params.q_begin[base + owner + 1] - tile.q_begin;
    tile.kv_begin = params.kv_begin[base + owner];
    tile.kv_len = params.kv_begin[base + owner + 1] - tile.kv_begin;
    return tile;
  }
  return {-1, 0, 0, 0, 0, 0};
}

// Tiles of keys that any of the queries sees.
__device__ __forceinline__ int num_key_tiles(const Tile& tile) {
  const int keys = min(tile.kv_len, tile.kv_len - tile.q_len + tile.first_query + kQueries);
  return (keys + kKeys - 1) / kKeys;
}

struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ void load(const Params& params, Shared& shared, const CUtensorMap* q_map, const CUtensorMap* k_map,
                     const CUtensorMap* v_map) {
  const auto at = [](uint64_t& barrier) { return shared_address(&barrier); };
  const bool issues = threadIdx.x % 32 == 0;
  Ring ring;
  uint32_t tile_parity = 0;
  for (int count = 0;; ++count) {
    const int slot = count % 2;
    int index = 0;
    if (issues) index = atomicAdd(params.next_tile, 1);
    const Tile tile = find_tile(params, __shfl_sync(0xffffffff, index, 0));
    if (issues) {
      barrier_wait(at(shared.tile_empty[slot]), (count / 2 & 1) ^ 1);
      shared.tiles[slot] = tile;
      barrier_arrive(at(shared.tile_full[slot]));
    }
    if (tile.head < 0) return;
    if (issues) {
      for (int n = num_key_tiles(tile) - 1, first = 1; n >= 0; --n, first = 0) {
        const int row = tile.kv_begin + n * kKeys, stage = ring.stage;
        barrier_wait(at(shared.k_empty[stage]), ring.parity ^ 1);
        barrier_expect(at(shared.k_full[stage]), kKeyChunks * kChunk);
        tma_load_3d(shared_address(shared.k[stage]), k_map, 0, row, tile.head * kKeyChunks, at(shared.k_full[stage]),
                    kEvictNormal);
        if (first) {
          barrier_wait(at(shared.q_empty), tile_parity ^ 1);
          tile_parity ^= 1;
          barrier_expect(at(shared.q_full), kKeyChunks * kChunk);
          tma_load_3d(shared_address(shared.q), q_map, 0, tile.q_begin + tile.first_query, tile.head * kKeyChunks,
                      at(shared.q_full), kEvictFirst);
        }
        barrier_wait(at(shared.v_empty[stage]), ring.parity ^ 1);
        barrier_expect(at(shared.v_full[stage]), kValueChunks * kChunk);
        tma_load_3d(shared_address(shared.v[stage]), v_map, 0, row, tile.head * kValueChunks, at(shared.v_full[stage]),
                    kEvictNormal);
        ring.advance();
      }
    }
    __syncwarp();
  }
}

struct Math {
  const Params& params;
  Shared& shared;
  int warpgroup, warp, lane, thread;
  Ring ring;
};

__device__ __forceinline__ void release(const Math& math, uint64_t& barrier) {
  __syncwarp();
  if (math.lane == 0) barrier_arrive(shared_address(&barrier));
}

// s[64, 128] = Q K^T, issued only.
__device__ __forceinline__ void issue_scores(const Math& math, float (&s)[64], int stage) {
  const uint32_t q = shared_address(math.shared.q) + math.warpgroup * 64 * 128,
                 k = shared_address(math.shared.k[stage]);
  pin(s);
  wgmma_fence();
#pragma unroll
  for (int i = 0; i < kKeyChunks * 4; ++i) {
    const int offset = i / 4 * kChunk + i % 4 * 32;
    wgmma_ss<128>(s, wgmma_operand(q) + offset, wgmma_operand(k) + offset, i > 0);
  }
  wgmma_commit();
}

// o[64, 128] += P V, issued only.
__device__ __forceinline__ void issue_values(const Math& math, float (&o)[64], const uint32_t (&p)[8][4], int stage) {
  const uint32_t v = shared_address(math.shared.v[stage]);
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < 8; ++k) wgmma_rs<128, 1>(o, p[k], wgmma_operand(v, kChunk) + k * 2048, true);
  wgmma_commit();
}

// Zeros values beyond the sequence: they are another one's and may hold NaN, and 0 * NaN is NaN. Both warpgroups do so.
__device__ __forceinline__ void clear_values(const Math& math, int stage, int first) {
  for (int i = math.thread; i < (kKeys - first) * 8 * kValueChunks; i += 128) {
    const int row = first + i / (8 * kValueChunks), chunk = i / 8 % kValueChunks;
    *reinterpret_cast<uint4*>(math.shared.v[stage][chunk] + row * 128 + i % 8 * 16) = make_uint4(0, 0, 0, 0);
  }
  fence_async_shared();
  named_sync(kWarpgroup + math.warpgroup, 128);
}

struct Softmax {
  float max[2], sum[2];
};

// s becomes exp2(s scale - max) and p its bf16; returns what earlier sums have to be multiplied by.
__device__ __forceinline__ void softmax_step(float (&s)[64], Softmax& state, float scale_log2, float (&factor)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float max = -INFINITY;
#pragma unroll
    for (int j = 0; j < 16; ++j) max = fmaxf(max, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 1));
    max = fmaxf(max, __shfl_xor_sync(0xffffffff, max, 2));
    const float before = state.max[i];
    state.max[i] = fmaxf(before, max * scale_log2);
    factor[i] = exp2_approx(before - state.max[i]);
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& value = s[4 * j + 2 * i + e];
        value = exp2_approx(fmaf(value, scale_log2, -state.max[i]));
        sum += value;
      }
    }
    state.sum[i] = state.sum[i] * factor[i] + sum;
  }
}

__device__ __forceinline__ void pack(const float (&s)[64], uint32_t (&p)[8][4]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) p[k][i] = pack_bf16(s[8 * k + 2 * i], s[8 * k + 2 * i + 1]);
  }
}
__device__ __forceinline__ void pin_all(uint32_t (&p)[8][4]) {
#pragma unroll
  for (int k = 0; k < 8; ++k) pin(p[k]);
}

// limit[i]: keys that row i sees.
__device__ __forceinline__ void mask(float (&s)[64], const int (&limit)[2], int first_key, int lane) {
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const int key = first_key + i / 4 * 8 + lane % 4 * 2 + i % 2;
    if (key >= limit[i / 2 % 2]) s[i] = -INFINITY;
  }
}

__device__ __forceinline__ void attend(Math& math, const Tile& tile) {
  Shared& shared = math.shared;
  const float scale_log2 = math.params.scale_log2;
  const int num_tiles = num_key_tiles(tile), row = math.warpgroup * 64 + 16 * math.warp + math.lane / 4;
  int limit[2];
#pragma unroll
  for (int i = 0; i < 2; ++i)
    limit[i] = min(tile.kv_len, tile.kv_len - tile.q_len + tile.first_query + row + 8 * i + 1);
  const int least_limit = tile.kv_len - tile.q_len + tile.first_query + 1;

  float s[64], o[64], factor[2];
  uint32_t p[8][4];
  Softmax state{{kNoMax, kNoMax}, {0.0f, 0.0f}};
#pragma unroll
  for (int i = 0; i < 64; ++i) o[i] = 0.0f;

  int n = num_tiles - 1;
  barrier_wait(shared_address(&shared.k_full[math.ring.stage]), math.ring.parity);
  named_sync(kTurn + math.warpgroup, 256);
  issue_scores(math, s, math.ring.stage);
  wgmma_wait<0>();
  pin(s);
  named_arrive(kTurn + 1 - math.warpgroup, 256);
  release(math, shared.k_empty[math.ring.stage]);
  if (n == 0) release(math, shared.q_empty);
  mask(s, limit, n * kKeys, math.lane);
  softmax_step(s, state, scale_log2, factor);
  pack(s, p);
#pragma unroll 1
  for (; n > 0; --n) {
    Ring next = math.ring;
    next.advance();
    barrier_wait(shared_address(&shared.k_full[next.stage]), next.parity);
    barrier_wait(shared_address(&shared.v_full[math.ring.stage]), math.ring.parity);
    if (n == num_tiles - 1 && n * kKeys + kKeys > tile.kv_len)
      clear_values(math, math.ring.stage, tile.kv_len - n * kKeys);
    named_sync(kTurn + math.warpgroup, 256);
    pin(o);
    pin_all(p);
    issue_scores(math, s, next.stage);
    issue_values(math, o, p, math.ring.stage);
    named_arrive(kTurn + 1 - math.warpgroup, 256);
    wgmma_wait<1>();
    pin(s);
    release(math, shared.k_empty[next.stage]);
    if (n == 1) release(math, shared.q_empty);
    if ((n - 1) * kKeys + kKeys > least_limit) mask(s, limit, (n - 1) * kKeys, math.lane);
    softmax_step(s, state, scale_log2, factor);
    wgmma_wait<0>();
    pin(o);
    pin_all(p);
    release(math, shared.v_empty[math.ring.stage]);
    pack(s, p);
#pragma unroll
    for (int i = 0; i < 64; ++i) o[i] *= factor[i / 2 % 2];
    math.ring = next;
  }
  barrier_wait(shared_address(&shared.v_full[math.ring.stage]), math.ring.parity);
  if (num_tiles == 1 && kKeys > tile.kv_len) clear_values(math, math.ring.stage, tile.kv_len);
  pin(o);
  pin_all(p);
  issue_values(math, o, p, math.ring.stage);
  wgmma_wait<0>();
  pin(o);
  release(math, shared.v_empty[math.ring.stage]);
  math.ring.advance();

#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = state.sum[i];
    sum += __shfl_xor_sync(0xffffffff, sum, 1);
    sum += __shfl_xor_sync(0xffffffff, sum, 2);
    const float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    const int query = tile.first_query + row + 8 * i;
    if (query >= tile.q_len) continue;
    auto* out = reinterpret_cast<uint32_t*>(math.params.out + (tile.q_begin + query) * math.params.out_stride +
                                            tile.head * kMlaValueDim + math.lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < 16; ++j) out[4 * j] = pack_bf16(o[4 * j + 2 * i] * inverse, o[4 * j + 2 * i + 1] * inverse);
  }
}

// The compiler does not see that all threads load the same value, and orders wgmma with care in branches on it.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(0xffffffff, value, 0);
}

__global__ void __launch_bounds__(kThreads, 1)
    mla_prefill_kernel(const __grid_constant__ Params params, const __grid_constant__ CUtensorMap q_map,
                       const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  if (threadIdx.x == 0) {
    const auto init = [](uint64_t& barrier, int count) { barrier_init(shared_address(&barrier), count); };
    init(shared.q_full, 1), init(shared.q_empty, 8);
    for (int i = 0; i < 2; ++i) init(shared.tile_full[i], 1), init(shared.tile_empty[i], 256);
    for (int i = 0; i < kStages; ++i) {
      init(shared.k_full[i], 1), init(shared.k_empty[i], 8);
      init(shared.v_full[i], 1), init(shared.v_empty[i], 8);
    }
    barrier_init_fence();
  }
  __syncthreads();
  const int warpgroup = uniform(threadIdx.x / 128);
  if (warpgroup == 2) {
    fewer_registers<40>();
    if (threadIdx.x < 288) load(params, shared, &q_map, &k_map, &v_map);
    return;
  }
  more_registers<232>();
  const int thread = threadIdx.x % 128;
  Math math{params, shared, warpgroup, uniform(thread / 32), thread % 32, thread, {}};
  if (warpgroup == 1) named_arrive(kTurn, 256);  // the first turn is warpgroup 0's
  uint32_t q_parity = 0;
  for (int count = 0;; ++count) {
    const int slot = count % 2;
    barrier_wait(shared_address(&shared.tile_full[slot]), count / 2 & 1);
    const Tile& from = shared.tiles[slot];
    const Tile tile{uniform(from.head),  uniform(from.first_query), uniform(from.q_begin),
                    uniform(from.q_len), uniform(from.kv_begin),    uniform(from.kv_len)};
    barrier_arrive(shared_address(&shared.tile_empty[slot]));
    if (tile.head < 0) return;
    barrier_wait(shared_address(&shared.q_full), q_parity);
    q_parity ^= 1;
    attend(math, tile);
  }
}

absl::Status check_args(const MlaPrefillArgs& args) {
  const int64_t num_tokens = args.q.dim(0), num_keys = args.k.dim(0), num_seqs = args.q_begin.dim(0) - 1;
  ArgsCheck check("mla_prefill");
  check.size("num_heads", args.num_heads, 1, 1024).size("num_seqs", num_seqs, 1, 1 << 20);
  check.size("num_sms", args.num_sms, 1, 1024);
  if (!check.ok()) return check.status();
  check.matrix("q", args.q, DType::kBF16, num_tokens, args.num_heads * kMlaKeyDim);
  check.matrix("k", args.k, DType::kBF16, num_keys, args.num_heads * kMlaKeyDim);
  check.matrix("v", args.v, DType::kBF16, num_keys, args.num_heads * kMlaValueDim);
  check.tensor("q_begin", args.q_begin, DType::kI32, {num_seqs + 1});
  check.tensor("kv_begin", args.kv_begin, DType::kI32, {num_seqs + 1});
  check.memory("workspace", args.workspace, kMlaPrefillWorkspaceBytes);
  check.matrix("out", args.out, DType::kBF16, num_tokens, args.num_heads * kMlaValueDim);
  return check.status();
}

}  // namespace

absl::Status mla_prefill(cudaStream_t stream, const MlaPrefillArgs& args) {
  MOESAIC_RETURN_IF_ERROR(check_args(args));
  if (args.q.dim(0) == 0) return absl::OkStatus();
  // Columns as chunks of 64: one load brings a head's chunks in the layout that wgmma reads.
  const auto chunks_map = [&](const Tensor& rows, int box_chunks) {
    return make_tensor_map(rows.raw(), DType::kBF16, {64, rows.dim(0), rows.dim(1) / 64}, {rows.row_stride() * 2, 128},
                           {64, 128, box_chunks}, /*swizzle=*/true);
  };
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap q_map, chunks_map(args.q, kKeyChunks));
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap k_map, chunks_map(args.k, kKeyChunks));
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap v_map, chunks_map(args.v, kValueChunks));
  const Params params{.q_begin = args.q_begin.i32(),
                      .kv_begin = args.kv_begin.i32(),
                      .num_seqs = static_cast<int>(args.q_begin.dim(0)) - 1,
                      .num_heads = static_cast<int>(args.num_heads),
                      .scale_log2 = static_cast<float>(args.softmax_scale * kLog2E),
                      .next_tile = args.workspace.data<int>(),
                      .out = args.out.data<__nv_bfloat16>(),
                      .out_stride = args.out.row_stride()};
  MOESAIC_CUDA_CHECK(cudaMemsetAsync(params.next_tile, 0, sizeof(int), stream));
  constexpr int kSharedBytes = sizeof(Shared);
  static_assert(kSharedBytes <= 227 * 1024);
  MOESAIC_CUDA_CHECK(
      cudaFuncSetAttribute(mla_prefill_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  mla_prefill_kernel<<<args.num_sms, kThreads, kSharedBytes, stream>>>(params, q_map, k_map, v_map);
  return to_status(cudaGetLastError(), "launching mla_prefill");
}

}  // namespace moesaic::cuda
