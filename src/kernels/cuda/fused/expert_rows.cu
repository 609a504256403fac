// A block an expert: it adds up the rows of the experts before it, then looks for its choices among all of them. A warp
// looks through one run of choices, so that ranks are counts of earlier warps, earlier words of bits and earlier bits.
#include "kernels/cuda/fused/expert_rows.h"

#include <algorithm>

#include "kernels/cuda/fused/args_check.h"
#include "kernels/cuda/fused/chained_launch.cuh"
#include "kernels/cuda/fused/vec.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kRowAlign = 128;
constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
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

// Bit l of lane j's word: choice begin + 32 j + l is the expert's. Choices of no expert get their -1 from the first.
__device__ unsigned find_choices(const Params& p, int expert, int begin, int num_words) {
  const int lane = threadIdx.x % 32;
  unsigned found = 0;
#pragma unroll 8
  for (int j = 0; j < num_words; ++j) {
    const int choice = begin + j * 32 + lane;
    const bool exists = choice < p.num_choices;
    const int id = exists ? p.ids[choice] : -1;
    const unsigned bits = __ballot_sync(kAllLanes, id == expert);
    if (lane == j) found = bits;
    if (expert == 0 && exists && (id < 0 || id >= p.num_experts)) p.choice_rows[choice] = -1;
  }
  return found;
}

__global__ void __launch_bounds__(kThreads) expert_rows_kernel(const Params p) {
  __shared__ int scratch[3][kWarps];
  begin_chained();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, expert = blockIdx.x;
  const int rows = threadIdx.x < p.num_experts ? aligned_rows(p.counts[threadIdx.x]) : 0;
  int begin = block_total(static_cast<int>(threadIdx.x) < expert ? rows : 0, scratch[0]);
  const int end_of_all = block_total(rows, scratch[1]), end = begin + aligned_rows(p.counts[expert]);
  if (threadIdx.x == 0) p.group_begin[expert] = begin;
  const int num_words = min(32, (p.num_choices + kThreads - 1) / kThreads);  // of a warp's run
  for (int run = 0; run < p.num_choices; run += kWarps * num_words * 32) {
    const int first = run + warp * num_words * 32;
    const unsigned found = find_choices(p, expert, first, num_words);
    const int before = sum_of_lanes_before(__popc(found)), count = __reduce_add_sync(kAllLanes, __popc(found));
    __syncthreads();  // the last run's counts are read
    if (lane == 0) scratch[2][warp] = count;
    __syncthreads();
    const int warp_begin = begin + __reduce_add_sync(kAllLanes, lane < warp ? scratch[2][lane] : 0);
    for (unsigned words = __ballot_sync(kAllLanes, found != 0); words != 0; words &= words - 1) {
      const int word = __ffs(words) - 1;
      const unsigned bits = __shfl_sync(kAllLanes, found, word);
      const int row = warp_begin + __shfl_sync(kAllLanes, before, word) + __popc(bits & ((1u << lane) - 1));
      if ((bits >> lane & 1) == 0 || row >= p.num_rows) continue;
      const int choice = first + word * 32 + lane;
      p.row_experts[row] = expert, p.row_tokens[row] = choice / p.topk, p.choice_rows[choice] = row;
    }
    begin += __reduce_add_sync(kAllLanes, scratch[2][lane]);
  }
  for (int row = begin + threadIdx.x; row < end; row += kThreads) p.row_experts[row] = p.row_tokens[row] = -1;
  const int step = gridDim.x * kThreads;
  for (int row = end_of_all + expert * kThreads + threadIdx.x; row < p.num_rows; row += step) {
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
  launch_chained(stream, expert_rows_kernel, num_experts, kThreads, 0,
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
