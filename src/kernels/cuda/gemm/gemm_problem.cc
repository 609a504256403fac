#include "kernels/cuda/gemm/gemm_problem.h"

#include "kernels/cuda/scales.h"
#include "tensor/cuda/tensor_map.h"

namespace moesaic::cuda {
namespace {

constexpr bool kSwizzled = true;  // as wgmma reads operands

}  // namespace

absl::StatusOr<GemmMaps> make_gemm_maps(const GemmProblem& problem, int x_box, int scale_box, int w_box) {
  const int64_t x_groups = problem.grouping == Grouping::kContiguous ? 1 : problem.groups;
  const int64_t k_groups = problem.k / kScaleGroup;
  const int64_t scale_stride = scale_row_stride(problem.rows);
  const int64_t scale_group_stride = problem.x_group_stride == 0 ? 0 : scale_stride * k_groups;
  GemmMaps maps;
  MOESAIC_ASSIGN_OR_RETURN(
      maps.x, make_tensor_map(problem.x, DType::kE4M3, {problem.k, problem.rows, x_groups},
                              {problem.x_row_stride, problem.x_group_stride}, {kScaleGroup, x_box, 1}, kSwizzled));
  MOESAIC_ASSIGN_OR_RETURN(maps.scales,
                           make_tensor_map(problem.x_scales, DType::kF32, {problem.rows, k_groups, x_groups},
                                           {scale_stride * 4, scale_group_stride * 4}, {scale_box, 1, 1}, !kSwizzled));
  MOESAIC_ASSIGN_OR_RETURN(maps.w,
                           make_tensor_map(problem.w, DType::kE4M3, {problem.k, problem.n, problem.groups},
                                           {problem.k, problem.n * problem.k}, {kScaleGroup, w_box, 1}, kSwizzled));
  return maps;
}

absl::StatusOr<CUtensorMap> make_y_map(const GemmProblem& problem) {
  const int64_t groups = problem.grouping == Grouping::kContiguous ? 1 : problem.groups;
  const int64_t group_stride = groups == 1 ? problem.y_row_stride * problem.rows : problem.y_group_stride;
  return make_tensor_map(problem.y, DType::kBF16, {problem.n, problem.rows, groups},
                         {problem.y_row_stride * 2, group_stride * 2}, {64, 64, 1}, kSwizzled);
}

KernelArgs kernel_args(const GemmProblem& problem) {
  return {.w_scales = problem.w_scales,
          .row_ids = problem.row_ids,
          .group_rows = problem.group_rows,
          .y = problem.y,
          .y_group_stride = problem.y_group_stride,
          .y_row_stride = problem.y_row_stride,
          .rows = static_cast<int>(problem.rows),
          .n = static_cast<int>(problem.n),
          .k_groups = static_cast<int>(problem.k / kScaleGroup),
          .groups = static_cast<int>(problem.groups)};
}

absl::Status launch_gemm(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms) {
  return config.kernel == GemmKernel::kManyRows ? launch_many_rows(stream, problem, config, num_sms)
                                                : launch_few_rows(stream, problem, config, num_sms);
}

}  // namespace moesaic::cuda
