#include "kernels/cuda/gemm/gemm_config.h"

#include <gtest/gtest.h>

namespace moesaic::cuda {
namespace {

TEST(GemmConfig, TilesHoldTheRows) {
  for (int64_t rows : {1, 8, 9, 16, 33, 64, 128}) {
    const GemmConfig config = choose_gemm_config(
        {.grouping = Grouping::kDense, .rows = rows, .n = 4096, .k = 7168, .groups = 1, .num_sms = 132});
    EXPECT_EQ(config.kernel, GemmKernel::kFewRows) << rows;
    EXPECT_GE(config.tokens, rows);
    EXPECT_LT(config.tokens, std::max<int64_t>(9, 2 * rows));
  }
}

}  // namespace
}  // namespace moesaic::cuda
