// Decode for tiles of 64 (query, head) rows: bound by the tensor cores at 128 heads.
//
// The output tile, 64 x 512 in f32, takes half the register file, so there is one a multiprocessor and its softmax must
// hide behind the other warpgroup's products: the "seesaw" of FlashMLA's deep dive. Blocks are taken in pairs.
// Warpgroup 0 owns output columns 0-255 and the scores of the first block, warpgroup 1 columns 256-511 and the scores
// of the second; the running maximum goes back and forth between them:
//   0: P0 = exp(S0 - m0)   O0 = O0 a0 + P0 V0L                     P0 a1 -> shared      O0 = O0 a1 + P1 V1L   S0 = Q
//   K0' 1:                     P1 = exp(S1 - m1) -> shared  O1 = O1 a0 a1 + P1 V1R + P0 V0R                     S1 = Q
//   K1'
// A warp of its own loads: Q, and each block in three parts (latents left, latents right, rope keys), each refilled as
// soon as its last reader is done. The rope part of a block is dead once its scores are there: P takes its place.
#include "kernels/cuda/mla/decode_wide.cuh"
#include "kernels/cuda/mla/decode_wide_fill.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace wide {
namespace {

__device__ __forceinline__ void pin_all(uint32_t (&p)[4][4]) {
#pragma unroll
  for (int k = 0; k < 4; ++k) pin(p[k]);
}

// log2 of P's largest value: f16 keeps what is 2^-24 of 1.
__device__ __forceinline__ float headroom(const Layout& at) {
  return at.converted ? 6.0f : 0.0f;
}

// State of a warpgroup over an item.
struct State {
  float o[128], s[32], sum[2];
  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < 128; ++i) o[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = 0.0f;
    sum[0] = sum[1] = 0.0f;
  }
};

// The part of warpgroup 0 in a pair of blocks; its scores are there. kPair: there is a second block; kMore: another
// pair.
template <bool kPair, bool kMore>
__device__ __forceinline__ void first_step(Math& math, State& state, const Task& task, int b) {
  auto& [o, s, sum] = state;
  const Layout at = math.at;
  const int row = 16 * math.warp + math.lane / 4, first_key = (task.first_block + b) * 64;
  const LatentUnit unit = math.unit(0);
  const float scale[2] = {math.scale[0] * unit.power, math.scale[1] * unit.power};
  if (!kMore) release(math, at.q_empty());
  mask(s, task, first_key, math.lane);
  float max[2], factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float before = b == 0 ? kNoMax : math.shared.max[row + 8 * i];
    max[i] = raised(before, fmaf(row_max(s, i), scale[i], unit.exponent - headroom(at)));
    factor[i] = exp2_approx(before - max[i]);
    __syncwarp();
    if (math.lane % 4 == 0) {
      math.shared.scale[0][row + 8 * i] = factor[i];
      math.shared.max[row + 8 * i] = max[i];
    }
  }
  named_arrive(kScale0, kMathThreads);
  uint32_t p[4][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] = sum[i] * factor[i] + exponentials(s, i, scale[i], max[i] - unit.exponent) * unit.inverse;
  }
  pack(s, p, at.converted);
  scale_rows(o, factor);
  if (!kMore && first_key + 64 > task.kv_len) clear_rows(at.block(0), task.kv_len - first_key, math.thread, 0);
  pin(o);
  pin_all(p);
  wgmma_fence();
  values_from_registers(o, p, at.block(0), at.converted);
  wgmma_commit();
  wgmma_wait<0>();
  pin(o);
  release(math, at.empty(0, kLeft));

  named_sync(kScale1, kMathThreads);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    factor[i] = math.shared.scale[1][row + 8 * i];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      s[4 * j + 2 * i] *= factor[i];
      s[4 * j + 2 * i + 1] *= factor[i];
    }
    sum[i] *= factor[i];
  }
  pack(s, p, at.converted);
  store_p(at.p(0), p, math.warp, math.lane);
  fence_async_shared();
  named_arrive(kP0, kMathThreads);
  scale_rows(o, factor);
  if constexpr (kPair) {
    named_sync(kP1, kMathThreads);
    if (!kMore && first_key + 128 > task.kv_len) clear_rows(at.block(1), task.kv_len - first_key - 64, math.thread, 0);
    pin(o);
    wgmma_fence();
    values_from_shared(o, at.p(1), at.block(1), at.converted);
    wgmma_commit();
  }
  if constexpr (kMore) {
    pin(s);
    scores<0, 4>(s, at, 0, math.parity, false);
    wgmma_commit();
    wgmma_wait<1>();
    release(math, at.empty(1, kLeft));
    scores<4, 5>(s, at, 0, math.parity, true);
    wgmma_commit();
    math.parity ^= 1;
  }
  wgmma_wait<0>();
  pin(o);
  pin(s);
  if (kPair && !kMore) release(math, at.empty(1, kLeft));
}

