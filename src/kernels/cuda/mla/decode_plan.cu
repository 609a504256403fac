// The planner deals sequences out in order: a part takes whole ones while they fit, and of the next one as much as it
// has room for. An item costs its blocks, rounded up to pairs, and a fixed overhead. Four warps try sizes of the parts
// from the average on; the least that suffices is taken: for every part a cut loses at most one overhead, as does a
// rest that is too small for another item. A step of dealing looks at 32 sequences at once; all else is a scan.
#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/mla/decode_plan.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kPlanThreads = 256;
constexpr int kMaxParts = kPlanThreads - 1;
constexpr int kNoEnd = 1 << 30;
constexpr int kSizes = 4;  // that are tried; the overheads are even and at most 2 kSizes - 2: the largest suffices

// Inclusive sums over the threads of the block.
__device__ int block_scan(int value, int* shared) {
  __syncthreads();
  shared[threadIdx.x] = value;
  for (int step = 1; step < kPlanThreads; step *= 2) {
    __syncthreads();
    const int before = static_cast<int>(threadIdx.x) >= step ? shared[threadIdx.x - step] : 0;
    __syncthreads();
    shared[threadIdx.x] += before;
  }
  __syncthreads();
  return shared[threadIdx.x];
}

// Where a part begins. `cuts` counts the boundaries up to here that lie inside a sequence, `split` the sequences that
// have such.
struct Boundary {
  int seq, block;
  int cuts, split;
};
struct Begin {
  int seq, block;
};

__device__ __forceinline__ int num_blocks(int kv_len) {
  return (max(kv_len, 0) + kMlaBlockTokens - 1) / kMlaBlockTokens;
}
__device__ __forceinline__ int pairs_up(int blocks) {
  return (blocks + 1) & ~1;
}

// A warp deals to parts of `size`; ends[s] is the cost of sequences 0 .. s, ends[-1] 0, 32 more ends have no limit.
// Writes where parts 0 .. num_parts - 1 begin; true if they take everything. Each lane works out how the part ends if
// its sequence is the first that does not fit.
__device__ bool deal(const int* ends, int num_seqs, int num_parts, int overhead, int size, Begin* begins) {
  const int lane = threadIdx.x % 32;
  int seq = 0, block = 0, at = overhead;  // the next block, and where it is on the line of costs
  for (int part = 0; part < num_parts; ++part) {
    begins[part] = {seq, block};
    const int limit = at + size - overhead;
    unsigned misfits = 0;
    while (misfits == 0) {
      const int end = ends[seq + lane], begin = lane == 0 ? at : ends[seq + lane - 1] + overhead;
      const int room = seq + lane < num_seqs ? max((limit - begin) & ~1, 0) : 0;
      const int next_block = (lane == 0 ? block : 0) + room;
      misfits = __ballot_sync(0xffffffff, end > limit);
      const int first = misfits == 0 ? 31 : __ffs(misfits) - 1;
      at = __shfl_sync(0xffffffff, misfits == 0 ? end + overhead : begin + room, first);
      block = __shfl_sync(0xffffffff, misfits == 0 ? 0 : next_block, first);
      seq += misfits == 0 ? 32 : first;
    }
  }
  return seq == num_seqs;
}

