#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/clock.h"
#include "comm/lockstep.h"
#include "comm/test_ranks.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

using Members = std::vector<std::unique_ptr<Communicator>>;

// A value that tells rank, round and index apart and whose sums round, so that their order shows.
float value_of(int rank, int round, int64_t i) {
  return static_cast<float>((rank * 37 + round * 11 + i * 7) % 1009) * 0.1f + static_cast<float>(rank) * 1e4f;
}

void check_all_gather(Communicator& comm, int round) {
  const size_t size = 1 + round % 17;
  std::vector<std::byte> record(size, static_cast<std::byte>(comm.rank() * 3 + round));
  std::vector<std::byte> all(size * comm.size());
  ASSERT_TRUE(comm.all_gather(record, all).ok());
  for (size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i], static_cast<std::byte>(static_cast<int>(i / size) * 3 + round)) << "round " << round;
  }
}

void check_all_reduce(Communicator& comm, int round, int64_t count) {
  std::vector<float> x(count);
  for (int64_t i = 0; i < count; ++i) x[i] = value_of(comm.rank(), round, i);
  ASSERT_TRUE(comm.all_reduce_sum(Tensor(x.data(), DType::kF32, {1, count})).ok());
  const int64_t stride = 1 + count / 500;
  for (int64_t i = 0; i < count; i += stride) {
    float sum = value_of(0, round, i);
    for (int r = 1; r < comm.size(); ++r) sum += value_of(r, round, i);
    ASSERT_EQ(x[i], sum) << "round " << round << " element " << i << " of " << count;
  }
}

void check_all_gather_rows(Communicator& comm, int round, int64_t m, int64_t n) {
  std::vector<float> x(m * n), y(m * n * comm.size());
  for (int64_t i = 0; i < m * n; ++i) x[i] = value_of(comm.rank(), round, i);
  ASSERT_TRUE(
      comm.all_gather_rows(Tensor(x.data(), DType::kF32, {m, n}), Tensor(y.data(), DType::kF32, {m * comm.size(), n}))
          .ok());
  for (int64_t i = 0; i < m * n; ++i) x[i] = -1.0f;  // the input may change at once
  const int64_t stride = 1 + m * n / 500;
  for (int r = 0; r < comm.size(); ++r) {
    for (int64_t i = 0; i < m * n; i += stride) ASSERT_EQ(y[r * m * n + i], value_of(r, round, i)) << "round " << round;
  }
}

class CommunicatorSizes : public ::testing::TestWithParam<int> {};

