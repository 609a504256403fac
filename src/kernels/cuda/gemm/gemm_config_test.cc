#include "kernels/cuda/gemm/gemm_config.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace moesaic::cuda {
namespace {

GemmShape dense(int64_t rows, int64_t n, int64_t k) {
  return {.grouping = Grouping::kDense, .rows = rows, .n = n, .k = k, .groups = 1, .num_sms = 132};
}

TEST(GemmConfig, FewRowsHaveATileThatHoldsThem) {
  for (int64_t rows : {1, 8, 9, 16, 33, 64}) {
    const GemmConfig config = choose_gemm_config(dense(rows, 4096, 7168));
    EXPECT_EQ(config.kernel, GemmKernel::kFewRows) << rows;
    EXPECT_GE(config.tokens, rows);
    EXPECT_LT(config.tokens, std::max<int64_t>(9, 2 * rows));
  }
}

TEST(GemmConfig, DecodeShapesKeepEverySmReading) {
  EXPECT_EQ(choose_gemm_config(dense(1, 2112, 7168)).split, 4);    // 33 tiles
  EXPECT_EQ(choose_gemm_config(dense(16, 4096, 7168)).split, 2);   // 64
  EXPECT_EQ(choose_gemm_config(dense(1, 7168, 2048)).split, 1);    // 112
  EXPECT_EQ(choose_gemm_config(dense(64, 7168, 2048)).split, 1);   // 112
  EXPECT_EQ(choose_gemm_config(dense(64, 7168, 16384)).split, 2);  // 112, two blocks an SM
}

GemmConfig few_rows(int tokens, int columns, int split) {
  return {.kernel = GemmKernel::kFewRows, .tokens = tokens, .columns = columns, .split = split};
}

// A cluster's SMs are of one GPC: 33 clusters of 4 or 24 of 5 do not run at once.
TEST(GemmConfig, SplitsOf128RowsRunAtOnce) {
  EXPECT_EQ(choose_gemm_config(dense(128, 1536, 7168)), few_rows(128, 64, 4));
  EXPECT_EQ(choose_gemm_config(dense(128, 4096, 7168)), few_rows(128, 64, 2));
  EXPECT_EQ(choose_gemm_config(dense(128, 7168, 16384)), few_rows(128, 128, 2));
}

TEST(GemmConfig, SmallTilesThatFillTheSms) {
  EXPECT_EQ(choose_gemm_config(dense(64, 4096, 7168)), few_rows(64, 32, 1));   // 128 tiles
  EXPECT_EQ(choose_gemm_config(dense(64, 2112, 7168)), few_rows(64, 32, 2));   // 66
  EXPECT_EQ(choose_gemm_config(dense(128, 2112, 7168)), few_rows(64, 32, 1));  // 132
  EXPECT_EQ(choose_gemm_config(dense(128, 576, 7168)), few_rows(64, 32, 3));   // 36
}

// Two blocks of 64 rows an SM, where there would be one of 128.
TEST(GemmConfig, HalvesOf128RowsWhereTheyReadNoMore) {
  EXPECT_EQ(choose_gemm_config(dense(128, 7168, 2048)), few_rows(64, 64, 1));
}

TEST(GemmConfig, TilesThatFillTheLastRound) {
  EXPECT_EQ(choose_gemm_config(dense(4096, 4096, 7168)).tile_columns, 256);
  EXPECT_EQ(choose_gemm_config(dense(4096, 2112, 7168)).tile_columns, 192);
  EXPECT_EQ(choose_gemm_config(dense(128, 24576, 1536)).tile_columns, 192);  // 128 tiles, one for each SM
  EXPECT_EQ(choose_gemm_config(dense(128, 32768, 512)).tile_columns, 256);
  GemmShape masked = dense(1024, 7168, 2048);
  masked.grouping = Grouping::kMasked;
  masked.groups = 2;
  EXPECT_EQ(choose_gemm_config(masked).tile_columns, 192);
}

// Whatever the shape: a configuration that was compiled, with no block of a cluster without work.
TEST(GemmConfig, AnyShape) {
  Rng rng(1);
  for (int i = 0; i < 20000; ++i) {
    const GemmShape shape = {.grouping = static_cast<Grouping>(rng.below(3)),
                             .rows = static_cast<int64_t>(1 + rng.below(rng.below(2) == 0 ? 130 : 10000)),
                             .n = static_cast<int64_t>(8 * (1 + rng.below(5000))),
                             .k = static_cast<int64_t>(128 * (1 + rng.below(130))),
                             .groups = static_cast<int64_t>(1 + rng.below(64)),
                             .num_sms = rng.below(2) == 0 ? 132 : 78};
    const GemmConfig config = choose_gemm_config(shape);
    SCOPED_TRACE(testing::Message() << "case " << i << " rows " << shape.rows << " n " << shape.n << " k " << shape.k);
    if (config.kernel == GemmKernel::kFewRows) {
      EXPECT_NE(shape.grouping, Grouping::kContiguous);
      EXPECT_TRUE(config.tokens >= 8 && config.tokens <= 128);
      EXPECT_TRUE(config.columns == 64 || config.columns == 128 || (config.columns == 32 && config.tokens == 64));
      EXPECT_GE(config.split, 1);
      EXPECT_LE(config.split, std::min<int64_t>(8, shape.k / 128));
      EXPECT_TRUE(config.split == 1 || (shape.grouping == Grouping::kDense && shape.groups == 1));
    } else {
      const int columns = config.tile_columns;
      EXPECT_TRUE(columns == 256 || columns == 192);
      EXPECT_TRUE(columns != 192 || shape.grouping != Grouping::kContiguous);
      EXPECT_TRUE(config.share == Share::kWeights || shape.grouping == Grouping::kDense);
    }
  }
}

TEST(Bf16GemmConfig, AnyShape) {
  Rng rng(2);
  for (int i = 0; i < 20000; ++i) {
    const int64_t rows = 1 + rng.below(rng.below(2) == 0 ? 130 : 10000), n = 8 * (1 + rng.below(5000));
    const int64_t k = 8 * (1 + rng.below(2100));
    const int num_sms = rng.below(2) == 0 ? 132 : 78;
    const Bf16GemmConfig config = choose_bf16_gemm_config(rows, n, k, num_sms);
    SCOPED_TRACE(testing::Message() << "case " << i << " rows " << rows << " n " << n << " k " << k);
    EXPECT_TRUE(config.tokens == 16 || config.tokens == 32 || config.tokens == 64 || config.tokens == 128 ||
                (config.tokens == 256 && config.columns == 128));
    EXPECT_TRUE(config.columns == 64 || (config.columns == 128 && config.split == 1));
    EXPECT_GE(config.split, 1);
    EXPECT_LE(config.split, std::min<int64_t>(8, (k + 63) / 64));
  }
}

// The router's logits: a few tiles, but a block for nearly every SM from 32 tokens on.
TEST(Bf16GemmConfig, FewColumnsAreSplit) {
  for (const int64_t rows : {32, 128, 4096}) {
    const Bf16GemmConfig config = choose_bf16_gemm_config(rows, 256, 7168, 132);
    const int64_t tiles = (rows + config.tokens - 1) / config.tokens * (256 / config.columns);
    EXPECT_GE(tiles * config.split * 10, rows == 32 ? 64 * 10 : 132 * 8) << rows << " rows";
  }
}

}  // namespace
}  // namespace moesaic::cuda
