#include "comm/parallel_layout.h"

#include <gtest/gtest.h>

#include "comm/rank_threads_test_util.h"

namespace moesaic::testing {
namespace {

TEST(ParallelLayout, MissingSizesFollow) {
  const auto expect = [](int ep, int dp, int tp, ParallelLayout layout) {
    const auto made = ParallelLayout::make(ep, dp, tp);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(*made, layout) << ep << " " << dp << " " << tp;
  };
  expect(0, 0, 0, {1, 1});
  expect(8, 0, 0, {8, 1});
  expect(8, 0, 2, {4, 2});
  expect(8, 2, 0, {2, 4});
  expect(8, 4, 2, {4, 2});
  expect(0, 4, 2, {4, 2});
  expect(0, 3, 0, {3, 1});
  expect(0, 0, 3, {1, 3});
  expect(kMaxRanks, 0, 0, {kMaxRanks, 1});
}

TEST(ParallelLayout, ContradictionsNameTheNearestLegalSizes) {
  const auto expect = [](int ep, int dp, int tp, std::vector<std::string> words) {
    const absl::Status status = ParallelLayout::make(ep, dp, tp).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << ep << " " << dp << " " << tp;
    for (const std::string& word : words) EXPECT_TRUE(contains(status, word)) << status << " lacks " << word;
  };
  expect(6, 0, 4, {"ep_size 6", "tp_size 4", "ep_size 4 or 8", "tp_size 3 or 6"});
  expect(2, 5, 0, {"ep_size 5", "dp_size 2"});
  expect(8, 3, 2, {"ep_size 8", "dp_size 3", "tp_size 2", "= 6", "dp_size 4"});
  expect(-1, 0, 0, {"ep_size is -1"});
  expect(0, kMaxRanks + 1, 0, {"dp_size", std::to_string(kMaxRanks)});
  expect(0, 64, 64, {"4096 ranks"});
  expect(0, INT32_MAX, INT32_MAX, {"dp_size"});
}

// Over all small sizes: ranks are numbered without gaps, slots and heads are dealt out exactly once.
TEST(ParallelLayout, Arithmetic) {
  for (int dp = 1; dp <= 6; ++dp) {
    for (int tp = 1; tp <= 6; ++tp) {
      const ParallelLayout layout = *ParallelLayout::make(0, dp, tp);
      ASSERT_EQ(layout.world_size(), dp * tp);
      ASSERT_EQ(layout.ep_size(), dp * tp);
      int rank = 0;
      for (int d = 0; d < dp; ++d) {
        for (int t = 0; t < tp; ++t, ++rank) {
          ASSERT_EQ(layout.dp_rank(rank), d);
          ASSERT_EQ(layout.tp_rank(rank), t);
        }
      }
      for (int64_t slots : {1, 2, 7, 32, 33}) {
        int64_t next = 0;
        for (int r = 0; r < layout.world_size(); ++r) {
          const Range range = layout.slots(slots, r);
          ASSERT_EQ(range.begin, next) << slots << " slots, rank " << r;
          ASSERT_LE(range.size(), layout.slots_per_rank(slots));
          for (int64_t slot = range.begin; slot < range.end; ++slot) ASSERT_EQ(slot / layout.slots_per_rank(slots), r);
          next = range.end;
        }
        ASSERT_EQ(next, slots);
      }
      for (int64_t heads = 1; heads <= 64; ++heads) {
        ASSERT_EQ(layout.validate_heads(heads).ok(), heads % tp == 0);
        if (heads % tp != 0) continue;
        for (int t = 0; t < tp; ++t) {
          ASSERT_EQ(layout.heads(heads, t), (Range{t * heads / tp, (t + 1) * heads / tp}));
        }
      }
    }
  }
}

TEST(ParallelLayout, HeadsThatDoNotSplit) {
  const absl::Status status = ParallelLayout::make(0, 0, 3)->validate_heads(128);
  EXPECT_TRUE(contains(status, "128 attention heads")) << status;
  EXPECT_TRUE(contains(status, "tp_size 2 or 4")) << status;
  EXPECT_FALSE(ParallelLayout::make(0, 0, 3)->validate_heads(0).ok());
}

TEST(ParallelLayout, Text) {
  EXPECT_EQ(ParallelLayout::make(8, 0, 2)->to_string(), "EP8 = DP4 x TP2");
}

}  // namespace
}  // namespace moesaic::testing