TEST_P(CommunicatorSizes, RandomOperationsWithRandomDelays) {
  constexpr uint64_t kSeed = 20240607;
  SCOPED_TRACE(str_cat("seed ", kSeed));
  const int size = GetParam();
  const int num_rounds = size > 8 ? 40 : 200;
  Members members = make_thread_communicators(size, {.timeout_ms = 300'000});  // sanitizers are slow
  run_ranks(size, [&](int rank) {
    Communicator& comm = *members[rank];
    ASSERT_EQ(comm.rank(), rank);
    ASSERT_EQ(comm.size(), size);
    Rng common(kSeed);          // the same on all ranks: what to do
    Rng own(kSeed + 1 + rank);  // how long to sleep
    for (int round = 0; round < num_rounds; ++round) {
      sleep_sometimes(own, 4, 300);
      const uint64_t op = common.below(6);
      const auto count = static_cast<int64_t>(common.below(300));
      if (op == 0) {
        ASSERT_TRUE(comm.barrier().ok());
      }
      if (op == 1) check_all_gather(comm, round);
      if (op == 2) check_all_reduce(comm, round, count);
      if (op == 3) check_all_reduce(comm, round, 20'000 + count);
      if (op == 4) check_all_gather_rows(comm, round, count % 5, 1 + count / 5);
      if (op == 5) check_all_gather_rows(comm, round, 4, 5000 + count);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, CommunicatorSizes, ::testing::Values(1, 2, 3, 5, 8, 32));

TEST(Communicator, BarrierHoldsEverybody) {
  constexpr int kSize = 8;
  Members members = make_thread_communicators(kSize, {});
  std::atomic<int> arrived{0};
  run_ranks(kSize, [&](int rank) {
    Rng rng(rank);
    for (int round = 1; round <= 200; ++round) {
      sleep_sometimes(rng, 8, 200);
      arrived.fetch_add(1, std::memory_order_relaxed);
      ASSERT_TRUE(members[rank]->barrier().ok());
      ASSERT_GE(arrived.load(std::memory_order_relaxed), round * kSize);
    }
  });
}

TEST(Communicator, TimeoutNamesTheSilentRanksAndKillsTheGroup) {
  constexpr int kSize = 6;
  Members members = make_thread_communicators(kSize, {.timeout_ms = 2000});
  run_ranks(kSize, [&](int rank) {
    ASSERT_TRUE(members[rank]->barrier().ok());
    if (rank == 2 || rank == 5) {
      members[rank]->stop_for_test();
      const absl::Status stopped = members[rank]->barrier();
      EXPECT_TRUE(absl::IsCancelled(stopped)) << stopped;
      return;
    }
    const int64_t start_ns = real_clock().now_ns();
    const absl::Status status = members[rank]->barrier();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(str_cat(status.message()), HasSubstr("rank 2, 5 of 6 within 2000 ms in barrier"));
    EXPECT_LT(real_clock().now_ns() - start_ns, 10'000'000'000);
    const int64_t again_ns = real_clock().now_ns();
    float x = 1.0f;
    EXPECT_TRUE(absl::IsDeadlineExceeded(members[rank]->all_reduce_sum(Tensor(&x, DType::kF32, {1}))));
    EXPECT_LT(real_clock().now_ns() - again_ns, 1'500'000'000) << "a dead group must fail at once";
  });
}

TEST(Communicator, AbortWakesEverybodyAtOnce) {
  constexpr int kSize = 4;
  Members members = make_thread_communicators(kSize, {.timeout_ms = 60'000});
  const int64_t start_ns = real_clock().now_ns();
  run_ranks(kSize, [&](int rank) {
    if (rank == 1) {
      sleep_us(20'000);
      members[rank]->abort(absl::InternalError("out of pencils"));
      return;
    }
    const absl::Status status = members[rank]->barrier();
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(str_cat(status.message()), HasSubstr("rank 1: out of pencils"));
  });
  EXPECT_LT(real_clock().now_ns() - start_ns, 20'000'000'000);
}

TEST(Communicator, DifferentOperationsAreNamedOnEveryRank) {
  constexpr int kSize = 3;
  Members members = make_thread_communicators(kSize, {});
  run_ranks(kSize, [&](int rank) {
    float x[2] = {1.0f, 2.0f};
    const absl::Status status =
        rank == 1 ? members[rank]->barrier() : members[rank]->all_reduce_sum(Tensor(x, DType::kF32, {2}));
    EXPECT_TRUE(absl::IsInternal(status)) << status;
    EXPECT_THAT(str_cat(status.message()), HasSubstr("rank 1 called barrier with 0 bytes, rank 0 all_reduce_sum"));
  });
}

TEST(Communicator, MembersOutliveEachOther) {
  Members members = make_thread_communicators(2, {.timeout_ms = 50});
  members[0].reset();
  const absl::Status status = members[1]->barrier();
  EXPECT_THAT(str_cat(status.message()), HasSubstr("no sign of rank 0"));
}

std::vector<absl::StatusOr<LockstepDecision>> lockstep_of(const std::vector<LockstepRecord>& records) {
  const int size = static_cast<int>(records.size());
  Members members = make_thread_communicators(size, {});
  std::vector<absl::StatusOr<LockstepDecision>> decisions(size, absl::UnknownError(""));
  run_ranks(size, [&](int rank) {
    decisions[rank] = lockstep(*members[rank], records[rank], /*max_low_latency_tokens=*/64);
  });
  return decisions;
}

TEST(Lockstep, AllRanksDecideTheSame) {
  std::vector<LockstepRecord> records(5);
  for (int r = 0; r < 5; ++r) records[r] = {.step_id = 7, .num_decode_tokens = r, .draft_depth = 1};
  for (const auto& decision : lockstep_of(records)) {
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->a2a_mode, A2aMode::kLowLatency);
    EXPECT_EQ(decision->max_tokens, 4);
    EXPECT_EQ(decision->total_tokens, 10);
    EXPECT_FALSE(decision->stop);
  }
  records[4].num_decode_tokens = 65;  // more than the low-latency buffers take
  for (const auto& decision : lockstep_of(records)) EXPECT_EQ(decision->a2a_mode, A2aMode::kNormal);
  records[4].num_decode_tokens = 4;
  records[2].num_prefill_tokens = 100;
  records[3].stop = 1;
  for (const auto& decision : lockstep_of(records)) {
    ASSERT_TRUE(decision.ok()) << decision.status();
    EXPECT_EQ(decision->a2a_mode, A2aMode::kNormal);
    EXPECT_EQ(decision->max_tokens, 102);
    EXPECT_EQ(decision->total_tokens, 110);
    EXPECT_TRUE(decision->stop);
  }
}

TEST(Lockstep, TheOddRankAndItsFieldAreNamedOnEveryRank) {
  const auto expect_message = [](const std::vector<LockstepRecord>& records, const std::string& text) {
    for (const auto& decision : lockstep_of(records)) {
      ASSERT_FALSE(decision.ok());
      EXPECT_TRUE(absl::IsInternal(decision.status()));
      EXPECT_THAT(str_cat(decision.status().message()), HasSubstr(text));
    }
  };
  std::vector<LockstepRecord> records(4, {.step_id = 8, .expert_map_version = 3});
  records[3].step_id = 7;
  expect_message(records, "rank 3 is at step 7, rank 0 at step 8 (field step_id)");
  records[3].step_id = 8;
  records[0].expert_map_version = 2;
  expect_message(records, "rank 0 is at expert map version 2, rank 1 at expert map version 3");
  records[0].expert_map_version = 3;
  records[1].draft_depth = 2;
  expect_message(records, "(field draft_depth)");
  records[1].draft_depth = 0;
  records[2].num_decode_tokens = -1;
  expect_message(records, "rank 2 announces 0 prefill and -1 decode tokens");
}

}  // namespace
}  // namespace moesaic
