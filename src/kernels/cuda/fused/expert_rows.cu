// A block two experts: it adds up the rows of the experts before them, then looks for their choices among all. A warp
// looks through one run of choices, so that ranks are counts of earlier warps, earlier words of bits and earlier bits.
#include "kernels/cuda/fused/expert_rows.h"

#include <algorithm>

#include "kernels/cuda/fused/args_check.h"
#include "kernels/cuda/fused/chained_launch.h"
#include "kernels/cuda/fused/vec.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kRowAlign = 128;
constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kBlockExperts = 2;
constexpr int kMaxExperts = 1024;
constexpr int64_t kMaxChoices = int64_t{1} << 24;

struct Params {
  const int32_t* ids;
  int num_choices, topk;
  const int32_t* counts;
  int num_experts;
  int32_t* group_begin;
  int32_t* row_experts;
  int32_t* row_tokens;
  int num_rows;
  int32_t* choice_rows;
};

__device__ int aligned_rows(int count) {
  return (count + kRowAlign - 1) / kRowAlign * kRowAlign;
}

// Sum over the block. One barrier before `scratch`, a place a warp, may be reused.
__device__ int block_total(int value, int* scratch) {
  value = __reduce_add_sync(kAllLanes, value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  return __reduce_add_sync(kAllLanes, scratch[threadIdx.x % 32]);
}

__device__ int sum_of_lanes_before(int value) {
  const int lane = threadIdx.x % 32;
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - value;
}

// Bit l of lane j's word e: choice begin + 32 j + l is expert first + e's. Choices of no expert get their -1 from the
// first block.
__device__ void find_choices(const Params& p, int first, int begin, int num_words, unsigned (&found)[kBlockExperts]) {
  const int lane = threadIdx.x % 32;
#pragma unroll 8
  for (int j = 0; j < num_words; ++j) {
    const int choice = begin + j * 32 + lane;
    const bool exists = choice < p.num_choices;
    int id = exists ? p.ids[choice] : -1;
    if (id >= p.num_experts) id = -1;
#pragma unroll
    for (int e = 0; e < kBlockExperts; ++e) {
      const unsigned bits = __ballot_sync(kAllLanes, id == first + e);
      if (lane == j) found[e] = bits;
    }
    if (first == 0 && exists && id < 0) p.choice_rows[choice] = -1;
  }
}

// Rows from `begin` on for the choices of a warp's run, which starts at `first`.
__device__ void write_rows(const Params& p, int expert, unsigned found, int first, int begin) {
  const int lane = threadIdx.x % 32, before = begin + sum_of_lanes_before(__popc(found));
  for (unsigned words = __ballot_sync(kAllLanes, found != 0); words != 0; words &= words - 1) {
    const int word = __ffs(words) - 1;
    const unsigned bits = __shfl_sync(kAllLanes, found, word);
    const int row = __shfl_sync(kAllLanes, before, word) + __popc(bits & ((1u << lane) - 1));
    if ((bits >> lane & 1) == 0 || row >= p.num_rows) continue;
    const int choice = first + word * 32 + lane;
    p.row_experts[row] = expert, p.row_tokens[row] = choice / p.topk, p.choice_rows[choice] = row;
  }
}

__global__ void __launch_bounds__(kThreads) expert_rows_kernel(const Params p) {
  __shared__ int scratch[2][kWarps], counts[kBlockExperts][kWarps];
  begin_chained();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread = threadIdx.x;
  const int first_expert = blockIdx.x * kBlockExperts, num_experts = min(kBlockExperts, p.num_experts - first_expert);
  const int rows = thread < p.num_experts ? aligned_rows(p.counts[thread]) : 0;
  const int end_of_all = block_total(rows, scratch[0]);
  int begin[kBlockExperts] = {block_total(thread < first_expert ? rows : 0, scratch[1])}, end[kBlockExperts];
#pragma unroll
  for (int e = 0; e < kBlockExperts; ++e) {
    if (e > 0) begin[e] = end[e - 1];
    end[e] = begin[e] + (e < num_experts ? aligned_rows(p.counts[first_expert + e]) : 0);
    if (e < num_experts && thread == 0) p.group_begin[first_expert + e] = begin[e];
  }
  const int num_words = min(32, (p.num_choices + kThreads - 1) / kThreads);  // of a warp's run
  for (int run = 0; run < p.num_choices; run += kThreads * num_words) {
    const int first = run + warp * num_words * 32;
    unsigned found[kBlockExperts] = {};
    find_choices(p, first_expert, first, num_words, found);
    __syncthreads();  // the last run's counts are read
#pragma unroll
    for (int e = 0; e < kBlockExperts; ++e) {
      const int count = __reduce_add_sync(kAllLanes, __popc(found[e]));
      if (lane == 0) counts[e][warp] = count;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < kBlockExperts; ++e) {
      const int before = __reduce_add_sync(kAllLanes, lane < warp ? counts[e][lane] : 0);
      write_rows(p, first_expert + e, found[e], first, begin[e] + before);
      begin[e] += __reduce_add_sync(kAllLanes, counts[e][lane]);
    }
  }
#pragma unroll
  for (int e = 0; e < kBlockExperts; ++e) {
    for (int row = begin[e] + thread; row < end[e]; row += kThreads) p.row_experts[row] = p.row_tokens[row] = -1;
  }
  for (int row = end_of_all + blockIdx.x * kThreads + thread; row < p.num_rows; row += gridDim.x * kThreads) {
    p.row_experts[row] = p.row_tokens[row] = -1;
  }
}

}  // namespace

