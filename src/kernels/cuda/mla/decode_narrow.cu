// The narrow decode kernel: who fills its stages, and the launch.
#include "kernels/cuda/mla/decode_narrow.cuh"
#include "kernels/cuda/mla/fp8_rows.cuh"

namespace moesaic::cuda {
namespace {

// Registers of a thread: of the three warpgroups together 3 x 168, what the launch gives.
template <int N, bool kFp8>
constexpr int kMathRegisters = !kFp8     ? 232
                               : N == 16 ? 184
                                         : 208;
template <int N, bool kFp8>
constexpr int kFillRegisters = 3 * 168 - 2 * kMathRegisters<N, kFp8>;

// The tile's rows of Q for the item that `num_before` items of the tile came before.
template <int N>
__device__ __forceinline__ void load_query(NarrowShared<N>& shared, const CUtensorMap* q_map, int row, int num_before) {
  const uint32_t full = shared_address(&shared.q_full);
  barrier_wait(shared_address(&shared.q_empty), (num_before & 1) ^ 1);
  barrier_expect(full, 9 * N * 128);
#pragma unroll 1
  for (int t = 0; t < 9; ++t) tma_load_2d(shared_address(shared.q[t]), q_map, t * 64, row, full, kEvictFirst);
}

// One thread loads blocks of bf16 rows. rows_map: boxes of three tiles.
template <int N>
__device__ __forceinline__ void load_blocks(const DecodeParams& params, NarrowShared<N>& shared,
                                            const CUtensorMap* q_map, const CUtensorMap* rows_map, int tile,
                                            const DecodePart& part) {
  DecodeItem item = part.first;
  int taken = 0, num_queries = 0;
  for (int i = part.begin; i < part.end; ++i) {
    if (i > part.begin) item = params.plan.items[i];
    if (item.q_len * params.num_heads <= tile * N) continue;
    const int* table = params.block_table + item.seq * params.block_table_stride + item.block_begin;
    const int num_blocks = item.block_end - item.block_begin;
    int next_row = num_blocks > 0 ? table[0] * 64 : 0;
    for (int b = 0; b < num_blocks; ++b, ++taken) {
      const int stage = taken % kNarrowStages, row = next_row;
      if (b + 1 < num_blocks) next_row = table[b + 1] * 64;  // arrives meanwhile
      const uint32_t full = shared_address(&shared.full[stage]);
      barrier_wait(shared_address(&shared.empty[stage]), (taken / kNarrowStages & 1) ^ 1);
      barrier_expect(full, 9 * kTileBytes);
      for (int t = 0; t < 9; t += 3) {
        tma_load_3d(shared_address(shared.stages[stage][t]), rows_map, 0, row, t, full, kEvictFirst);
      }
      if (b == 0) load_query(shared, q_map, item.q_begin * params.num_heads + tile * N, num_queries++);
    }
  }
}

// A warpgroup converts blocks of FP8 rows. rows_map: boxes of 128 bytes of 64 rows, for the rotated keys.
template <int N>
__device__ __forceinline__ void convert_blocks(const DecodeParams& params, NarrowShared<N>& shared,
                                               const CUtensorMap* q_map, const CUtensorMap* rows_map, int tile,
                                               const DecodePart& part) {
  const int thread = threadIdx.x % 128;
  Fp8Blocks blocks(params, part, tile * N);
  Fp8Converter converter(params.fp8_rows, thread);
  int taken = 0, num_queries = 0;
  if (blocks[0].exists()) converter.load(blocks[0].block, 0);
  for (; blocks[0].exists(); blocks.advance()) {
    const Fp8Blocks::Block block = blocks[0];
    const int stage = taken % kNarrowStages, next = blocks[1].block;
    const uint32_t full = shared_address(&shared.full[stage]), to = shared_address(shared.stages[stage]);
    barrier_wait(shared_address(&shared.empty[stage]), (taken++ / kNarrowStages & 1) ^ 1);
    if (thread == 0) {
      barrier_expect(full, kTileBytes);
      tma_load_2d(to + 8 * kTileBytes, rows_map, kFp8KeysOffset, block.block * 64, full, kEvictFirst);
    }
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      converter.convert(to + half * 4 * kTileBytes, block.num_keys(), half == 0 ? block.block : next, half ^ 1);
      if (half == 0 && block.first() && thread == 0) {
        load_query(shared, q_map, params.plan.items[block.item()].q_begin * params.num_heads + tile * N, num_queries);
      }
    }
    if (block.first()) ++num_queries;
    if (thread % 32 == 0) barrier_arrive(full);
  }
}

template <int N, bool kFp8>
__global__ void __launch_bounds__(kNarrowThreads, 1)
    decode_narrow_kernel(const __grid_constant__ DecodeParams params, const __grid_constant__ CUtensorMap q_map,
                         const __grid_constant__ CUtensorMap rows_map) {
  extern __shared__ __align__(1024) uint8_t raw[];
  auto& shared = *reinterpret_cast<NarrowShared<N>*>(raw);
  if (threadIdx.x == 0) {
    barrier_init(shared_address(&shared.q_full), 1);
    barrier_init(shared_address(&shared.q_empty), 8);
    for (int stage = 0; stage < kNarrowStages; ++stage) {
      barrier_init(shared_address(&shared.full[stage]), kFp8 ? 5 : 1);
      barrier_init(shared_address(&shared.empty[stage]), 4);
    }
    barrier_init_fence();
  }
  __syncthreads();
  wait_for_previous();
  const int tile = blockIdx.x;
  const DecodePart part = params.plan.parts[blockIdx.y];
  const int warpgroup = uniform(threadIdx.x / 128);
  if (warpgroup == 2) {
    fewer_registers<kFillRegisters<N, kFp8>>();
    if constexpr (kFp8)
      convert_blocks(params, shared, &q_map, &rows_map, tile, part);
    else if (threadIdx.x == 256)
      load_blocks(params, shared, &q_map, &rows_map, tile, part);
    return;
  }
  more_registers<kMathRegisters<N, kFp8>>();
  const int thread = threadIdx.x % 128;
  NarrowMath<N> math{params, shared, kFp8, warpgroup, uniform(thread / 32), thread % 32, thread, 0};
  DecodeItem item = part.first;
  int taken = 0;
  for (int i = part.begin; i < part.end; ++i) {
    const NarrowTask task = narrow_task(item, params.num_heads, tile, N);
    const int slot = uniform(item.slot);
    if (i + 1 < part.end) item = params.plan.items[i + 1];  // arrives meanwhile
    if (task.num_rows <= 0) continue;
    if (task.num_blocks == 0) {
      uint4* out = reinterpret_cast<uint4*>(static_cast<uint16_t*>(params.out) + int64_t{task.row_begin} * 512);
      for (int j = threadIdx.x; j < task.num_rows * 64; j += 256) out[j] = make_uint4(0, 0, 0, 0);
    } else {
      narrow_item(math, task, slot, taken);
    }
    taken += task.num_blocks;
  }
  launch_dependents();
}

template <int N, bool kFp8>
void launch(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params, const CUtensorMap& q_map,
            const CUtensorMap& rows_map) {
  constexpr int kSharedBytes = sizeof(NarrowShared<N>);
  static_assert(kSharedBytes <= 227 * 1024);
  const auto kernel = decode_narrow_kernel<N, kFp8>;
  MOESAIC_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(layout.num_tiles, layout.num_parts);
  config.blockDim = dim3(kNarrowThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = stream;
  MOESAIC_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, params, q_map, rows_map));
}

}  // namespace

void launch_decode_narrow(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params,
                          const CUtensorMap& q_map, const CUtensorMap& rows_map) {
  const bool fp8 = params.fp8_rows != nullptr;
  MOESAIC_CHECK(layout.tile_rows == 16 || layout.tile_rows == 32);
  const auto run = layout.tile_rows == 16 ? (fp8 ? launch<16, true> : launch<16, false>)
                                          : (fp8 ? launch<32, true> : launch<32, false>);
  run(stream, layout, params, q_map, rows_map);
}

}  // namespace moesaic::cuda
