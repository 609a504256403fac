// The planner: one block finds the smallest share (in blocks, with a fixed cost for every item) for which all sequences
// fit into num_parts shares when they are dealt out in order, each thread trying another share; one thread then writes
// the items of the winner.
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

__global__ void __launch_bounds__(kPlanThreads) decode_plan_kernel(DecodePlan plan, const int* kv_lens, int num_seqs,
                                                                   int num_parts, int overhead) {
  extern __shared__ int num_blocks[];  // [num_seqs]
  __shared__ int total, share;
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
  // With a share of ceil((total + parts * overhead) / parts) + overhead everything fits: a part wastes at most
  // `overhead`, and every cut adds one.
  const int candidate = max((total + num_parts - 1) / num_parts, overhead + 1) + static_cast<int>(threadIdx.x);
  if (threadIdx.x <= 2 * overhead + 2 &&
      deal(num_blocks, num_seqs, candidate, overhead, [](int, int, int, int) {}) <= num_parts) {
    atomicMin(&share, candidate);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  int num_items = 0, num_merges = 0, num_slots = 0, last_part = -1;
  deal(num_blocks, num_seqs, share, overhead, [&](int part, int seq, int begin, int end) {
    for (; last_part < part; ++last_part) plan.part_begin[last_part + 1] = num_items;
    const bool whole = begin == 0 && end == num_blocks[seq];
    if (!whole && begin == 0) plan.merges[num_merges++] = {seq, num_slots, 0, 0};
    if (!whole) ++plan.merges[num_merges - 1].num_slots;
    plan.items[num_items++] = {seq, begin, end, whole ? -1 : num_slots++};
  });
  for (; last_part < num_parts; ++last_part) plan.part_begin[last_part + 1] = num_items;
  *plan.num_merges = num_merges;
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
  return plan_merges_offset(layout.num_parts) + layout.num_parts * int64_t{sizeof(DecodeMerge)} +
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
                             const Tensor& plan) {
  MOESAIC_RETURN_IF_ERROR(check_decode_shape(shape));
  MOESAIC_CHECK_EQ(kv_lens.dim(0), shape.num_seqs);
  MOESAIC_CHECK_GE(plan.num_bytes(), mla_decode_plan_bytes(shape));
  const DecodeLayout layout = decode_layout(shape);
  const int num_seqs = static_cast<int>(shape.num_seqs);
  decode_plan_kernel<<<1, kPlanThreads, num_seqs * sizeof(int), stream>>>(
      plan_view(plan.raw(), layout.num_parts), kv_lens.i32(), num_seqs, layout.num_parts, layout.item_overhead);
  return to_status(cudaGetLastError(), "launching the MLA decode planner");
}

}  // namespace moesaic::cuda