int64_t most_expert_rows(int64_t num_choices, int64_t num_experts) {
  return (num_choices + std::min(num_choices, num_experts) * (kRowAlign - 1)) / kRowAlign * kRowAlign;
}

absl::Status expert_rows(cudaStream_t stream, const ExpertRowsArgs& args) {
  const int64_t num_tokens = args.topk_ids.dim(0), topk = args.topk_ids.dim(1);
  const int64_t num_experts = args.expert_counts.dim(0), num_rows = args.row_experts.dim(0);
  ArgsCheck check("expert_rows");
  check.require(num_experts >= 1 && num_experts <= kMaxExperts, "1 to 1024 experts");
  check.require(num_tokens * topk <= kMaxChoices && num_rows <= 2 * kMaxChoices, "at most 2^24 choices");
  check.require(num_rows >= most_expert_rows(num_tokens * topk, num_experts), "at least most_expert_rows rows");
  check.tensor("topk_ids", args.topk_ids, DType::kI32, {num_tokens, topk});
  check.tensor("expert_counts", args.expert_counts, DType::kI32, {num_experts});
  check.tensor("group_begin", args.group_begin, DType::kI32, {num_experts});
  check.tensor("row_experts", args.row_experts, DType::kI32, {num_rows});
  check.tensor("row_tokens", args.row_tokens, DType::kI32, {num_rows});
  check.tensor("choice_rows", args.choice_rows, DType::kI32, {num_tokens, topk});
  MOESAIC_RETURN_IF_ERROR(check.status());
  launch_chained(stream, expert_rows_kernel, (num_experts + kBlockExperts - 1) / kBlockExperts, kThreads, 0,
                 Params{.ids = args.topk_ids.data<int32_t>(),
                        .num_choices = static_cast<int>(num_tokens * topk),
                        .topk = static_cast<int>(topk),
                        .counts = args.expert_counts.data<int32_t>(),
                        .num_experts = static_cast<int>(num_experts),
                        .group_begin = args.group_begin.data<int32_t>(),
                        .row_experts = args.row_experts.data<int32_t>(),
                        .row_tokens = args.row_tokens.data<int32_t>(),
                        .num_rows = static_cast<int>(num_rows),
                        .choice_rows = args.choice_rows.data<int32_t>()});
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
