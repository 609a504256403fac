// The contract of AllToAll against a plain reference that knows nothing of ranks' buffers: which rows arrive where, in
// which order, and the weighted sum, bit for bit.
#include "comm/all_to_all.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/clock.h"
#include "comm/test_ranks.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

enum class Routing { kRandom, kHot, kDuplicates, kNowhere };

struct Batch {  // of one rank
  int num_tokens = 0;
  std::vector<float> x;        // [num_tokens, hidden]
  std::vector<int32_t> ids;    // [num_tokens, topk]
  std::vector<float> weights;  // [num_tokens, topk]
  std::vector<float> carried;  // [num_tokens, hidden]: x as it should arrive
};

// Independent of the kernels: group by group through the scalar e4m3 conversions.
std::vector<float> through_e4m3(std::vector<float> x, int64_t hidden) {
  for (size_t row = 0; row < x.size(); row += hidden) {
    for (int64_t begin = 0; begin < hidden; begin += 128) {
      float* const group = x.data() + row + begin;
      const int64_t count = std::min<int64_t>(hidden - begin, 128);
      float amax = 1e-4f;
      for (int64_t i = 0; i < count; ++i) amax = std::max(amax, std::fabs(group[i]));
      const float scale = amax / 448.0f;
      for (int64_t i = 0; i < count; ++i) group[i] = e4m3_to_f32(f32_to_e4m3(group[i] / scale)) * scale;
    }
  }
  return x;
}

Batch make_batch(Rng& rng, const AllToAllOptions& options, int num_tokens, Routing routing) {
  const int topk = options.num_experts_per_tok;
  Batch batch{.num_tokens = num_tokens};
  batch.x.resize(num_tokens * options.hidden);
  for (float& v : batch.x) v = static_cast<float>(rng.uniform() * 4.0 - 2.0);
  for (int i = 0; i < num_tokens * topk; ++i) {
    auto id = static_cast<int32_t>(rng.below(options.num_slots));
    if (routing == Routing::kHot) id = i % topk == 0 ? options.num_slots - 1 : id;
    if (routing == Routing::kDuplicates && i % topk != 0 && rng.below(2) == 0) id = batch.ids[i - 1];
    if (routing == Routing::kNowhere || (routing == Routing::kRandom && rng.below(6) == 0)) id = -1;
    batch.ids.push_back(id);
    batch.weights.push_back(id == -1 ? kNaN : static_cast<float>(rng.uniform()));
  }
  for (int t = 0; t < num_tokens; ++t) {
    const auto begin = batch.ids.begin() + t * topk;
    if (rng.below(5) == 0) std::fill(begin, begin + topk, -1);
    if (std::any_of(begin, begin + topk, [](int32_t id) { return id != -1; })) continue;
    std::fill_n(batch.x.begin() + t * options.hidden, options.hidden, kNaN);  // padding rows hold anything
    std::fill_n(batch.weights.begin() + t * topk, topk, kNaN);
  }
  batch.carried = options.fp8 ? through_e4m3(batch.x, options.hidden) : batch.x;
  return batch;
}

float expert(int slot, float x) {
  return x * (1.0f + 0.37f * static_cast<float>(slot)) + 0.11f;
}

std::vector<float> reference(const AllToAllOptions& options, const Batch& batch) {
  std::vector<float> y(batch.x.size(), 0.0f);
  for (int t = 0; t < batch.num_tokens; ++t) {
    const float* x = batch.carried.data() + t * options.hidden;
    for (int k = 0; k < options.num_experts_per_tok; ++k) {
      const int32_t slot = batch.ids[t * options.num_experts_per_tok + k];
      if (slot == -1) continue;
      const float weight = batch.weights[t * options.num_experts_per_tok + k];
      for (int64_t i = 0; i < options.hidden; ++i) y[t * options.hidden + i] += weight * expert(slot, x[i]);
    }
  }
  return y;
}

bool sends(const AllToAllOptions& options, const Batch& batch, int token, int slot) {
  const auto begin = batch.ids.begin() + token * options.num_experts_per_tok;
  return std::find(begin, begin + options.num_experts_per_tok, slot) != begin + options.num_experts_per_tok;
}

