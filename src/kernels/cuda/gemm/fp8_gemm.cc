#include "kernels/cuda/gemm/fp8_gemm.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/scales.h"
#include "tensor/cuda/device.h"

namespace moesaic::cuda {
namespace {

// What the operands that every operation has must be.
struct Shapes {
  Shape x_scales, w, w_scales;
};

// Limits of the kernels.
void check_sizes(ArgsCheck& check, const GemmProblem& p) {
  const int64_t most = std::numeric_limits<int32_t>::max();
  check.divisible("k", p.k, kScaleGroup).divisible("n", p.n, 8).size("groups", p.groups, 1, most);
  check.size("rows", p.rows, 0, most).size("n", p.n, 8, most);
  check.require((p.rows / 128 + 1) * (p.n / 32 + 1) <= most / std::max<int64_t>(p.groups, 1), "at most 2^31 tiles");
}

// Checks them, and puts all pointers that operations have in common into the problem.
template <typename Args>
void check_operands(ArgsCheck& check, const Args& args, const Shapes& shapes, GemmProblem& p) {
  check.tensor("x_scales", args.x_scales, DType::kF32, shapes.x_scales);
  check.tensor("w", args.w, DType::kE4M3, shapes.w).tensor("w_scales", args.w_scales, DType::kF32, shapes.w_scales);
  p.x = args.x.raw();
  p.x_scales = args.x_scales.template data<float>();
  p.w = args.w.raw();
  p.w_scales = args.w_scales.template data<float>();
  p.y = args.y.raw();
}

int64_t num_groups_of(int64_t size) {
  return (size + kScaleGroup - 1) / kScaleGroup;
}

absl::Status choose_and_launch(cudaStream_t stream, const GemmProblem& problem, int64_t expected_rows) {
  if (problem.rows == 0) return absl::OkStatus();
  MOESAIC_ASSIGN_OR_RETURN(const int num_sms, current_num_sms());
  const GemmShape shape = {.grouping = problem.grouping,
                           .rows = std::clamp<int64_t>(expected_rows, 1, problem.rows),
                           .n = problem.n,
                           .k = problem.k,
                           .groups = problem.groups,
                           .num_sms = num_sms};
  return launch_gemm(stream, problem, choose_gemm_config(shape), num_sms);
}

}  // namespace

absl::Status fp8_gemm(cudaStream_t stream, const Fp8GemmArgs& args) {
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  GemmProblem problem = {.grouping = Grouping::kDense,
                         .rows = m,
                         .n = n,
                         .k = k,
                         .groups = 1,
                         .x_row_stride = args.x.row_stride(),
                         .x_group_stride = args.x.row_stride() * m,
                         .y_row_stride = args.y.row_stride(),
                         .y_group_stride = 0};
  ArgsCheck check("fp8_gemm");
  check_sizes(check, problem);
  check.matrix("x", args.x, DType::kE4M3, m, k).matrix("y", args.y, DType::kBF16, m, n);
  const Shapes shapes = {.x_scales = {num_groups_of(k), scale_row_stride(m)},
                         .w = {n, k},
                         .w_scales = {num_groups_of(n), num_groups_of(k)}};
  check_operands(check, args, shapes, problem);
  MOESAIC_RETURN_IF_ERROR(check.status());
  return choose_and_launch(stream, problem, m);
}

absl::Status fp8_gemm_contiguous(cudaStream_t stream, const Fp8GemmContiguousArgs& args) {
  const int64_t rows = args.x.dim(0), k = args.x.dim(1), groups = args.w.dim(0), n = args.w.dim(1);
  GemmProblem problem = {.grouping = Grouping::kContiguous,
                         .rows = rows,
                         .n = n,
                         .k = k,
                         .groups = groups,
                         .x_row_stride = args.x.row_stride(),
                         .x_group_stride = args.x.row_stride() * rows,
                         .y_row_stride = args.y.row_stride(),
                         .y_group_stride = 0,
                         .row_ids = args.row_ids.data<int32_t>()};
  ArgsCheck check("fp8_gemm_contiguous");
  check_sizes(check, problem);
  check.matrix("x", args.x, DType::kE4M3, rows, k).matrix("y", args.y, DType::kBF16, rows, n);
  check.tensor("row_ids", args.row_ids, DType::kI32, {rows});
  const Shapes shapes = {.x_scales = {num_groups_of(k), scale_row_stride(rows)},
                         .w = {groups, n, k},
                         .w_scales = {groups, num_groups_of(n), num_groups_of(k)}};
  check_operands(check, args, shapes, problem);
  MOESAIC_RETURN_IF_ERROR(check.status());
  return choose_and_launch(stream, problem, rows);
}

absl::Status fp8_gemm_masked(cudaStream_t stream, const Fp8GemmMaskedArgs& args) {
  const int64_t groups = args.x.dim(0), max_rows = args.x.dim(1), k = args.x.dim(2), n = args.w.dim(1);
  GemmProblem problem = {.grouping = Grouping::kMasked,
                         .rows = max_rows,
                         .n = n,
                         .k = k,
                         .groups = groups,
                         .x_row_stride = k,
                         .x_group_stride = max_rows * k,
                         .y_row_stride = n,
                         .y_group_stride = max_rows * n,
                         .group_rows = args.group_rows.data<int32_t>()};
  ArgsCheck check("fp8_gemm_masked");
  check_sizes(check, problem);
  check.tensor("x", args.x, DType::kE4M3, {groups, max_rows, k});
  check.tensor("y", args.y, DType::kBF16, {groups, max_rows, n});
  check.tensor("group_rows", args.group_rows, DType::kI32, {groups});
  const Shapes shapes = {.x_scales = {groups, num_groups_of(k), scale_row_stride(max_rows)},
                         .w = {groups, n, k},
                         .w_scales = {groups, num_groups_of(n), num_groups_of(k)}};
  check_operands(check, args, shapes, problem);
  MOESAIC_RETURN_IF_ERROR(check.status());
  return choose_and_launch(stream, problem, args.expected_rows);
}

absl::Status fp8_gemm_batched(cudaStream_t stream, const Fp8GemmBatchedArgs& args) {
  const int64_t m = args.x.dim(0), heads = args.w.dim(0), n = args.w.dim(1), k = args.w.dim(2);
  const int64_t width = args.y.dim(2), x_heads = args.x.dim(1) == k ? 1 : heads;
  GemmProblem problem = {.grouping = Grouping::kDense,
                         .rows = m,
                         .n = n,
                         .k = k,
                         .groups = heads,
                         .x_row_stride = args.x.row_stride(),
                         .x_group_stride = x_heads == 1 ? 0 : k,
                         .y_row_stride = args.y.row_stride(),
                         .y_group_stride = width};
  ArgsCheck check("fp8_gemm_batched");
  check_sizes(check, problem);
  check.matrix("x", args.x, DType::kE4M3, m, x_heads * k).tensor("y", args.y, DType::kBF16, {m, heads, width});
  check.require(width >= n && width % 8 == 0, "heads of y at least n wide, divisible by 8");
  const Shapes shapes = {.x_scales = {x_heads * num_groups_of(k), scale_row_stride(m)},
                         .w = {heads, n, k},
                         .w_scales = {heads, num_groups_of(n), num_groups_of(k)}};
  check_operands(check, args, shapes, problem);
  MOESAIC_RETURN_IF_ERROR(check.status());
  return choose_and_launch(stream, problem, m);
}

}  // namespace moesaic::cuda
