#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/gemm/launch.cuh"
#include "kernels/cuda/gemm/many_rows_kernel.cuh"

namespace moesaic::cuda {
namespace {

template <int kN, Grouping kGrouping, Share kShare>
absl::Status launch(cudaStream_t stream, const GemmProblem& problem, int num_sms) {
  MOESAIC_ASSIGN_OR_RETURN(const GemmMaps maps, make_gemm_maps(problem, kTileRows / 2, kTileRows, kN));
  return launch_clusters(stream, many_rows_kernel<kN, kGrouping, kShare>, num_sms / 2 * 2, kManyRowsThreads,
                         ManyRowsShared<kN>::kBytes, 2, kernel_args(problem), maps.x, maps.scales, maps.w);
}

template <int kN, Share kShare>
absl::Status launch_grouping(cudaStream_t stream, const GemmProblem& problem, int num_sms) {
  switch (problem.grouping) {
    case Grouping::kDense:
      return launch<kN, Grouping::kDense, kShare>(stream, problem, num_sms);
    case Grouping::kContiguous:
      return launch<kN, Grouping::kContiguous, kShare>(stream, problem, num_sms);
    case Grouping::kMasked:
      return launch<kN, Grouping::kMasked, kShare>(stream, problem, num_sms);
  }
  return absl::InternalError("many_rows_kernel: no such grouping");
}

}  // namespace

absl::Status launch_many_rows(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms) {
  const bool weights = config.share == Share::kWeights;
  if (config.warpgroup_columns == 128) {
    return weights ? launch_grouping<128, Share::kWeights>(stream, problem, num_sms)
                   : launch_grouping<128, Share::kRows>(stream, problem, num_sms);
  }
  if (config.warpgroup_columns == 88 && problem.grouping == Grouping::kDense && weights) {
    return launch<88, Grouping::kDense, Share::kWeights>(stream, problem, num_sms);
  }
  return absl::UnimplementedError(str_cat("many_rows_kernel: no code for ", config.warpgroup_columns,
                                          " columns a warpgroup; 128 always, 88 for dense GEMMs sharing weights"));
}

}  // namespace moesaic::cuda
