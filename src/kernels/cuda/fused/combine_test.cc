// The weighted sum and embedding rows, bit for bit.
#include "kernels/cuda/fused/combine.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

struct CombineCase {
  int64_t tokens, topk, n;
  bool base;
};

class Combine : public test::CudaTest, public testing::WithParamInterface<CombineCase> {};

TEST_P(Combine, SumsInTopKOrder) {
  const CombineCase c = GetParam();
  Rng rng(11);
  const int64_t rows = 2 * c.tokens + 3;
  std::vector<float> x = test::bf16_values(rng, rows * c.n);
  std::fill_n(x.begin(), c.n, test::kNan);  // row 0: nobody's
  const std::vector<float> weights = test::gaussians(rng, c.tokens * c.topk),
                           base = test::bf16_values(rng, c.tokens * c.n);
  std::vector<int32_t> ids(c.tokens * c.topk);
  const int32_t nobodys[] = {-1, static_cast<int32_t>(rows), std::numeric_limits<int32_t>::min(),
                             std::numeric_limits<int32_t>::max()};
  for (int32_t& id : ids)
    id = rng.below(5) == 0 ? nobodys[rng.below(4)] : 1 + static_cast<int32_t>(rng.below(rows - 1));
  const DeviceTensor dx = test::upload(DType::kBF16, {rows, c.n}, test::to_bf16(x));
  const DeviceTensor dids = test::upload(DType::kI32, {c.tokens, c.topk}, ids);
  const DeviceTensor dw = test::upload(DType::kF32, {c.tokens, c.topk}, weights);
  const DeviceTensor db = test::upload(DType::kBF16, {c.tokens, c.n}, test::to_bf16(base));
  const DeviceTensor y = test::poisoned(DType::kBF16, {c.tokens, c.n});
  ASSERT_TRUE(
      combine(stream(), {.x = dx, .row_ids = dids, .weights = dw, .base = c.base ? db.tensor : Tensor(), .y = y}).ok());
  std::vector<float> want(c.tokens * c.n);
  for (int64_t t = 0; t < c.tokens; ++t) {
    for (int64_t i = 0; i < c.n; ++i) {
      float sum = 0.0f;
      for (int64_t k = t * c.topk; k < (t + 1) * c.topk; ++k) {
        if (ids[k] >= 0 && ids[k] < rows) sum += x[ids[k] * c.n + i] * weights[k];
      }
      want[t * c.n + i] = c.base ? base[t * c.n + i] + sum : sum;
    }
  }
  EXPECT_EQ(test::download<uint16_t>(y), test::to_bf16(want));
}

INSTANTIATE_TEST_SUITE_P(Shapes, Combine,
                         testing::Values(CombineCase{5, 8, 7168, true}, CombineCase{1, 1, 8, false},
                                         CombineCase{9, 6, 264, true}, CombineCase{3, 32, 4104, false},
                                         CombineCase{2, 9, 16384, true}, CombineCase{0, 8, 128, true}));

std::vector<CombineCase> bench_cases() {
  std::vector<CombineCase> cases;
  for (const int64_t m : token_counts(kCombineTokens)) cases.push_back({m, kTopk, kHidden, true});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(FullSize, Combine, testing::ValuesIn(bench_cases()));

class Embedding : public test::CudaTest {};

TEST_F(Embedding, CopiesRowsAndZeroesPadding) {
  Rng rng(12);
  std::vector<std::pair<int64_t, int64_t>> shapes = {{7, 8}, {7, 8200}};
  for (const int64_t m : token_counts(kCombineTokens)) shapes.emplace_back(m, kHidden);
  for (const auto& [tokens, n] : shapes) {
    const std::vector<uint16_t> table = test::to_bf16(test::gaussians(rng, 50 * n));
    std::vector<int32_t> ids = {0, 49, -1, 7, 50, 7, std::numeric_limits<int32_t>::min()};
    for (int64_t t = 7; t < tokens; ++t) ids.push_back(static_cast<int32_t>(rng.below(52)) - 1);
    ids.resize(tokens);
    const DeviceTensor dt = test::upload(DType::kBF16, {50, n}, table), di = test::upload(DType::kI32, {tokens}, ids);
    const DeviceTensor y = test::poisoned(DType::kBF16, {tokens, n});
    ASSERT_TRUE(embedding(stream(), {.table = dt, .ids = di, .y = y}).ok());
    std::vector<uint16_t> want;
    for (const int32_t id : ids) {
      if (id >= 0 && id < 50) {
        want.insert(want.end(), table.begin() + id * n, table.begin() + (id + 1) * n);
      } else {
        want.insert(want.end(), n, 0);
      }
    }
    EXPECT_EQ(test::download<uint16_t>(y), want);
  }
}

}  // namespace
}  // namespace moesaic::cuda
