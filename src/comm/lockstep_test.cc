#include "comm/lockstep.h"

#include <gtest/gtest.h>

#include "comm/rank_threads_test_util.h"

namespace moesaic::testing {
namespace {

std::vector<absl::StatusOr<LockstepDecision>> exchange(const std::vector<LockstepRecord>& records) {
  const int size = static_cast<int>(records.size());
  auto members = make_thread_communicators(size, {});
  std::vector<absl::StatusOr<LockstepDecision>> decisions(size, absl::UnknownError("not run"));
  run_ranks(size, [&](int rank) {
    decisions[rank] = lockstep(*members[rank], records[rank]);
    return absl::OkStatus();
  });
  return decisions;
}

void expect_disagreement(const std::vector<LockstepRecord>& records, std::string_view message) {
  for (const auto& decision : exchange(records)) {
    EXPECT_EQ(decision.status().code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(contains(decision.status(), message)) << decision.status();
  }
}

TEST(Lockstep, DecidesFromAllRecords) {
  std::vector<LockstepRecord> records(8, {.step_id = 5, .expert_map_version = 2, .num_decode_tokens = 3});
  records[6].num_decode_tokens = 0;
  for (const auto& decision : exchange(records)) {
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->a2a_mode, A2aMode::kLowLatency);
    EXPECT_EQ(decision->max_tokens, 3);
    EXPECT_EQ(decision->total_tokens, 21);
    EXPECT_FALSE(decision->stop);
  }
  records[4].num_prefill_tokens = 100;
  records[7].stop = 1;
  for (const auto& decision : exchange(records)) {
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->a2a_mode, A2aMode::kNormal);
    EXPECT_EQ(decision->max_tokens, 103);
    EXPECT_EQ(decision->total_tokens, 121);
    EXPECT_TRUE(decision->stop);
  }
}

TEST(Lockstep, OneRankAlone) {
  const auto decisions = exchange({{.num_prefill_tokens = 2147483647, .num_decode_tokens = 2147483647}});
  ASSERT_TRUE(decisions[0].ok());
  EXPECT_EQ(decisions[0]->total_tokens, int64_t{2} * 2147483647);
}

TEST(Lockstep, NamesRankAndField) {
  const std::vector<LockstepRecord> same(5, {.step_id = 8, .expert_map_version = 1, .draft_depth = 1});
  auto records = same;
  records[3].step_id = 7;
  expect_disagreement(records, "rank 3 is at step 7, rank 0 at step 8 (field step_id)");
  records = same;
  records[0].step_id = 9;  // rank 0 may be the odd one
  expect_disagreement(records, "rank 0 is at step 9, rank 1 at step 8 (field step_id)");
  records = same;
  records[4].expert_map_version = 2;
  expect_disagreement(records, "rank 4 is at expert map version 2, rank 0 at expert map version 1");
  records = same;
  records[2].draft_depth = 0;
  expect_disagreement(records, "rank 2 is at draft depth 0, rank 0 at draft depth 1 (field draft_depth)");
  records = same;
  records[1].num_prefill_tokens = -1;
  expect_disagreement(records, "rank 1 announces -1 prefill");
}

TEST(Lockstep, ASilentRankIsNamed) {
  auto members = make_thread_communicators(3, {.timeout_ms = 100});
  members[1]->stop_for_test();
  const auto results = run_ranks(3, [&](int rank) { return lockstep(*members[rank], {}).status(); });
  for (int rank : {0, 2}) {
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(contains(results[rank], "no sign of rank 1 of 3")) << results[rank];
  }
}

}  // namespace
}  // namespace moesaic::testing
