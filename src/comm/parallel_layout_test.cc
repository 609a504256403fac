#include "comm/parallel_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace moesaic {
namespace {

using ::testing::HasSubstr;

std::string message_of(const absl::Status& status) {
  return str_cat(status.message());
}

void expect_layout(int ep, int dp, int tp, int want_dp, int want_tp) {
  const auto layout = ParallelLayout::make(ep, dp, tp);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(*layout, (ParallelLayout{.dp_size = want_dp, .tp_size = want_tp})) << ep << " " << dp << " " << tp;
  EXPECT_EQ(layout->world_size(), want_dp * want_tp);
  EXPECT_EQ(layout->ep_size(), want_dp * want_tp);
}

TEST(ParallelLayout, MissingSizesFollow) {
  expect_layout(0, 0, 0, 1, 1);
  expect_layout(3, 0, 0, 3, 1);
  expect_layout(144, 0, 0, 144, 1);
  expect_layout(0, 4, 0, 4, 1);
  expect_layout(0, 0, 4, 1, 4);
  expect_layout(8, 0, 2, 4, 2);
  expect_layout(8, 2, 0, 2, 4);
  expect_layout(0, 2, 4, 2, 4);
  expect_layout(8, 2, 4, 2, 4);
}

TEST(ParallelLayout, ContradictionsNameTheNearestLegalSizes) {
  const auto error = [](int ep, int dp, int tp) {
    const auto layout = ParallelLayout::make(ep, dp, tp);
    EXPECT_FALSE(layout.ok()) << ep << " " << dp << " " << tp;
    return layout.ok() ? std::string() : message_of(layout.status());
  };
  EXPECT_THAT(error(6, 0, 4), HasSubstr("Nearest legal: ep_size 4 or 8, or tp_size 3 or 6"));
  EXPECT_THAT(error(2, 0, 4), HasSubstr("Nearest legal: ep_size 4, or tp_size 2"));
  EXPECT_THAT(error(7, 3, 0), HasSubstr("Nearest legal: ep_size 6 or 9, or dp_size 1 or 7"));
  EXPECT_THAT(error(8, 2, 2), HasSubstr("Nearest legal: ep_size 4, or dp_size 4, or tp_size 4"));
  EXPECT_THAT(error(7, 2, 2), HasSubstr("Nearest legal: ep_size 4"));
  EXPECT_THAT(error(-1, 0, 0), HasSubstr("ep_size is -1"));
  EXPECT_THAT(error(0, 0, 5000), HasSubstr("tp_size is 5000; expected 1 to 1024"));
  EXPECT_THAT(error(0, 1024, 8), HasSubstr("Nearest legal: dp_size 128"));
}

// Whatever a message proposes must itself be accepted: every legal triple near a refused one is found by brute force.
TEST(ParallelLayout, AcceptsExactlyTheConsistentTriples) {
  for (int ep = 0; ep <= 12; ++ep) {
    for (int dp = 0; dp <= 12; ++dp) {
      for (int tp = 0; tp <= 12; ++tp) {
        bool legal = false;
        for (int d = 1; d <= 144; ++d) {
          for (int t = 1; t <= 144; ++t) {
            legal = legal || ((ep == 0 || d * t == ep) && (dp == 0 || d == dp) && (tp == 0 || t == tp));
          }
        }
        EXPECT_EQ(ParallelLayout::make(ep, dp, tp).ok(), legal) << ep << " " << dp << " " << tp;
      }
    }
  }
}

TEST(ParallelLayout, RanksAndHeads) {
  const ParallelLayout layout{.dp_size = 2, .tp_size = 4};
  EXPECT_EQ(layout.dp_rank(5), 1);
  EXPECT_EQ(layout.tp_rank(5), 1);
  EXPECT_EQ(layout.heads(16, 3), (Range{12, 16}));
  EXPECT_TRUE(layout.validate_heads(16).ok());
  const absl::Status refused = layout.validate_heads(6);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(message_of(refused), HasSubstr("Nearest legal: tp_size 3 or 6"));
  EXPECT_FALSE(layout.validate_heads(0).ok());
  EXPECT_EQ(layout.to_string(), "EP8 = DP2 x TP4");
}

// Every slot has exactly one owner, for any number of experts and ranks (more ranks than experts included).
TEST(ParallelLayout, SlotsCoverEveryExpertOnce) {
  for (int experts : {1, 2, 7, 8, 31, 32, 256, 257}) {
    for (int ep = 1; ep <= 40; ++ep) {
      const ParallelLayout layout = *ParallelLayout::make(ep, 0, 0);
      int64_t next = 0;
      for (int rank = 0; rank < ep; ++rank) {
        const Range slots = layout.slots(experts, rank);
        EXPECT_EQ(slots.begin, next);
        EXPECT_GE(slots.size(), 0);
        EXPECT_LE(slots.size(), layout.slots_per_rank(experts));
        next = slots.end;
      }
      EXPECT_EQ(next, experts) << ep;
    }
  }
}

TEST(ParallelLayout, EightExpertsOnThreeRanks) {
  const ParallelLayout layout = *ParallelLayout::make(3, 0, 0);
  EXPECT_EQ(layout.slots(8, 2), (Range{6, 8}));
  EXPECT_EQ(layout.slots(9, 2), (Range{6, 9}));  // one redundant slot
}

// Every token meets every column of the hidden layer once, however many tokens there are.
TEST(ParallelLayout, DenseShardsCoverEverythingOnce) {
  constexpr int64_t kIntermediate = 48;
  for (const int tp_size : {1, 2, 4, 8}) {
    for (int dense = 1; dense <= tp_size; dense *= 2) {
      const auto layout = ParallelLayout::make(0, 1, tp_size, dense);
      ASSERT_TRUE(layout.ok()) << layout.status();
      for (int64_t num_tokens = 0; num_tokens < 20; ++num_tokens) {
        int64_t area = 0, tokens = 0;
        std::vector<int> met(num_tokens * kIntermediate);
        for (int tp_rank = 0; tp_rank < tp_size; ++tp_rank) {
          const Range rows = layout->dense_tokens(num_tokens, tp_rank);
          const Range columns = layout->dense_columns(kIntermediate, tp_rank);
          for (int64_t t = rows.begin; t < rows.end; ++t) {
            for (int64_t c = columns.begin; c < columns.end; ++c) ++met[t * kIntermediate + c];
          }
          area += rows.size() * columns.size();
          tokens += layout->ffn_tokens(num_tokens, tp_rank).size();
        }
        EXPECT_EQ(tokens, num_tokens);
        EXPECT_EQ(area, num_tokens * kIntermediate);
        for (const int times : met) ASSERT_EQ(times, 1);
      }
    }
  }
  EXPECT_FALSE(ParallelLayout::make(0, 1, 4, 3).ok());
  EXPECT_FALSE(ParallelLayout::make(0, 1, 4, 0).ok());
  EXPECT_FALSE(ParallelLayout::make(0, 1, 1, 2).ok());
  EXPECT_FALSE((ParallelLayout{.tp_size = 4, .moe_dense_tp_size = 4}.validate_dense(6).ok()));
}

}  // namespace
}  // namespace moesaic