__device__ __forceinline__ void first_warpgroup(Math& math, State& state, const Task& task) {
  const Layout at = math.at;
  state.clear();
  pin(state.s);
  scores<0, 9>(state.s, at, 0, math.parity, false);
  math.parity ^= 1;
  wgmma_commit();
  wgmma_wait<0>();
  pin(state.s);
  int b = 0;
#pragma unroll 1
  for (; b + 2 < task.num_blocks; b += 2) first_step<true, true>(math, state, task, b);
  if (b + 1 < task.num_blocks)
    first_step<true, false>(math, state, task, b);
  else
    first_step<false, false>(math, state, task, b);
}

// s = Q K1^T: the right half falls free first.
__device__ __forceinline__ void second_scores(Math& math, float (&s)[32]) {
  const Layout at = math.at;
  pin(s);
  scores<4, 4>(s, at, 1, math.parity, false);
  scores<0, 4>(s, at, 1, math.parity, true);
  scores<8, 1>(s, at, 1, math.parity, true);
  wgmma_commit();
  math.parity ^= 1;
}

// The part of warpgroup 1. kPair: there is a second block, and its scores are there; kNext: so will there be in the
// next pair; kLast: there is no next pair.
template <bool kPair, bool kNext, bool kLast>
__device__ __forceinline__ void second_step(Math& math, State& state, const Task& task, int b) {
  auto& [o, s, sum] = state;
  const Layout at = math.at;
  const int row = 16 * math.warp + math.lane / 4, first_key = (task.first_block + b) * 64;
  const LatentUnit unit = kPair ? math.unit(1) : LatentUnit();
  const float scale[2] = {math.scale[0] * unit.power, math.scale[1] * unit.power};
  if (kLast) release(math, at.q_empty());
  named_sync(kScale0, kMathThreads);
  if constexpr (kPair) {
    if (!kNext) mask(s, task, first_key + 64, math.lane);
  } else {
#pragma unroll
    for (int i = 0; i < 32; ++i) s[i] = -INFINITY;
  }
  float max[2], factor[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float before = math.shared.max[row + 8 * i];
    max[i] = raised(before, fmaf(row_max(s, i), scale[i], unit.exponent - headroom(at)));
    factor[i] = exp2_approx(before - max[i]);
    __syncwarp();
    if (math.lane % 4 == 0) {
      math.shared.scale[1][row + 8 * i] = factor[i];
      math.shared.max[row + 8 * i] = max[i];
    }
    factor[i] *= math.shared.scale[0][row + 8 * i];
  }
  named_arrive(kScale1, kMathThreads);
  uint32_t p[4][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] = sum[i] * factor[i] + exponentials(s, i, scale[i], max[i] - unit.exponent) * unit.inverse;
  }
  pack(s, p, at.converted);
  scale_rows(o, factor);
  if constexpr (kPair) store_p(at.p(1), p, math.warp, math.lane);
  if (kLast) {
    if (kPair && first_key + 128 > task.kv_len) {
      clear_rows(at.block(1) + 4 * kTile, task.kv_len - first_key - 64, math.thread, 1);
    }
    if (!kPair && first_key + 64 > task.kv_len) {
      clear_rows(at.block(0) + 4 * kTile, task.kv_len - first_key, math.thread, 1);
    }
  }
  pin(o);
  if constexpr (kPair) {
    pin_all(p);
    wgmma_fence();
    values_from_registers(o, p, at.block(1) + 4 * kTile, at.converted);
    wgmma_commit();
    fence_async_shared();  // of P1, while the products run
  }
  named_sync(kP0, kMathThreads);
  wgmma_fence();
  values_from_shared(o, at.p(0), at.block(0) + 4 * kTile, at.converted);
  wgmma_commit();
  if constexpr (kPair) {
    named_arrive(kP1, kMathThreads);
    wgmma_wait<1>();
    release(math, at.empty(1, kRight));
  }
  wgmma_wait<0>();
  pin(o);
  release(math, at.empty(0, kRight));
  if constexpr (kNext) second_scores(math, s);
  wgmma_wait<0>();
  pin(s);
}

