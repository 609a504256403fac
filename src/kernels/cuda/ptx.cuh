// The PTX of sm_90a that the GEMM and attention kernels are made of, apart from wgmma's products: one function an
// instruction. Addresses in shared memory are the 32-bit ones of shared_address(). Nothing here waits except the
// functions that say so in their names.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

namespace moesaic::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// True in exactly one lane; the warp must be converged.
__device__ __forceinline__ bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\n"
      "selp.b32 %0, 1, 0, p;\n}\n"
      : "=r"(elected));
  return elected != 0;
}

// ---- mbarrier: `count` arrivals, and the bytes announced by expect, end a phase. ------------------------------------

__device__ __forceinline__ void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// After all barrier_init, before the cluster's or block's synchronisation: the copy engine and peers see them.
__device__ __forceinline__ void barrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and announces bytes that copies will bring.
__device__ __forceinline__ void barrier_expect(uint32_t barrier, int num_bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(num_bytes) : "memory");
}
// The address in block `rank` of the cluster of what lies at `address` in this one.
__device__ __forceinline__ uint32_t address_in_block(uint32_t address, uint32_t rank) {
  uint32_t remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  return remote;
}
// Arrives on a barrier of any block of the cluster, at an address of address_in_block. It tells that shared memory was
// read, and orders no writes: a release at cluster scope costs a fence of all of memory.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waits for the end of the phase of this parity.
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
      "@done bra.uni over;\nbra.uni again;\nover:\n}\n" ::"r"(barrier),
      "r"(parity), "r"(0x989680)
      : "memory");
}

// The same without a time that the thread may sleep for: shorter code, for loops that seldom wait.
__device__ __forceinline__ void barrier_wait_short(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\nbra again;\nover:\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- Named barriers of some of the block's threads (0 is __syncthreads): sync waits, arrive does not. ---------------

__device__ __forceinline__ void named_sync(int id, int num_threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}
__device__ __forceinline__ void named_arrive(int id, int num_threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(num_threads) : "memory");
}

// What this thread wrote to shared memory becomes visible to wgmma and TMA (after a barrier with their issuer).
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- TMA ------------------------------------------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_tensor_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// L2 policies. Read once by few blocks: leaves L2 first.
constexpr uint64_t kEvictFirst = 0x12F0000000000000;
constexpr uint64_t kEvictNormal = 0x1000000000000000;

// Copies the map's box at (x, y[, z]), innermost first, and completes its bytes on `barrier`. Elements outside the
// tensor become zero and count too.
__device__ __forceinline__ void tma_load_2d(uint32_t to, const CUtensorMap* map, int x, int y, uint32_t barrier,
                                            uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(cache_policy)
      : "memory");
}
__device__ __forceinline__ void tma_load_3d(uint32_t to, const CUtensorMap* map, int x, int y, int z, uint32_t barrier,
                                            uint64_t cache_policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
      " [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(cache_policy)
      : "memory");
}
__device__ __forceinline__ void tma_load_3d(uint32_t to, const CUtensorMap* map, int x, int y, int z,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// The same into every block of the cluster in `block_mask`, at the same offset and on the same barrier of each.
__device__ __forceinline__ void tma_load_multicast(uint32_t to, const CUtensorMap* map, int x, int y, int z,
                                                   uint32_t barrier, uint16_t block_mask) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(block_mask)
      : "memory");
}

// Brings num_bytes (a multiple of 16) of global memory into L2.
__device__ __forceinline__ void prefetch_to_l2(const void* from, int num_bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(num_bytes)
               : "memory");
}

// Writes the map's box at (x, y, z) from shared memory; elements outside the tensor are left alone. Of one thread's
// stores, committed, store_wait_read returns when shared memory was read.
__device__ __forceinline__ void tma_store(const CUtensorMap* map, uint32_t from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map), "r"(from),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}
__device__ __forceinline__ void store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}

// ---- Clusters -------------------------------------------------------------------------------------------------------

__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ __forceinline__ uint32_t cluster_index() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}

