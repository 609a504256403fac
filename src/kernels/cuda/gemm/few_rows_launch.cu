#include <algorithm>

#include "kernels/cuda/gemm/few_rows_kernel.cuh"
#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/gemm/launch.cuh"

namespace moesaic::cuda {
namespace {

template <int kTokens, int kWarpgroups, int kWaves, Grouping kGrouping>
absl::Status launch(cudaStream_t stream, const GemmProblem& problem, int split, int num_sms) {
  // Two blocks share an SM where their registers and rings fit.
  constexpr int kBlocksPerSm = kTokens <= 64 && kWarpgroups * kWaves <= 2 ? 2 : 1;
  using Shared = FewRowsShared<kTokens, kWarpgroups, kWaves, kBlocksPerSm>;
  MOESAIC_ASSIGN_OR_RETURN(const GemmMaps maps, make_gemm_maps(problem, kTokens, kTokens, Shared::kColumns));
  const int64_t tiles =
      (problem.rows + kTokens - 1) / kTokens * ((problem.n + Shared::kColumns - 1) / Shared::kColumns) * problem.groups;
  const int64_t blocks = split > 1 ? tiles * split : std::min<int64_t>(tiles, num_sms * kBlocksPerSm);
  return launch_clusters(stream, few_rows_kernel<kTokens, kWarpgroups, kWaves, kBlocksPerSm, kGrouping>,
                         static_cast<int>(blocks), Shared::kThreads, Shared::kBytes, split, kernel_args(problem),
                         maps.x, maps.scales, maps.w, split);
}

template <int kTokens, Grouping kGrouping>
absl::Status launch_columns(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms) {
  if (config.warpgroups == 2 && config.waves == 1) {
    return launch<kTokens, 2, 1, kGrouping>(stream, problem, config.split, num_sms);
  }
  if (config.warpgroups == 3 && config.waves == 1) {
    return launch<kTokens, 3, 1, kGrouping>(stream, problem, config.split, num_sms);
  }
  if (config.warpgroups == 2 && config.waves == 2) {
    return launch<kTokens, 2, 2, kGrouping>(stream, problem, config.split, num_sms);
  }
  return absl::UnimplementedError(str_cat("few_rows_kernel: no code for ", config.warpgroups, " warpgroups of ",
                                          config.waves, " waves; there is 2 of 1, 3 of 1, 2 of 2"));
}

template <Grouping kGrouping>
absl::Status launch_tokens(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms) {
  switch (config.tokens) {
    case 8:
      return launch_columns<8, kGrouping>(stream, problem, config, num_sms);
    case 16:
      return launch_columns<16, kGrouping>(stream, problem, config, num_sms);
    case 32:
      return launch_columns<32, kGrouping>(stream, problem, config, num_sms);
    case 64:
      return launch_columns<64, kGrouping>(stream, problem, config, num_sms);
    case 128:
      return launch_columns<128, kGrouping>(stream, problem, config, num_sms);
  }
  return absl::UnimplementedError(
      str_cat("few_rows_kernel: no code for ", config.tokens, " rows a tile; there is 8, 16, 32, 64, 128"));
}

}  // namespace

absl::Status launch_few_rows(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms) {
  if (config.split < 1 || config.split > kMaxSplit || (config.split > 1 && problem.grouping != Grouping::kDense)) {
    return absl::InvalidArgumentError(str_cat("few_rows_kernel: split of ", config.split, ", expected 1 to ", kMaxSplit,
                                              ", and 1 for grouped GEMMs"));
  }
  switch (problem.grouping) {
    case Grouping::kDense:
      return launch_tokens<Grouping::kDense>(stream, problem, config, num_sms);
    case Grouping::kMasked:
      return launch_tokens<Grouping::kMasked>(stream, problem, config, num_sms);
    case Grouping::kContiguous:
      break;
  }
  return absl::UnimplementedError("few_rows_kernel: contiguous groups are for many_rows_kernel");
}

}  // namespace moesaic::cuda