// Rows of every own slot: begin as the mode says, (source rank, token) order, contents as sent.
void check_rows(const AllToAllOptions& options, A2aMode mode, int rank, const std::vector<Batch>& batches,
                const ExpertRows& rows) {
  const Range own = ParallelLayout{.dp_size = options.num_ranks}.slots(options.num_slots, rank);
  ASSERT_EQ(static_cast<int64_t>(rows.group_begin.size()), own.size());
  ASSERT_EQ(static_cast<int64_t>(rows.group_rows.size()), own.size());
  int64_t previous_end = 0;
  for (int64_t s = 0; s < own.size(); ++s) {
    int64_t row = rows.group_begin[s];
    if (mode == A2aMode::kLowLatency) {
      ASSERT_EQ(row, s * options.num_ranks * options.max_tokens_low_latency);
    } else {
      ASSERT_EQ(row % options.expert_alignment, 0);
      ASSERT_GE(row, previous_end);
      ASSERT_LT(row, previous_end + options.expert_alignment);
    }
    for (const Batch& batch : batches) {
      for (int t = 0; t < batch.num_tokens; ++t) {
        if (!sends(options, batch, t, static_cast<int>(own.begin + s))) continue;
        const float* want = batch.carried.data() + t * options.hidden;
        ASSERT_LT(row, rows.x.dim(0));
        ASSERT_EQ(std::memcmp(rows.x.row<float>(row), want, options.hidden * sizeof(float)), 0) << "row " << row;
        ++row;
      }
    }
    ASSERT_EQ(row - rows.group_begin[s], rows.group_rows[s]);
    previous_end = row;
  }
}

void run_experts(const AllToAllOptions& options, int rank, const ExpertRows& rows) {
  const Range own = ParallelLayout{.dp_size = options.num_ranks}.slots(options.num_slots, rank);
  for (size_t s = 0; s < rows.group_rows.size(); ++s) {
    for (int r = rows.group_begin[s]; r < rows.group_begin[s] + rows.group_rows[s]; ++r) {
      for (int64_t i = 0; i < options.hidden; ++i) {
        rows.x.row<float>(r)[i] = expert(static_cast<int>(own.begin + s), rows.x.row<float>(r)[i]);
      }
    }
  }
}

DispatchArgs args_of(const AllToAllOptions& options, Batch& batch) {
  const int64_t n = batch.num_tokens, topk = options.num_experts_per_tok;
  return {.x = Tensor(batch.x.data(), DType::kF32, {n, options.hidden}),
          .topk_ids = Tensor(batch.ids.data(), DType::kI32, {n, topk}),
          .topk_weights = Tensor(batch.weights.data(), DType::kF32, {n, topk})};
}

struct Step {
  A2aMode mode;
  std::vector<Batch> batches;             // of every rank
  std::vector<std::vector<float>> wants;  // the result of every rank
};

std::vector<Step> make_steps(const AllToAllOptions& options, std::span<const A2aMode> modes, int num_steps,
                             uint64_t seed) {
  Rng rng(seed);
  std::vector<Step> steps(num_steps);
  for (int i = 0; i < num_steps; ++i) {
    Step& step = steps[i];
    step.mode = modes[rng.below(modes.size())];
    const int limit = step.mode == A2aMode::kNormal ? options.max_tokens_normal : options.max_tokens_low_latency;
    const auto routing = static_cast<Routing>(i < 4 ? i : rng.below(4));
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      const auto drawn = static_cast<int>(rng.below(limit + 1));
      const int num_tokens = i == 1 ? limit : rng.below(4) == 0 ? 0 : drawn;
      step.batches.push_back(make_batch(rng, options, num_tokens, routing));
      step.wants.push_back(reference(options, step.batches.back()));
    }
  }
  return steps;
}

// One step of one rank, which sleeps in one of `odds` places.
void run_step(AllToAll& a2a, Stream& stream, const AllToAllOptions& options, int rank, const Step& step, Rng& delays,
              uint64_t odds) {
  Batch mine = step.batches[rank];
  const auto pause = [&] { sleep_sometimes(delays, odds, 300); };
  pause();
  ASSERT_TRUE(a2a.dispatch_send(stream, step.mode, args_of(options, mine)).ok());
  std::fill(mine.ids.begin(), mine.ids.end(), 12345);  // only x has to stay
  std::fill(mine.weights.begin(), mine.weights.end(), kNaN);
  pause();
  ExpertRows rows;
  ASSERT_TRUE(a2a.dispatch_recv(stream, &rows).ok());
  check_rows(options, step.mode, rank, step.batches, rows);
  if (::testing::Test::HasFatalFailure()) return;
  run_experts(options, rank, rows);
  pause();
  ASSERT_TRUE(a2a.combine_send(stream).ok());
  pause();
  const std::vector<float>& want = step.wants[rank];
  std::vector<float> y(want.size(), kNaN);
  ASSERT_TRUE(a2a.combine_recv(stream, Tensor(y.data(), DType::kF32, {mine.num_tokens, options.hidden})).ok());
  ASSERT_TRUE(want.empty() || std::memcmp(y.data(), want.data(), y.size() * sizeof(float)) == 0);
}

