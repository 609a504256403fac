// What an AllToAll says and does when a rank stops, arguments are bad or options are illegal.
#include <gtest/gtest.h>

#include <thread>

#include "base/clock.h"
#include "comm/all_to_all.h"
#include "comm/expert_reference_test_util.h"
#include "comm/rank_threads_test_util.h"

namespace moesaic::testing {
namespace {

AllToAllOptions small_options(int num_ranks, int64_t timeout_ms) {
  return {.num_ranks = num_ranks,
          .num_slots = 6,
          .hidden = 8,
          .num_experts_per_tok = 2,
          .max_tokens_normal = 4,
          .max_tokens_low_latency = 2,
          .timeout_ms = timeout_ms};
}

StepTokens small_step(const AllToAllOptions& options, int num_tokens) {
  Rng rng(3);
  StepTokens step;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    step.push_back(random_tokens(options, num_tokens, Routing::kRandom, rng));
  }
  return step;
}

TEST(AllToAllFailure, StoppedRankIsNamedWithinTheDeadline) {
  const AllToAllOptions options = small_options(5, 200);
  auto a2a = *make_thread_all_to_all(options);
  const StepTokens step = small_step(options, 2);
  const int64_t start_ns = real_clock().now_ns();
  const auto results = run_ranks(5, [&](int rank) -> absl::Status {
    std::vector<float> y;
    const int num_steps = rank == 3 ? 2 : 3;  // rank 3 takes part twice, then never again
    for (int i = 0; i < num_steps; ++i) {
      MOESAIC_RETURN_IF_ERROR(run_step(*a2a[rank], options, A2aMode::kNormal, rank, step, &y));
    }
    return absl::OkStatus();
  });
  EXPECT_LT(real_clock().now_ns() - start_ns, 10'000'000'000) << "much longer than the deadline of 200 ms";
  for (int rank = 0; rank < 5; ++rank) {
    if (rank == 3) {
      EXPECT_TRUE(results[rank].ok()) << results[rank];
      continue;
    }
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kDeadlineExceeded) << results[rank];
    EXPECT_TRUE(contains(results[rank], "no sign of rank 3 of 5")) << results[rank];
    EXPECT_TRUE(contains(results[rank], "dispatch")) << results[rank];
    EXPECT_TRUE(contains(results[rank], "200 ms")) << results[rank];
  }
  // The group stays dead, and says so at once.
  std::vector<float> y;
  const int64_t again_ns = real_clock().now_ns();
  for (int rank = 0; rank < 5; ++rank) {
    EXPECT_TRUE(contains(run_step(*a2a[rank], options, A2aMode::kNormal, rank, step, &y), "rank 3"));
  }
  EXPECT_LT(real_clock().now_ns() - again_ns, 150'000'000);
}

TEST(AllToAllFailure, RankThatStopsBeforeCombineIsNamed) {
  const AllToAllOptions options = small_options(3, 200);
  auto a2a = *make_thread_all_to_all(options);
  StepTokens step = small_step(options, 1);
  std::vector<float> y(3 * 8);
  const auto results = run_ranks(3, [&](int rank) -> absl::Status {
    ThreadPool pool(1);
    Stream stream(pool);
    MOESAIC_RETURN_IF_ERROR(
        a2a[rank]->dispatch_send(stream, A2aMode::kLowLatency,
                                 {.x = Tensor(step[rank].x.data(), DType::kF32, {1, 8}),
                                  .topk_ids = Tensor(step[rank].ids.data(), DType::kI32, {1, 2}),
                                  .topk_weights = Tensor(step[rank].weights.data(), DType::kF32, {1, 2})}));
    ExpertRows rows;
    MOESAIC_RETURN_IF_ERROR(a2a[rank]->dispatch_recv(stream, &rows));
    if (rank == 1) return absl::OkStatus();
    MOESAIC_RETURN_IF_ERROR(a2a[rank]->combine_send(stream));
    return a2a[rank]->combine_recv(stream, Tensor(&y[rank * 8], DType::kF32, {1, 8}));
  });
  for (int rank : {0, 2}) {
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kDeadlineExceeded) << results[rank];
    EXPECT_TRUE(contains(results[rank], "no sign of rank 1 of 3")) << results[rank];
    EXPECT_TRUE(contains(results[rank], "combine")) << results[rank];
  }
}

