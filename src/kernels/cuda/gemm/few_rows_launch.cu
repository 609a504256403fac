#include <algorithm>

#include "kernels/cuda/gemm/few_rows_kernel.cuh"
#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/gemm/launch.cuh"

namespace moesaic::cuda {
namespace {

template <int kTokens, int kColumns, int kParts, Grouping kGrouping>
absl::Status launch(cudaStream_t stream, const GemmProblem& problem, int split, int num_sms) {
  using Shared = FewRowsShared<kTokens, kColumns, kParts>;
  const int64_t most = kGrouping == Grouping::kDense ? std::min<int64_t>(kMaxSplit, problem.k / 128 / kParts) : 1;
  if (split < 1 || split > most) {
    return absl::InvalidArgumentError(str_cat("few_rows_kernel: split of ", split, ", expected 1 to ", most, " for k ",
                                              problem.k, " and ", kColumns, " columns"));
  }
  MOESAIC_ASSIGN_OR_RETURN(const GemmMaps maps, make_gemm_maps(problem, kTokens, kTokens, kColumns));
  const int64_t tiles =
      (problem.rows + kTokens - 1) / kTokens * ((problem.n + kColumns - 1) / kColumns) * problem.groups;
  const int64_t blocks = split * kParts > 1 ? tiles * split : std::min<int64_t>(tiles, num_sms * Shared::kBlocksPerSm);
  return launch_clusters(stream, few_rows_kernel<kTokens, kColumns, kParts, kGrouping>, static_cast<int>(blocks),
                         Shared::kThreads, Shared::kBytes, split, kernel_args(problem), maps.x, maps.scales, maps.w,
                         split, (kTokens + split - 1) / split);
}

template <int kTokens, Grouping kGrouping>
absl::Status launch_columns(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms) {
  if constexpr (kTokens == 64 && kGrouping == Grouping::kDense) {
    if (config.parts == 2 && config.columns == 32) {
      return launch<kTokens, 32, 2, kGrouping>(stream, problem, config.split, num_sms);
    }
    if (config.parts == 2 && config.columns == 64) {
      return launch<kTokens, 64, 2, kGrouping>(stream, problem, config.split, num_sms);
    }
  }
  if (config.parts == 1 && config.columns == 64) {
    return launch<kTokens, 64, 1, kGrouping>(stream, problem, config.split, num_sms);
  }
  if (config.parts == 1 && config.columns == 128) {
    return launch<kTokens, 128, 1, kGrouping>(stream, problem, config.split, num_sms);
  }
  return absl::UnimplementedError(str_cat("few_rows_kernel: no code for ", config.tokens, " rows by ", config.columns,
                                          " columns in ", config.parts, " parts; there is 64 and 128 columns in one, ",
                                          "and 32 and 64 in two for 64 rows, dense"));
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
