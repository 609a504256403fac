// Every operation of Communicator, in groups of 1 to 32 ranks that fall behind each other, against plain sums.
#include "comm/communicator.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>

#include "base/clock.h"
#include "comm/rank_threads_test_util.h"

namespace moesaic::testing {
namespace {

float value_of(int rank, int64_t i) {
  return static_cast<float>((rank * 7919 + i * 104729) % 10007) * 1e-3f - 4.0f;
}

class Operations : public ::testing::TestWithParam<int> {
 protected:
  // Runs body(communicator, delays) on every rank and expects success.
  void run(const std::function<absl::Status(Communicator&, Rng&)>& body) {
    auto members = make_thread_communicators(GetParam(), {});
    const auto results = run_ranks(GetParam(), [&](int rank) {
      Rng delays(1000 + rank);
      EXPECT_EQ(members[rank]->rank(), rank);
      EXPECT_EQ(members[rank]->size(), GetParam());
      return body(*members[rank], delays);
    });
    for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  }
};

TEST_P(Operations, BarrierHoldsEverybodyBack) {
  std::atomic<int> arrived{0};
  run([&](Communicator& comm, Rng& delays) -> absl::Status {
    for (int i = 1; i <= 50; ++i) {
      random_delay(delays, 8);
      arrived.fetch_add(1);
      MOESAIC_RETURN_IF_ERROR(comm.barrier());
      const int seen = arrived.load();
      EXPECT_GE(seen, i * comm.size());
      EXPECT_LE(seen, (i + 1) * comm.size());
    }
    return absl::OkStatus();
  });
}

TEST_P(Operations, AllGatherOfRecords) {
  run([](Communicator& comm, Rng& delays) -> absl::Status {
    for (const size_t bytes : {size_t{0}, size_t{1}, size_t{24}, Communicator::kMaxRecordBytes}) {
      for (int round = 0; round < 10; ++round) {
        random_delay(delays, 8);
        const auto byte_at = [&](int rank, size_t i) { return std::byte((rank * 31 + round * 7 + i) & 0xff); };
        std::vector<std::byte> mine(bytes), all(bytes * comm.size());
        for (size_t i = 0; i < bytes; ++i) mine[i] = byte_at(comm.rank(), i);
        MOESAIC_RETURN_IF_ERROR(comm.all_gather(mine, all));
        for (size_t i = 0; i < all.size(); ++i) {
          EXPECT_EQ(all[i], byte_at(static_cast<int>(i / bytes), i % bytes)) << i;
        }
      }
    }
    return absl::OkStatus();
  });
}

// Sizes on both sides of the limit between copies in staging and reading each other's tensors.
TEST_P(Operations, AllReduceAddsInRankOrder) {
  run([](Communicator& comm, Rng& delays) -> absl::Status {
    for (const int64_t count : {0, 1, 15, 16, 17, 1000, 16384, 16385, 20011}) {
      for (int round = 0; round < 3; ++round) {
        random_delay(delays, 4);
        std::vector<float> x(count);
        for (int64_t i = 0; i < count; ++i) x[i] = value_of(comm.rank(), i + round);
        MOESAIC_RETURN_IF_ERROR(comm.all_reduce_sum(Tensor(x.data(), DType::kF32, {count})));
        int64_t num_wrong = 0;
        for (int64_t i = 0; i < count; ++i) {
          float sum = value_of(0, i + round);
          for (int rank = 1; rank < comm.size(); ++rank) sum += value_of(rank, i + round);
          num_wrong += std::memcmp(&sum, &x[i], sizeof sum) != 0;
        }
        EXPECT_EQ(num_wrong, 0) << count << " numbers";
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(Operations, AllGatherRows) {
  run([](Communicator& comm, Rng& delays) -> absl::Status {
    for (const int64_t rows : {0, 1, 3, 200}) {
      for (int round = 0; round < 3; ++round) {
        random_delay(delays, 4);
        constexpr int64_t kCols = 96;  // 200 rows no longer fit in staging
        std::vector<float> x(rows * kCols), y(rows * kCols * comm.size());
        for (size_t i = 0; i < x.size(); ++i) x[i] = value_of(comm.rank(), i + round);
        MOESAIC_RETURN_IF_ERROR(comm.all_gather_rows(Tensor(x.data(), DType::kF32, {rows, kCols}),
                                                     Tensor(y.data(), DType::kF32, {rows * comm.size(), kCols})));
        int64_t num_wrong = 0;
        for (size_t i = 0; i < y.size(); ++i) {
          num_wrong += y[i] != value_of(static_cast<int>(i / x.size()), i % x.size() + round);
        }
        EXPECT_EQ(num_wrong, 0) << rows << " rows";
      }
    }
    return absl::OkStatus();
  });
}

TEST_P(Operations, MixedInOneGroup) {
  run([](Communicator& comm, Rng& delays) -> absl::Status {
    Rng choice(5);  // the same on every rank
    std::vector<float> x(17000);
    for (int i = 0; i < 60; ++i) {
      random_delay(delays, 8);
      const uint64_t op = choice.below(3);
      if (op == 0) MOESAIC_RETURN_IF_ERROR(comm.barrier());
      const int64_t count = op == 1 ? 100 : 17000;
      if (op == 0) continue;
      std::fill(x.begin(), x.end(), static_cast<float>(comm.rank() + i));
      MOESAIC_RETURN_IF_ERROR(comm.all_reduce_sum(Tensor(x.data(), DType::kF32, {count})));
      const int n = comm.size();
      const float expected = static_cast<float>(n * (n - 1) / 2 + n * i);
      EXPECT_EQ(x[0], expected);
      EXPECT_EQ(x[count - 1], expected);
    }
    return absl::OkStatus();
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Operations, ::testing::Values(1, 2, 3, 4, 7, 8, 16, 32));

TEST(CommunicatorFailure, SilentRanksAreNamed) {
  for (const int size : {2, 5, 32}) {
    auto members = make_thread_communicators(size, {.timeout_ms = 150});
    members[size - 1]->stop_for_test();
    if (size > 2) members[1]->stop_for_test();
    const int64_t start_ns = real_clock().now_ns();
    const auto results = run_ranks(size, [&](int rank) { return members[rank]->barrier(); });
    EXPECT_LT(real_clock().now_ns() - start_ns, 10'000'000'000);
    const std::string names = size > 2 ? str_cat("rank 1, ", size - 1, " of ") : str_cat("rank ", size - 1, " of ");
    for (int rank = 0; rank < size; ++rank) {
      EXPECT_FALSE(results[rank].ok());
      if (rank == size - 1 || (size > 2 && rank == 1)) continue;
      EXPECT_EQ(results[rank].code(), absl::StatusCode::kDeadlineExceeded) << results[rank];
      EXPECT_TRUE(contains(results[rank], names)) << results[rank];
      EXPECT_TRUE(contains(results[rank], "barrier")) << results[rank];
    }
    EXPECT_EQ(members[0]->barrier().code(), absl::StatusCode::kDeadlineExceeded);  // dead for good
  }
}

TEST(CommunicatorFailure, ManySilentRanksAreNamedInPart) {
  auto members = make_thread_communicators(32, {.timeout_ms = 50});
  const absl::Status status = members[0]->barrier();
  EXPECT_TRUE(contains(status, "rank 1, 2, 3, ")) << status;
  EXPECT_TRUE(contains(status, "and 15 more")) << status;
}

TEST(CommunicatorFailure, DisagreementIsNamed) {
  auto members = make_thread_communicators(3, {});
  float one[4] = {};
  const auto results = run_ranks(3, [&](int rank) {
    if (rank != 2) return members[rank]->barrier();
    return members[rank]->all_reduce_sum(Tensor(one, DType::kF32, {4}));
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_TRUE(contains(status, "rank 2 called all_reduce_sum with 16 bytes, rank 0 barrier")) << status;
  }
}

TEST(CommunicatorFailure, AbortReachesAllRanks) {
  auto members = make_thread_communicators(4, {.timeout_ms = 60'000});
  const auto results = run_ranks(4, [&](int rank) {
    if (rank != 2) return members[rank]->barrier();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    members[2]->abort(absl::AbortedError("out of pages"));
    return members[2]->barrier();
  });
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), absl::StatusCode::kAborted) << status;
    EXPECT_TRUE(contains(status, "rank 2: out of pages")) << status;
  }
}

}  // namespace
}  // namespace moesaic::testing