__device__ __forceinline__ void second_warpgroup(Math& math, State& state, const Task& task) {
  state.clear();
  if (task.num_blocks > 1) second_scores(math, state.s);
  wgmma_wait<0>();
  pin(state.s);
  int b = 0;
#pragma unroll 1
  for (; b + 3 < task.num_blocks; b += 2) second_step<true, true, false>(math, state, task, b);
  if (b + 2 < task.num_blocks) {
    second_step<true, false, false>(math, state, task, b);
    second_step<false, false, true>(math, state, task, b + 2);
  } else if (b + 1 < task.num_blocks) {
    second_step<true, false, true>(math, state, task, b);
  } else {
    second_step<false, false, true>(math, state, task, b);
  }
}

template <bool kFp8>
__global__ void __launch_bounds__(kThreads, 1)
    decode_wide_kernel(const __grid_constant__ DecodeParams params, const __grid_constant__ CUtensorMap q_map,
                       const __grid_constant__ CUtensorMap rows_map) {
  extern __shared__ __align__(1024) uint8_t raw[];
  Shared& shared = *reinterpret_cast<Shared*>(raw);
  const Layout at{shared_address(&shared), kFp8};
  if (threadIdx.x == 0) {
    barrier_init(at.q_full(), 1);
    barrier_init(at.q_empty(), 8);
    for (int which = 0; which < 2; ++which) {
      barrier_init(at.keys_full(which), 1);
      for (int t = 0; t < 9; ++t) barrier_init(at.full(which, t), kFp8 ? 4 : 1);
      for (const Part part : {kLeft, kRight}) barrier_init(at.empty(which, part), 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous();

  const int tile = blockIdx.x;
  const DecodePart part = params.plan.parts[blockIdx.y];
  const int warpgroup = uniform(threadIdx.x / 128);
  if (warpgroup == 2) {
    fewer_registers<kFp8 ? 104 : 40>();
    if constexpr (kFp8)
      convert(params, &q_map, &rows_map, at, tile, part);
    else if (threadIdx.x == kMathThreads)
      load(params, &q_map, &rows_map, at, tile, part);
  } else {
    more_registers<kFp8 ? 200 : 232>();
    const int thread = threadIdx.x % 128;
    Math math{params, shared, at, uniform(thread / 32), thread % 32, thread};
    DecodeItem item = part.first;
    for (int i = part.begin; i < part.end; ++i) {
      if (i > part.begin) item = params.plan.items[i];
      prefetch_to_l1(&params.plan.items[i + 1]);
      const Task task = make_task(item, params.num_heads, tile, math.warp, math.lane);
      if (task.num_rows <= 0) continue;
      if (task.num_blocks == 0) {
        write_zeros(params, task, threadIdx.x);
        continue;
      }
      barrier_wait(at.q_full(), math.q_parity);
      math.q_parity ^= 1;
      if (kFp8)
        convert_query(math, warpgroup);
      else
        math.scale[0] = math.scale[1] = params.scale_log2;
      State state;
      if (warpgroup == 0)
        first_warpgroup(math, state, task);
      else
        second_warpgroup(math, state, task);
      total_sums(math, warpgroup, state.sum);
      write(math, state.o, task, tile, warpgroup, state.sum);
    }
  }
  launch_dependents();
}

}  // namespace
}  // namespace wide

void launch_decode_wide(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params,
                        const CUtensorMap& q_map, const CUtensorMap& rows_map) {
  constexpr int kSharedBytes = sizeof(wide::Shared);
  static_assert(kSharedBytes <= 227 * 1024);
  const auto kernel = params.fp8_rows != nullptr ? wide::decode_wide_kernel<true> : wide::decode_wide_kernel<false>;
  MOESAIC_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(layout.num_tiles, layout.num_parts);
  config.blockDim = dim3(wide::kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  MOESAIC_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params, q_map, rows_map));
}

}  // namespace moesaic::cuda
