// A block places a run of choices. An expert's next row is where its rows begin, plus its choices before the run: those
// are counted, or the ones from the run on are taken off all, whichever are fewer.
#include "kernels/cuda/fused/expert_rows.h"

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/chained_launch.cuh"
#include "kernels/cuda/fused/vec.cuh"

namespace moesaic::cuda {
namespace {

constexpr int kRowAlign = 128;
constexpr int kThreads = 1024;
constexpr int kFewChoices = 65536;  // up to here runs are short, so that all multiprocessors work
constexpr int kShortRun = 256;
constexpr int kPaddingRows = 2048;  // of a block at most: few choices have many rows of padding
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

__device__ int sum_of_lanes_to_here(int value) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kAllLanes, value, step);
    if (lane >= step) value += other;
  }
  return value;
}

// counts[id] += change for the choices from `begin` to `end`; `begin` is divisible by 4.
__device__ void count_choices(const Params& p, int begin, int end, int change, int* counts) {
  const auto count = [&](int id) {
    if (static_cast<unsigned>(id) < static_cast<unsigned>(p.num_experts)) atomicAdd(counts + id, change);
  };
#pragma unroll 4
  for (int i = begin + threadIdx.x * 4; i < end; i += kThreads * 4) {
    if (i + 4 <= end) {
      const int4 ids = *reinterpret_cast<const int4*>(p.ids + i);
      count(ids.x), count(ids.y), count(ids.z), count(ids.w);
    } else {
      for (int j = i; j < end; ++j) count(p.ids[j]);
    }
  }
}

// Warps of a block, the first ones a choice a lane.
__global__ void __launch_bounds__(kThreads) expert_rows_kernel(const Params p, int run) {
  __shared__ int next[kMaxExperts], sums[kWarps];
  __shared__ int2 padding[kMaxExperts];              // first row, end
  __shared__ uint8_t in_warps[kWarps][kMaxExperts];  // an expert's choices in each warp of the run
  begin_chained();
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  const int begin = blockIdx.x * run, end = min(begin + run, p.num_choices);
  const bool from_behind = begin > p.num_choices / 2;
  const int choice = begin + thread, count = thread < p.num_experts ? p.counts[thread] : 0;
  const int id = choice < end ? p.ids[choice] : -1;
  for (int w = 0; w < run / 32; ++w) in_warps[w][thread] = 0;
  const int rows_to_here = sum_of_lanes_to_here(aligned_rows(count));
  if (lane == 31) sums[warp] = rows_to_here;
  __syncthreads();
  const int total_rows = __reduce_add_sync(kAllLanes, sums[lane]);
  const int rows_end = rows_to_here + __reduce_add_sync(kAllLanes, lane < warp ? sums[lane] : 0);
  const int first_row = rows_end - aligned_rows(count);
  next[thread] = from_behind ? first_row + count : first_row;
  padding[thread] = {first_row + count, rows_end};
  if (blockIdx.x == 0 && thread < p.num_experts) p.group_begin[thread] = first_row;
  const bool has_row = static_cast<unsigned>(id) < static_cast<unsigned>(p.num_experts);
  const unsigned same = __match_any_sync(kAllLanes, id), before = same & ((1u << lane) - 1);
  if (has_row && before == 0) in_warps[warp][id] = static_cast<uint8_t>(__popc(same));
  __syncthreads();
  if (from_behind) {
    count_choices(p, begin, p.num_choices, -1, next);
  } else {
    count_choices(p, 0, begin, 1, next);
  }
  __syncthreads();
  if (choice < end) {
    int row = -1;
    if (has_row) {
      row = next[id] + __popc(before);
      for (int w = 0; w < warp; ++w) row += in_warps[w][id];
      if (static_cast<unsigned>(row) < static_cast<unsigned>(p.num_rows)) {
        p.row_experts[row] = id, p.row_tokens[row] = choice / p.topk;
      }
    }
    p.choice_rows[choice] = row;
  }
  for (int expert = warp * gridDim.x + blockIdx.x; expert < p.num_experts; expert += gridDim.x * kWarps) {
    const int2 rows = padding[expert];
    for (int row = rows.x + lane; row < rows.y; row += 32) p.row_experts[row] = p.row_tokens[row] = -1;
  }
  for (int row = total_rows + blockIdx.x * kThreads + thread; row < p.num_rows; row += gridDim.x * kThreads) {
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
  const int num_choices = static_cast<int>(num_tokens * topk), run = num_choices <= kFewChoices ? kShortRun : kThreads;
  const int64_t padding_blocks = (num_rows + kPaddingRows - 1) / kPaddingRows;
  const int64_t blocks = std::max<int64_t>({(num_choices + run - 1) / run, padding_blocks, 1});
  launch_chained(stream, expert_rows_kernel, static_cast<unsigned>(blocks), kThreads, 0,
                 Params{.ids = args.topk_ids.data<int32_t>(),
                        .num_choices = num_choices,
                        .topk = static_cast<int>(topk),
                        .counts = args.expert_counts.data<int32_t>(),
                        .num_experts = static_cast<int>(num_experts),
                        .group_begin = args.group_begin.data<int32_t>(),
                        .row_experts = args.row_experts.data<int32_t>(),
                        .row_tokens = args.row_tokens.data<int32_t>(),
                        .num_rows = static_cast<int>(num_rows),
                        .choice_rows = args.choice_rows.data<int32_t>()},
                 run);
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