TEST(AllToAllFailure, ASlowRankIsNotAStoppedOne) {
  const AllToAllOptions options = small_options(3, 20'000);
  auto a2a = *make_thread_all_to_all(options);
  const StepTokens step = small_step(options, 2);
  const auto results = run_ranks(3, [&](int rank) {
    std::vector<float> y;
    if (rank == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    return run_step(*a2a[rank], options, A2aMode::kNormal, rank, step, &y);
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

// The wrong call of one rank fails all of them, long before the deadline of 60 s.
void expect_all_fail(const AllToAllOptions& options, const std::function<void(StepTokens*)>& spoil,
                     const std::function<A2aMode(int)>& mode, absl::StatusCode code,
                     const std::vector<std::string>& words) {
  auto a2a = *make_thread_all_to_all(options);
  StepTokens step = small_step(options, 1);
  spoil(&step);
  const int64_t start_ns = real_clock().now_ns();
  const auto results = run_ranks(options.num_ranks, [&](int rank) {
    std::vector<float> y;
    return run_step(*a2a[rank], options, mode(rank), rank, step, &y);
  });
  EXPECT_LT(real_clock().now_ns() - start_ns, 30'000'000'000);
  for (const absl::Status& status : results) {
    EXPECT_EQ(status.code(), code) << status;
    for (const std::string& word : words) EXPECT_TRUE(contains(status, word)) << status << " lacks " << word;
  }
}

TEST(AllToAllFailure, TokensOverTheLimitNameTheLimit) {
  const AllToAllOptions options = small_options(3, 60'000);
  for (const auto& [mode, limit] : {std::pair(A2aMode::kNormal, 4), std::pair(A2aMode::kLowLatency, 2)}) {
    const auto one_too_many = [&, limit = limit](StepTokens* step) {
      Rng rng(1);
      (*step)[1] = random_tokens(options, limit + 1, Routing::kRandom, rng);
    };
    expect_all_fail(options, one_too_many, [mode = mode](int) { return mode; }, absl::StatusCode::kResourceExhausted,
                    {"rank 1 ", str_cat(limit + 1, " tokens"), str_cat("hold ", limit), "max_tokens_per_step"});
  }
}

TEST(AllToAllFailure, IdsOutOfRangeAreNamed) {
  for (const int32_t id : {6, -2, INT32_MAX, INT32_MIN}) {
    expect_all_fail(
        small_options(3, 60'000), [&](StepTokens* step) { (*step)[2].ids[1] = id; },
        [](int) { return A2aMode::kNormal; }, absl::StatusCode::kInternal,
        {"rank 2 ", str_cat("slot ", id), "-1 to 5"});
  }
}

TEST(AllToAllFailure, ModesThatDifferAreNamed) {
  expect_all_fail(
      small_options(4, 60'000), [](StepTokens*) {},
      [](int rank) { return rank == 2 ? A2aMode::kLowLatency : A2aMode::kNormal; }, absl::StatusCode::kInternal,
      {"rank 2", "low_latency", "normal"});
}

TEST(AllToAllFailure, AbortWakesTheOthers) {
  const AllToAllOptions options = small_options(3, 60'000);
  auto a2a = *make_thread_all_to_all(options);
  const StepTokens step = small_step(options, 1);
  const auto results = run_ranks(3, [&](int rank) -> absl::Status {
    std::vector<float> y;
    if (rank != 1) return run_step(*a2a[rank], options, A2aMode::kNormal, rank, step, &y);
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    a2a[1]->abort(absl::DataLossError("the disk is gone"));
    return absl::DataLossError("the disk is gone");
  });
  for (int rank : {0, 2}) {
    EXPECT_EQ(results[rank].code(), absl::StatusCode::kDataLoss) << results[rank];
    EXPECT_TRUE(contains(results[rank], "rank 1: the disk is gone")) << results[rank];
  }
}

TEST(AllToAllFailure, IllegalOptionsAreNamed) {
  const auto expect_refused = [](AllToAllOptions options, std::string_view word) {
    const absl::Status status = make_thread_all_to_all(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << word;
    EXPECT_TRUE(contains(status, word)) << status;
  };
  const auto with = [](auto member, auto value) {
    AllToAllOptions options = small_options(2, 1000);
    options.*member = value;
    return options;
  };
  using O = AllToAllOptions;
  expect_refused(with(&O::num_ranks, 0), "num_ranks is 0");
  expect_refused(with(&O::num_ranks, kMaxRanks + 1), "num_ranks");
  expect_refused(with(&O::num_slots, 0), "num_slots");
  expect_refused(with(&O::hidden, 0), "hidden");
  expect_refused(with(&O::num_experts_per_tok, 65), "num_experts_per_tok");
  expect_refused(with(&O::max_tokens_normal, -1), "max_tokens_normal");
  expect_refused(with(&O::max_tokens_low_latency, -1), "max_tokens_low_latency");
  expect_refused(with(&O::expert_alignment, 0), "expert_alignment");
  expect_refused(with(&O::timeout_ms, 0), "timeout_ms");
  AllToAllOptions huge = small_options(1024, 1000);
  huge.max_tokens_normal = 1 << 24;
  huge.num_slots = 1 << 16;
  expect_refused(huge, "max_tokens_per_step");
}

TEST(AllToAllFailure, MembersMayOutliveEachOther) {
  auto a2a = *make_thread_all_to_all(small_options(3, 100));
  a2a[0].reset();
  a2a[2].reset();
  EXPECT_EQ(a2a[1]->allocated_bytes(), AllToAll::buffer_bytes(small_options(3, 100)));
}

}  // namespace
}  // namespace moesaic::testing