__global__ void __launch_bounds__(kPlanThreads)
    decode_plan_kernel(DecodePlan plan, const int* kv_lens, const int* q_begin, int num_seqs, int num_parts,
                       int overhead) {
  extern __shared__ int line[];  // [1 + num_seqs + 32]
  int* ends = line + 1;
  __shared__ int scan[kPlanThreads];
  __shared__ Begin begins[kSizes][kPlanThreads];
  __shared__ Boundary boundaries[kPlanThreads];
  __shared__ bool suffices[kSizes];
  const int thread = threadIdx.x;
  for (int seq = thread; seq < num_seqs; seq += kPlanThreads) {
    ends[seq] = pairs_up(num_blocks(kv_lens[seq])) + overhead;
  }
  if (thread == 0) line[0] = 0;
  if (thread < 32) ends[num_seqs + thread] = kNoEnd;
  __syncthreads();
  const int run = (num_seqs + kPlanThreads - 1) / kPlanThreads, run_begin = min(thread * run, num_seqs);
  const int run_end = min(run_begin + run, num_seqs);
  int sum = 0;
  for (int seq = run_begin; seq < run_end; ++seq) sum += ends[seq];
  int end = block_scan(sum, scan) - sum;
  for (int seq = run_begin; seq < run_end; ++seq) ends[seq] = end += ends[seq];
  __syncthreads();

  if (thread / 32 < kSizes) {
    const int which = thread / 32, average = pairs_up((ends[num_seqs - 1] + num_parts - 1) / num_parts);
    const bool all = deal(ends, num_seqs, num_parts, overhead, average + 2 * which, begins[which]);
    if (thread % 32 == 0) suffices[which] = all;
  }
  __syncthreads();
  int which = 0;
  while (which < kSizes - 1 && !suffices[which]) ++which;
  Boundary own{num_seqs, 0, 0, 0};
  if (thread < num_parts) own = {begins[which][thread].seq, begins[which][thread].block, 0, 0};
  boundaries[thread] = own;
  __syncthreads();
  const bool inside = own.block > 0;
  const bool first = inside && !(boundaries[thread - 1].seq == own.seq && boundaries[thread - 1].block > 0);
  const int counts = block_scan((inside ? 1 : 0) + (first ? 1 << 16 : 0), scan);
  boundaries[thread].cuts = own.cuts = counts & 0xffff;
  boundaries[thread].split = own.split = counts >> 16;
  __syncthreads();

  if (thread < num_parts) plan.merges[thread] = {0, 0, 0, 0};
  __syncthreads();
  if (first) {
    int last = thread + 1;
    while (boundaries[last].block > 0 && boundaries[last].seq == own.seq) ++last;
    // Slots count the pieces of split sequences in order: one more than their cuts.
    plan.merges[own.split - 1] = {q_begin[own.seq], q_begin[own.seq + 1] - q_begin[own.seq], own.cuts + own.split - 2,
                                  last - thread + 1};
  }
  if (thread >= num_parts) return;
  const Boundary next = boundaries[thread + 1];
  DecodePart part{own.seq + own.cuts, next.seq + next.cuts, {0, 0}, {}};
  for (int i = part.begin, seq = own.seq, begin = own.block; i < part.end; ++i, ++seq, begin = 0) {
    const bool cut = seq == next.seq;
    const int kv_len = kv_lens[seq], end = cut ? next.block : num_blocks(kv_len);
    DecodeItem item{seq, begin, end, -1, kv_len, q_begin[seq], q_begin[seq + 1], 0};
    item.q_len -= item.q_begin;
    if (begin > 0)
      item.slot = own.cuts + own.split - 1;
    else if (cut)
      item.slot = next.cuts + next.split - 2;
    plan.items[i] = item;
    if (i == part.begin) part.first = item;
  }
  plan.parts[thread] = part;
}

}  // namespace

DecodeLayout decode_layout(const MlaDecodeShape& shape) {
  const int rows = static_cast<int>(shape.num_heads * shape.max_q_len);
  DecodeLayout layout{};
  layout.tile_rows = rows <= 16 ? 16 : rows <= 32 ? 32 : 64;
  layout.num_tiles = (rows + layout.tile_rows - 1) / layout.tile_rows;
  layout.num_parts = std::clamp(shape.num_sms / layout.num_tiles, 1, kMaxParts);
  layout.item_overhead = layout.tile_rows == 64 ? 4 : 2;
  layout.partial_rows = rows;
  return layout;
}

int64_t mla_decode_plan_bytes(const MlaDecodeShape& shape) {
  const DecodeLayout layout = decode_layout(shape);
  return layout.num_parts * int64_t{sizeof(DecodePart) + sizeof(DecodeMerge)} +
         (shape.num_seqs + layout.num_parts) * int64_t{sizeof(DecodeItem)};
}

int64_t mla_decode_workspace_bytes(const MlaDecodeShape& shape) {
  const DecodeLayout layout = decode_layout(shape);
  return int64_t{layout.num_slots()} * layout.partial_rows * (kMlaLatentDim + 1) * int64_t{sizeof(float)};
}

absl::Status check_decode_shape(const MlaDecodeShape& shape) {
  ArgsCheck check("mla_decode");
  check.size("num_seqs", shape.num_seqs, 1, kMlaMaxSeqs).size("num_heads", shape.num_heads, 1, kMlaMaxHeads);
  check.size("max_q_len", shape.max_q_len, 1, kMlaMaxQueries).size("num_sms", shape.num_sms, 1, 1024);
  check.require(shape.cache_dtype == DType::kBF16 || shape.cache_dtype == DType::kE4M3,
                "cache rows of bf16, or e4m3 for FP8 rows");
  return check.status();
}

absl::Status mla_decode_plan(cudaStream_t stream, const MlaDecodeShape& shape, const Tensor& kv_lens,
                             const Tensor& q_begin, const Tensor& plan) {
  MOESAIC_RETURN_IF_ERROR(check_decode_shape(shape));
  ArgsCheck check("mla_decode_plan");
  check.tensor("kv_lens", kv_lens, DType::kI32, {shape.num_seqs});
  check.tensor("q_begin", q_begin, DType::kI32, {shape.num_seqs + 1});
  check.memory("plan", plan, mla_decode_plan_bytes(shape));
  MOESAIC_RETURN_IF_ERROR(check.status());
  const DecodeLayout layout = decode_layout(shape);
  const int num_seqs = static_cast<int>(shape.num_seqs);
  decode_plan_kernel<<<1, kPlanThreads, (num_seqs + 33) * sizeof(int), stream>>>(
      plan_view(plan.raw(), layout.num_parts), kv_lens.i32(), q_begin.i32(), num_seqs, layout.num_parts,
      layout.item_overhead);
  return to_status(cudaGetLastError(), "launching the MLA decode planner");
}

}  // namespace moesaic::cuda
