// The PTX of sm_90a that the GEMM kernels are made of, one function an instruction: mbarriers, TMA, clusters, wgmma's
// fences, stmatrix. Addresses in shared memory are the 32-bit ones of shared_address(). Nothing here waits except
// the functions called `wait`.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace moesaic::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// True in exactly one lane; the warp must be converged.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n}\n"
      : "=r"(elected));
  return elected != 0;
}

// ---- mbarriers -----------------------------------------------------------------------------------------------------

__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

// After all barrier_init, before the cluster's or block's synchronisation: the copy engine and peers see them.
__device__ inline void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// Arrives on the same barrier of block `rank` of the cluster. It tells that shared memory was read, and orders no
// writes: a release at cluster scope costs a fence of all of memory.
__device__ inline void barrier_arrive_at(uint32_t barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}\n" ::"r"(barrier),
      "r"(rank)
      : "memory");
}

__device__ inline void barrier_arrive_expect(uint32_t barrier, uint32_t num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
}

// Returns when the phase of this parity is complete.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\nbra again;\nover:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- TMA -----------------------------------------------------------------------------------------------------------

__device__ inline void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the map's box at (c0, c1, c2), innermost first; its bytes are counted on `barrier`. Elements outside the
// tensor become zero and count too.
__device__ inline void tma_load(uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}

// The same with an L2 policy from streaming_policy().
__device__ inline void tma_load(uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0, int c1, int c2,
                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}

// The same into every block of the cluster in `block_mask`, at the same offset and on the same barrier of each.
__device__ inline void tma_load_multicast(uint32_t to, const CUtensorMap* map, uint32_t barrier, int c0, int c1, int c2,
                                          uint16_t block_mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "h"(block_mask)
      : "memory");
}

// Writes the map's box at (c0, c1, c2) from shared memory; elements outside the tensor are left alone. Of one thread's
// stores, committed, store_wait_read returns when shared memory was read.
__device__ inline void tma_store(const CUtensorMap* map, uint32_t from, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from),
               "r"(c0), "r"(c1), "r"(c2)
               : "memory");
}
__device__ inline void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ inline void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// What is read once should leave L2 first.
__device__ inline uint64_t streaming_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// ---- Clusters ------------------------------------------------------------------------------------------------------

__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

__device__ inline uint32_t cluster_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

// All threads of all blocks of the cluster. Barriers of the peers may be used afterwards (with barrier_init_fence),
// blocks may leave; plain stores to shared memory are not ordered.
__device__ inline void cluster_sync_relaxed() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
}

// The two halves of cluster_sync_relaxed.
__device__ inline void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ inline void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Copies `num_bytes`, a multiple of 16, from this block to address `to` of block `rank`, where `barrier` counts them.
__device__ inline void copy_to_block(uint32_t to, uint32_t from, uint32_t barrier, uint32_t num_bytes, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote_to, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote_to, %0, %4;\n"
      "mapa.shared::cluster.u32 remote_barrier, %2, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[remote_to], [%1], %3, [remote_barrier];\n}\n" ::"r"(to),
      "r"(from), "r"(barrier), "r"(num_bytes), "r"(rank)
      : "memory");
}

// What this thread wrote to shared memory is seen by the copy engine after the next barrier.
__device__ inline void fence_to_copy_engine() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- wgmma ---------------------------------------------------------------------------------------------------------

// Descriptor of a K-major operand tile whose rows are 128 bytes, in 128-byte swizzle: 8 rows are 1024 bytes. The tile
// starts at a multiple of 1024 bytes; 32 of k further are 2 more in the descriptor.
__device__ inline uint64_t operand_descriptor(uint32_t address) {
  constexpr uint64_t kStride = uint64_t{1024 >> 4} << 32;
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  return kSwizzle128 | kStride | ((address & 0x3ffff) >> 4);
}

__device__ inline void wgmma_arrive() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving accesses of an accumulator over an asynchronous wgmma.
template <int kCount>
__device__ inline void wgmma_fence(float (&acc)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(acc[i])::"memory");
}

template <int kRegisters>
__device__ inline void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Barrier of `threads` threads of the block; ids 1..15 (0 is __syncthreads). Those that arrive do not wait.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- Epilogues -----------------------------------------------------------------------------------------------------

__device__ inline uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Four 8x8 matrices of 16 bits; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrix(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
// The same, each matrix transposed; two matrices: lanes 0-15 give addresses.
__device__ inline void store_matrix_transposed(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
               : "memory");
}

__device__ inline uint4 load_shared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ inline float load_shared_f32(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ inline float2 load_shared_f32x2(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}

__device__ inline float4 load_shared_f32x4(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ inline void store_shared_f32(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

}  // namespace moesaic::cuda
