#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/gemm/launch.cuh"
#include "kernels/cuda/gemm/many_rows_kernel.cuh"

namespace moesaic::cuda {
namespace {

template <int kN, Grouping kGrouping, Share kShare>
absl::Status launch(cudaStream_t stream, const GemmProblem& problem, int num_sms) {
  using Shared = ManyRowsShared<kN>;
  MOESAIC_ASSIGN_OR_RETURN(const GemmMaps maps,
                           make_gemm_maps(problem, kTileRows / 2, kTileRows, Shared::kTileColumns / 2));
  MOESAIC_ASSIGN_OR_RETURN(const CUtensorMap y_map, make_y_map(problem));
  return launch_clusters(stream, many_rows_kernel<kN, kGrouping, kShare>, num_sms / 2 * 2, kManyRowsThreads,
                         Shared::kBytes, 2, kernel_args(problem), maps.x, maps.scales, maps.w, y_map);
}

}  // namespace

absl::Status launch_many_rows(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms) {
  const bool weights = config.share == Share::kWeights;
  const int columns = config.tile_columns;
  switch (problem.grouping) {
    case Grouping::kDense:
      if (weights && columns == 256) return launch<128, Grouping::kDense, Share::kWeights>(stream, problem, num_sms);
      if (weights && columns == 192) return launch<192, Grouping::kDense, Share::kWeights>(stream, problem, num_sms);
      if (!weights && columns == 192) return launch<192, Grouping::kDense, Share::kRows>(stream, problem, num_sms);
      if (!weights && columns == 256) return launch<128, Grouping::kDense, Share::kRows>(stream, problem, num_sms);
      break;
    case Grouping::kContiguous:
      if (weights && columns == 256)
        return launch<128, Grouping::kContiguous, Share::kWeights>(stream, problem, num_sms);
      break;
    case Grouping::kMasked:
      if (weights && columns == 256) return launch<128, Grouping::kMasked, Share::kWeights>(stream, problem, num_sms);
      if (weights && columns == 192) return launch<192, Grouping::kMasked, Share::kWeights>(stream, problem, num_sms);
      break;
  }
  return absl::UnimplementedError(str_cat("many_rows_kernel: no code for ", columns, " columns a tile, shared ",
                                          weights ? "weights" : "rows", ", in this grouping"));
}

}  // namespace moesaic::cuda