void run_contract(AllToAllOptions options, std::span<const A2aMode> modes, int num_steps, uint64_t seed, uint64_t odds,
                  int num_threads = 1) {
  SCOPED_TRACE(
      str_cat("seed ", seed, ", ranks ", options.num_ranks, ", slots ", options.num_slots, ", fp8 ", options.fp8));
  options.timeout_ms = 300'000;  // sanitizers on a busy machine are slow
  const std::vector<Step> steps = make_steps(options, modes, num_steps, seed);
  auto members = make_thread_all_to_all(options);
  ASSERT_TRUE(members.ok()) << members.status();
  run_ranks(options.num_ranks, [&](int rank) {
    ThreadPool pool(num_threads);
    Stream stream(pool);
    Rng delays(seed + 1 + rank);
    for (const Step& step : steps) {
      run_step(*(*members)[rank], stream, options, rank, step, delays, odds);
      if (::testing::Test::HasFatalFailure()) return (*members)[rank]->abort(absl::InternalError("test failed"));
    }
  });
}

class AllToAllContract : public ::testing::TestWithParam<std::tuple<int, A2aMode, bool>> {};

TEST_P(AllToAllContract, MatchesThePlainReference) {
  const auto [num_ranks, mode, fp8] = GetParam();
  const std::vector<int> slot_counts = num_ranks < 32 ? std::vector{1, 5, 16, 32} : std::vector{5, 32, 40};
  for (int num_slots : slot_counts) {  // also not divisible, and fewer slots than ranks
    AllToAllOptions options{.num_ranks = num_ranks,
                            .num_slots = num_slots,
                            .hidden = num_slots == 5 ? 7 : 140,
                            .num_experts_per_tok = 4,
                            .max_tokens_normal = 9,
                            .max_tokens_low_latency = 3,
                            .expert_alignment = num_slots == 16 ? 8 : 1,
                            .fp8 = fp8};
    run_contract(options, {&mode, 1}, 8, 1000 + num_slots, 50);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(All, AllToAllContract,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5, 8, 32),
                                            ::testing::Values(A2aMode::kNormal, A2aMode::kLowLatency),
                                            ::testing::Bool()));

// Fast ranks must not overwrite what slow ones still read: both modes mixed, ranks sleep at random.
TEST(AllToAll, ThousandStepsWithSleepyRanks) {
  const AllToAllOptions options{.num_ranks = 4,
                                .num_slots = 10,
                                .hidden = 24,
                                .num_experts_per_tok = 3,
                                .max_tokens_normal = 6,
                                .max_tokens_low_latency = 2};
  const A2aMode modes[] = {A2aMode::kNormal, A2aMode::kLowLatency};
  run_contract(options, modes, 1000, 77, 8);
}

// Large enough for several workers a rank.
TEST(AllToAll, SeveralThreadsARank) {
  for (bool fp8 : {false, true}) {
    const AllToAllOptions options{.num_ranks = 2,
                                  .num_slots = 6,
                                  .hidden = 512,
                                  .num_experts_per_tok = 4,
                                  .max_tokens_normal = 200,
                                  .max_tokens_low_latency = 200,
                                  .expert_alignment = 32,
                                  .fp8 = fp8};
    const A2aMode modes[] = {A2aMode::kNormal, A2aMode::kLowLatency};
    run_contract(options, modes, 6, 5, 1000, 3);
  }
}

