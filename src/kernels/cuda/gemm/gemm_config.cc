#include "kernels/cuda/gemm/gemm_config.h"

#include <algorithm>

namespace moesaic::cuda {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

GemmConfig choose_gemm_config(const GemmShape& shape) {
  if (shape.grouping == Grouping::kContiguous || shape.rows > 128) {
    return {.kernel = GemmKernel::kManyRows,
            .warpgroup_columns = 128,
            .share = shape.grouping == Grouping::kMasked ? Share::kRows : Share::kWeights};
  }
  GemmConfig config = {.kernel = GemmKernel::kFewRows, .tokens = 8, .warpgroups = 2, .waves = 1, .split = 1};
  while (config.tokens < shape.rows) config.tokens *= 2;
  const int64_t tiles = ceil_div(shape.n, 128) * shape.groups;
  if (shape.grouping == Grouping::kDense && shape.groups == 1) {
    config.split = static_cast<int>(std::clamp<int64_t>(2 * shape.num_sms / tiles, 1, 8));
  }
  return config;
}

}  // namespace moesaic::cuda
