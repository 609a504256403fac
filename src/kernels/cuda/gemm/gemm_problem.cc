#include "kernels/cuda/gemm/gemm_problem.h"

#include "kernels/cuda/gemm/tensor_map.h"
#include "kernels/cuda/scales.h"

namespace moesaic::cuda {

absl::StatusOr<GemmMaps> make_gemm_maps(const GemmProblem& problem, int x_box, int scale_box, int w_box) {
  const int64_t x_groups = problem.grouping == Grouping::kContiguous ? 1 : problem.groups;
  const int64_t k_groups = problem.k / kScaleGroup;
  const int64_t scale_stride = scale_row_stride(problem.rows);
  GemmMaps maps;
  MOESAIC_ASSIGN_OR_RETURN(maps.x, make_tensor_map({.data = problem.x,
                                                    .element_bytes = 1,
                                                    .dims = {problem.k, problem.rows, x_groups},
                                                    .strides = {problem.x_row_stride, problem.x_group_stride},
                                                    .box = {kScaleGroup, x_box, 1},
                                                    .swizzle = true}));
  MOESAIC_ASSIGN_OR_RETURN(maps.scales, make_tensor_map({.data = problem.x_scales,
                                                         .element_bytes = 4,
                                                         .dims = {problem.rows, k_groups, x_groups},
                                                         .strides = {scale_stride, scale_stride * k_groups},
                                                         .box = {scale_box, 1, 1}}));
  MOESAIC_ASSIGN_OR_RETURN(maps.w, make_tensor_map({.data = problem.w,
                                                    .element_bytes = 1,
                                                    .dims = {problem.k, problem.n, problem.groups},
                                                    .strides = {problem.k, problem.n * problem.k},
                                                    .box = {kScaleGroup, w_box, 1},
                                                    .swizzle = true}));
  return maps;
}

absl::StatusOr<CUtensorMap> make_y_map(const GemmProblem& problem) {
  const int64_t groups = problem.grouping == Grouping::kContiguous ? 1 : problem.groups;
  return make_tensor_map(
      {.data = problem.y,
       .element_bytes = 2,
       .dims = {problem.n, problem.rows, groups},
       .strides = {problem.y_row_stride, groups == 1 ? problem.y_row_stride * problem.rows : problem.y_group_stride},
       .box = {64, 16, 1},
       .swizzle = true});
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