// The same 24 tokens spread over any number of ranks give the same bits.
TEST(AllToAll, SameBitsForEveryNumberOfRanks) {
  constexpr int kTokens = 24;
  AllToAllOptions options{.num_slots = 8, .hidden = 96, .num_experts_per_tok = 4, .max_tokens_normal = kTokens};
  Rng rng(99);
  const Batch all = make_batch(rng, options, kTokens, Routing::kRandom);
  std::vector<float> first;
  for (int num_ranks : {1, 2, 3, 5, 8, 32}) {
    options.num_ranks = num_ranks;
    auto members = make_thread_all_to_all(options);
    ASSERT_TRUE(members.ok());
    std::vector<float> y(all.x.size(), kNaN);
    run_ranks(num_ranks, [&](int rank) {
      ThreadPool pool(1);
      Stream stream(pool);
      const int begin = kTokens * rank / num_ranks, end = kTokens * (rank + 1) / num_ranks;
      Batch copy = all;
      copy.num_tokens = kTokens;
      const DispatchArgs args = args_of(options, copy);
      AllToAll& a2a = *(*members)[rank];
      ExpertRows rows;
      ASSERT_TRUE(a2a.dispatch_send(stream, A2aMode::kNormal,
                                    {.x = args.x.rows(begin, end),
                                     .topk_ids = args.topk_ids.rows(begin, end),
                                     .topk_weights = args.topk_weights.rows(begin, end)})
                      .ok());
      ASSERT_TRUE(a2a.dispatch_recv(stream, &rows).ok());
      run_experts(options, rank, rows);
      ASSERT_TRUE(a2a.combine_send(stream).ok());
      const Tensor out(y.data(), DType::kF32, {kTokens, options.hidden});
      ASSERT_TRUE(a2a.combine_recv(stream, out.rows(begin, end)).ok());
    });
    if (first.empty()) first = y;
    EXPECT_EQ(std::memcmp(first.data(), y.data(), y.size() * sizeof(float)), 0) << num_ranks << " ranks";
  }
}

