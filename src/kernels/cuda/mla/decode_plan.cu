// The planner: one block finds the smallest share (in blocks, with a fixed cost for every item) for which all sequences
// fit into num_parts shares when they are dealt out in order, each warp trying another share; one thread then
// writes the items of the winner.
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "kernels/cuda/mla/decode_plan.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kPlanThreads = 256;

// Deals the sequences out. `take(part, seq, begin, end)` sees every item in order. Returns the number of parts used.
template <typename Take>
__device__ int deal(const int* num_blocks, int num_seqs, int share, int overhead, const Take& take) {
  int part = 0, room = share;
  for (int seq = 0; seq < num_seqs; ++seq) {
    int begin = 0;
    const int end = num_blocks[seq];
    while (true) {
      if (room >= end - begin + overhead) {
        take(part, seq, begin, end);
        room -= end - begin + overhead;
        break;
      }
      if (room > overhead) {
        take(part, seq, begin, begin + room - overhead);
        begin += room - overhead;
      }
      ++part;
      room = share;
    }
  }
  return part + 1;
}

__global__ void __launch_bounds__(kPlanThreads)
    decode_plan_kernel(DecodePlan plan, const int* kv_lens, const int* q_begin, int num_seqs, int num_parts, int overhead) {
  extern __shared__ int num_blocks[];  // [num_seqs], then part_begin[num_parts + 1]
  int* part_begin = num_blocks + num_seqs;
  __shared__ int total, share, num_items, num_merges;
  if (threadIdx.x == 0) {
    total = 0;
    share = INT_MAX;
  }
  __syncthreads();
  int sum = 0;
  for (int seq = threadIdx.x; seq < num_seqs; seq += kPlanThreads) {
    num_blocks[seq] = (max(kv_lens[seq], 0) + kMlaBlockTokens - 1) / kMlaBlockTokens;
    sum += num_blocks[seq] + overhead;
  }
  atomicAdd(&total, sum);
  __syncthreads();
  // With a share of ceil(total / parts) + overhead everything fits: a part wastes at most `overhead`, or cuts once.
  // One candidate a warp: in one warp they would wait for each other.
  const int warp = threadIdx.x / 32, least = max((total + num_parts - 1) / num_parts, overhead + 1);
  if (threadIdx.x % 32 == 0) {
    for (int candidate = least + warp; candidate <= least + overhead; candidate += kPlanThreads / 32) {
      if (deal(num_blocks, num_seqs, candidate, overhead, [](int, int, int, int) {}) > num_parts) continue;
      atomicMin(&share, candidate);
      break;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    int items = 0, merges = 0, slots = 0, last_part = -1, slot_begin = 0;
    deal(num_blocks, num_seqs, share, overhead, [&](int part, int seq, int begin, int end) {
      for (; last_part < part; ++last_part) part_begin[last_part + 1] = items;
      const bool whole = begin == 0 && end == num_blocks[seq];
      plan.items[items++] = {seq, begin, end, whole ? -1 : slots, 0, 0, 0, 0};
      if (whole) return;
      if (begin == 0) slot_begin = slots;
      ++slots;
      if (end == num_blocks[seq]) plan.merges[merges++] = {seq, 0, slot_begin, slots - slot_begin};
    });
    for (; last_part < num_parts; ++last_part) part_begin[last_part + 1] = items;
    num_items = items;
    num_merges = merges;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_items; i += kPlanThreads) {
    DecodeItem& item = plan.items[i];
    item.kv_len = kv_lens[item.seq];
    item.q_begin = q_begin[item.seq];
    item.q_len = q_begin[item.seq + 1] - item.q_begin;
  }
  for (int i = threadIdx.x; i < num_parts; i += kPlanThreads) {
    DecodeMerge merge = i < num_merges ? plan.merges[i] : DecodeMerge{0, 0, 0, 0};
    if (i < num_merges) {
      const int seq = merge.q_begin;  // so far
      merge.q_begin = q_begin[seq];
      merge.q_len = q_begin[seq + 1] - merge.q_begin;
    }
    plan.merges[i] = merge;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_parts; i += kPlanThreads) {
    DecodePart part{part_begin[i], part_begin[i + 1], {0, 0}, {}};
    if (part.begin < part.end) part.first = plan.items[part.begin];
    plan.parts[i] = part;
  }
}

}  // namespace

DecodeLayout decode_layout(const MlaDecodeShape& shape) {
  const int rows = static_cast<int>(shape.num_heads * shape.max_q_len);
  const int widest = shape.cache_dtype == DType::kE4M3 ? 32 : 64;
  DecodeLayout layout{};
  layout.tile_rows = rows <= 16 ? 16 : rows <= 32 ? 32 : widest;
  layout.num_tiles = (rows + layout.tile_rows - 1) / layout.tile_rows;
  layout.num_parts = std::max(shape.num_sms / layout.num_tiles, 1);
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
  const auto in_range = [](int64_t value, int64_t max) { return value >= 1 && value <= max; };
  if (!in_range(shape.num_seqs, kMlaMaxSeqs)) {
    return absl::InvalidArgumentError(str_cat("mla_decode: num_seqs ", shape.num_seqs, ", expected 1 to ", kMlaMaxSeqs));
  }
  if (!in_range(shape.num_heads, kMlaMaxHeads)) {
    return absl::InvalidArgumentError(
        str_cat("mla_decode: num_heads ", shape.num_heads, ", expected 1 to ", kMlaMaxHeads));
  }
  if (!in_range(shape.max_q_len, kMlaMaxQueries)) {
    return absl::InvalidArgumentError(
        str_cat("mla_decode: max_q_len ", shape.max_q_len, ", expected 1 to ", kMlaMaxQueries));
  }
  if (shape.cache_dtype != DType::kBF16 && shape.cache_dtype != DType::kE4M3) {
    return absl::InvalidArgumentError(
        str_cat("mla_decode: cache rows of ", std::string(dtype_name(shape.cache_dtype)), ", expected bf16 or e4m3"));
  }
  return absl::OkStatus();
}

absl::Status mla_decode_plan(cudaStream_t stream, const MlaDecodeShape& shape, const Tensor& kv_lens,
                             const Tensor& q_begin, const Tensor& plan) {
  MOESAIC_RETURN_IF_ERROR(check_decode_shape(shape));
  MOESAIC_CHECK_EQ(kv_lens.dim(0), shape.num_seqs);
  MOESAIC_CHECK_EQ(q_begin.dim(0), shape.num_seqs + 1);
  MOESAIC_CHECK_GE(plan.num_bytes(), mla_decode_plan_bytes(shape));
  const DecodeLayout layout = decode_layout(shape);
  const int num_seqs = static_cast<int>(shape.num_seqs);
  const size_t shared_bytes = (shape.num_seqs + layout.num_parts + 1) * sizeof(int);
  decode_plan_kernel<<<1, kPlanThreads, shared_bytes, stream>>>(plan_view(plan.raw(), layout.num_parts), kv_lens.i32(),
                                                                q_begin.i32(), num_seqs, layout.num_parts,
                                                                layout.item_overhead);
  return to_status(cudaGetLastError(), "launching the MLA decode planner");
}

}  // namespace moesaic::cuda