// All threads of all blocks of the cluster. Barriers of the peers may be used afterwards (with barrier_init_fence),
// blocks may leave; plain stores to shared memory are not ordered.
__device__ __forceinline__ void cluster_sync_relaxed() {
  asm volatile(
      "barrier.cluster.arrive.relaxed.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
}
// The two halves of cluster_sync_relaxed.
__device__ __forceinline__ void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// Copies `num_bytes`, a multiple of 16, from this block to address `to` of block `rank`, where `barrier` counts them.
__device__ __forceinline__ void copy_to_block(uint32_t to, uint32_t from, uint32_t barrier, uint32_t num_bytes,
                                              uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 remote_to, remote_barrier;\n"
      "mapa.shared::cluster.u32 remote_to, %0, %4;\n"
      "mapa.shared::cluster.u32 remote_barrier, %2, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes "
      "[remote_to], [%1], %3, [remote_barrier];\n}\n" ::"r"(to),
      "r"(from), "r"(barrier), "r"(num_bytes), "r"(rank)
      : "memory");
}

// ---- Global memory --------------------------------------------------------------------------------------------------

__device__ __forceinline__ void prefetch_to_l1(const void* from) {
  asm volatile("prefetch.global.L1 [%0];" ::"l"(__cvta_generic_to_global(from)) : "memory");
}

// Of what nobody of this multiprocessor reads again: passes L1 by. Barriers keep the order, unlike that of .nc loads.
__device__ __forceinline__ uint4 load_global_once(const void* from) {
  uint4 value;
  asm volatile("ld.global.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}
__device__ __forceinline__ float2 load_global_once_f32x2(const void* from) {
  float2 value;
  asm volatile("ld.global.L1::no_allocate.v2.f32 {%0, %1}, [%2];"
               : "=f"(value.x), "=f"(value.y)
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return value;
}

// ---- Registers, launches, arithmetic --------------------------------------------------------------------------------

template <int n>
__device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}

// Programmatic dependent launch: the next kernel may start; what the one before wrote is visible.
__device__ __forceinline__ void launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Two f32 in one 64-bit value.
__device__ __forceinline__ uint64_t pack_f32x2(float lo, float hi) {
  uint64_t packed;
  asm("mov.b64 %0, {%1, %2};" : "=l"(packed) : "f"(lo), "f"(hi));
  return packed;
}
__device__ __forceinline__ void unpack_f32x2(uint64_t packed, float& lo, float& hi) {
  asm("mov.b64 {%0, %1}, %2;" : "=f"(lo), "=f"(hi) : "l"(packed));
}

// (lo, hi) as two bf16, rounded to nearest even.
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(hi), "f"(lo));
  return packed;
}

// ---- Shared memory --------------------------------------------------------------------------------------------------

// Four 8x8 matrices of 16-bit elements in mma fragments; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
// The same, each matrix transposed.
__device__ __forceinline__ void store_matrices_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c,
                                                          uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b),
               "r"(c), "r"(d)
               : "memory");
}
// Two matrices, transposed: lanes 0-15 give addresses.
__device__ __forceinline__ void store_matrices_transposed(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b)
               : "memory");
}

__device__ __forceinline__ uint4 load_shared(uint32_t address) {
  uint4 value;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ uint32_t load_shared_u32(uint32_t address) {
  uint32_t value;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float load_shared_f32(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float2 load_shared_f32x2(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}

__device__ __forceinline__ float4 load_shared_f32x4(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(address)
               : "memory");
  return value;
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ __forceinline__ void store_shared_f32x4(uint32_t address, const float* values) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(values[0]), "f"(values[1]),
               "f"(values[2]), "f"(values[3])
               : "memory");
}
__device__ __forceinline__ void store_shared_f32x2(uint32_t address, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t a, uint32_t b) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_shared_u32(uint32_t address, uint32_t value) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}
__device__ __forceinline__ void store_shared_f32(uint32_t address, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}

}  // namespace moesaic::cuda