TEST(AllToAll, AStoppedRankIsNamedAndTheOthersFail) {
  const AllToAllOptions options{.num_ranks = 5,
                                .num_slots = 8,
                                .hidden = 16,
                                .num_experts_per_tok = 2,
                                .max_tokens_normal = 4,
                                .max_tokens_low_latency = 4,
                                .timeout_ms = 2000};
  for (bool in_combine : {false, true}) {
    auto members = make_thread_all_to_all(options);
    ASSERT_TRUE(members.ok());
    Rng rng(11);
    const Batch any = make_batch(rng, options, 3, Routing::kRandom);
    std::vector<Batch> batches(options.num_ranks, any);  // outlive the stopped rank, which others may still read
    run_ranks(options.num_ranks, [&](int rank) {
      ThreadPool pool(1);
      Stream stream(pool);
      Batch& batch = batches[rank];
      AllToAll& a2a = *(*members)[rank];
      ExpertRows rows;
      if (rank == 3 && !in_combine) return;
      ASSERT_TRUE(a2a.dispatch_send(stream, A2aMode::kLowLatency, args_of(options, batch)).ok());
      absl::Status status = a2a.dispatch_recv(stream, &rows);
      if (in_combine) {
        ASSERT_TRUE(status.ok()) << status;
        if (rank == 3) return;
        ASSERT_TRUE(a2a.combine_send(stream).ok());
        status = a2a.combine_recv(stream, args_of(options, batch).x);
      }
      EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
      EXPECT_THAT(str_cat(status.message()),
                  HasSubstr(str_cat("no sign of rank 3 of 5 within 2000 ms in ", in_combine ? "combine" : "dispatch")));
      const int64_t start_ns = real_clock().now_ns();
      EXPECT_TRUE(absl::IsDeadlineExceeded(a2a.dispatch_send(stream, A2aMode::kNormal, args_of(options, batch))));
      EXPECT_TRUE(absl::IsDeadlineExceeded(a2a.dispatch_recv(stream, &rows)));
      EXPECT_LT(real_clock().now_ns() - start_ns, 1'500'000'000);
    });
  }
}

// Errors of one rank reach the others at once, long before the deadline.
void expect_group_error(const AllToAllOptions& options, int num_tokens_of_rank_1, A2aMode mode_of_rank_1, int32_t id,
                        const std::string& text) {
  auto members = make_thread_all_to_all(options);
  ASSERT_TRUE(members.ok());
  run_ranks(options.num_ranks, [&](int rank) {
    ThreadPool pool(1);
    Stream stream(pool);
    Rng rng(rank);
    Batch batch = make_batch(rng, options, rank == 1 ? num_tokens_of_rank_1 : 2, Routing::kNowhere);
    batch.ids[0] = rank == 1 ? id : -1;
    AllToAll& a2a = *(*members)[rank];
    const A2aMode mode = rank == 1 ? mode_of_rank_1 : A2aMode::kLowLatency;
    absl::Status status = a2a.dispatch_send(stream, mode, args_of(options, batch));
    ExpertRows rows;
    if (status.ok()) status = a2a.dispatch_recv(stream, &rows);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(str_cat(status.message()), HasSubstr(text)) << "rank " << rank;
  });
}

TEST(AllToAll, BadCallsOfOneRankFailAllAtOnce) {
  const AllToAllOptions options{.num_ranks = 3,
                                .num_slots = 4,
                                .hidden = 8,
                                .num_experts_per_tok = 2,
                                .max_tokens_normal = 32,
                                .max_tokens_low_latency = 16};
  expect_group_error(options, 17, A2aMode::kLowLatency, -1, "rank 1 dispatches 17 tokens, the buffers of low_latency");
  expect_group_error(options, 33, A2aMode::kNormal, -1, "raise max_tokens_per_step");
  expect_group_error(options, 2, A2aMode::kNormal, -1, "rank 1 dispatches in normal mode, rank 0 in low_latency");
  expect_group_error(options, 2, A2aMode::kLowLatency, 4, "rank 1 routes token 0 to slot 4; expected -1 to 3");
  expect_group_error(options, 2, A2aMode::kLowLatency, -2, "slot -2");
}

TEST(AllToAll, HalvesOutOfOrderAreABug) {
  auto members =
      make_thread_all_to_all({.num_slots = 1, .hidden = 1, .num_experts_per_tok = 1, .max_tokens_normal = 1});
  ASSERT_TRUE(members.ok());
  ThreadPool pool(1);
  Stream stream(pool);
  EXPECT_DEATH((void)(*members)[0]->combine_send(stream), "check failed");
}

TEST(AllToAll, BufferBytesIsWhatIsAllocated) {
  for (int num_ranks : {1, 3, 8, 40}) {
    for (int num_slots : {1, 8, 33}) {
      for (bool fp8 : {false, true}) {
        const AllToAllOptions options{.num_ranks = num_ranks,
                                      .num_slots = num_slots,
                                      .hidden = 200,
                                      .num_experts_per_tok = 8,
                                      .max_tokens_normal = 50,
                                      .max_tokens_low_latency = 5,
                                      .expert_alignment = 16,
                                      .fp8 = fp8};
        auto members = make_thread_all_to_all(options);
        ASSERT_TRUE(members.ok());
        for (const auto& member : *members) EXPECT_EQ(member->allocated_bytes(), AllToAll::buffer_bytes(options));
        // No less than the rows themselves: all tokens of all ranks to this rank's slots.
        const int64_t local = (num_slots + num_ranks - 1) / num_ranks;
        EXPECT_GE(AllToAll::buffer_bytes(options), num_ranks * 50 * std::min<int64_t>(8, local) * 200 * 4);
        EXPECT_EQ(AllToAll::capacity_rows(options, A2aMode::kLowLatency), local * num_ranks * 5);
        EXPECT_EQ(AllToAll::capacity_rows(options, A2aMode::kNormal) % 16, 0);
      }
    }
  }
}

TEST(AllToAll, IllegalOptionsAreNamed) {
  const AllToAllOptions legal{.num_slots = 8, .hidden = 8, .num_experts_per_tok = 2, .max_tokens_normal = 8};
  EXPECT_TRUE(AllToAll::validate(legal).ok());
  const auto expect_error = [&](auto change, const std::string& text) {
    AllToAllOptions options = legal;
    change(options);
    const auto members = make_thread_all_to_all(options);
    ASSERT_FALSE(members.ok());
    EXPECT_TRUE(absl::IsInvalidArgument(members.status()));
    EXPECT_THAT(str_cat(members.status().message()), HasSubstr(text));
  };
  expect_error([](AllToAllOptions& o) { o.num_ranks = 0; }, "num_ranks is 0; expected 1 to 1024");
  expect_error([](AllToAllOptions& o) { o.num_slots = 0; }, "num_slots");
  expect_error([](AllToAllOptions& o) { o.hidden = -4; }, "hidden");
  expect_error([](AllToAllOptions& o) { o.num_experts_per_tok = 65; }, "num_experts_per_tok is 65; expected 1 to 64");
  expect_error([](AllToAllOptions& o) { o.max_tokens_normal = -1; }, "max_tokens_normal");
  expect_error([](AllToAllOptions& o) { o.expert_alignment = 0; }, "expert_alignment");
  expect_error([](AllToAllOptions& o) { o.timeout_ms = 0; }, "timeout_ms");
  expect_error(
      [](AllToAllOptions& o) {
        o.num_ranks = 1024;
        o.max_tokens_normal = 1 << 24;
      },
      "Lower max_tokens_per_step");
}

}  // namespace
}  // namespace moesaic
