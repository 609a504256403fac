// Rows sorted by expert, against a double loop.
#include "kernels/cuda/fused/expert_rows.h"

#include <algorithm>

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

struct RowsCase {
  int64_t tokens, topk, experts;
  int popular;  // choices of expert 1 of ten
};

class ExpertRows : public test::CudaTest, public testing::WithParamInterface<RowsCase> {};

TEST_P(ExpertRows, AreADoubleLoops) {
  const RowsCase c = GetParam();
  Rng rng(21);
  const int64_t choices = c.tokens * c.topk, rows = most_expert_rows(choices, c.experts) + 128;
  std::vector<int32_t> ids(choices), counts(c.experts);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(rng.below(c.experts + c.experts / 8 + 1));
    if (static_cast<int>(rng.below(10)) < c.popular) id = 1;
    if (id < c.experts) {
      ++counts[id];
    } else if (rng.below(2) == 0) {
      id = -1;
    }
  }
  std::vector<int32_t> begins, row_experts(rows, -1), row_tokens(rows, -1), choice_rows(choices, -1);
  int64_t row = 0;
  for (int64_t e = 0; e < c.experts; ++e) {
    begins.push_back(static_cast<int32_t>(row));
    for (int64_t i = 0; i < choices; ++i) {
      if (ids[i] != e) continue;
      row_experts[row] = static_cast<int32_t>(e), row_tokens[row] = static_cast<int32_t>(i / c.topk);
      choice_rows[i] = static_cast<int32_t>(row++);
    }
    row = (row + 127) / 128 * 128;
  }
  const DeviceTensor dids = test::upload(DType::kI32, {c.tokens, c.topk}, ids);
  const DeviceTensor dcounts = test::upload(DType::kI32, {c.experts}, counts);
  const DeviceTensor got_begins = test::poisoned(DType::kI32, {c.experts});
  const DeviceTensor got_experts = test::poisoned(DType::kI32, {rows}),
                     got_tokens = test::poisoned(DType::kI32, {rows});
  const DeviceTensor got_choices = test::poisoned(DType::kI32, {c.tokens, c.topk});
  const absl::Status status = expert_rows(stream(), {.topk_ids = dids,
                                                     .expert_counts = dcounts,
                                                     .group_begin = got_begins,
                                                     .row_experts = got_experts,
                                                     .row_tokens = got_tokens,
                                                     .choice_rows = got_choices});
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(test::download<int32_t>(got_begins), begins);
  EXPECT_EQ(test::download<int32_t>(got_experts), row_experts);
  EXPECT_EQ(test::download<int32_t>(got_tokens), row_tokens);
  EXPECT_EQ(test::download<int32_t>(got_choices), choice_rows);
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExpertRows,
                         testing::Values(RowsCase{4096, 8, 256, 0}, RowsCase{4099, 8, 256, 5}, RowsCase{9001, 8, 32, 1},
                                         RowsCase{128, 8, 256, 0}, RowsCase{1, 8, 256, 0}, RowsCase{7, 2, 8, 2},
                                         RowsCase{700, 6, 1024, 1}, RowsCase{5, 1, 2, 10}, RowsCase{0, 8, 16, 0}));

std::vector<RowsCase> bench_cases() {
  std::vector<RowsCase> cases;
  for (const int64_t m : token_counts(kExpertRowsTokens)) cases.push_back({m, kTopk, kExperts, 0});
  return cases;
}
INSTANTIATE_TEST_SUITE_P(FullSize, ExpertRows, testing::ValuesIn(bench_cases()));

}  // namespace
}  // namespace moesaic::cuda
