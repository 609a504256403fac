// The contract of all_to_all.h against a plain reference, bit for bit.
#include "comm/all_to_all.h"

#include <gtest/gtest.h>

#include <cstring>

#include "comm/expert_reference_test_util.h"
#include "comm/rank_threads_test_util.h"

namespace moesaic::testing {
namespace {

constexpr int kMaxTokens = 12;

AllToAllOptions make_options(int num_ranks, bool fp8) {
  return {.num_ranks = num_ranks,
          .num_slots = 13,  // divides by none of the group sizes; fewer than the largest
          .hidden = 200,    // the last FP8 group is short
          .num_experts_per_tok = 4,
          .max_tokens_normal = kMaxTokens,
          .max_tokens_low_latency = kMaxTokens,
          .expert_alignment = 8,
          .fp8 = fp8};
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

// One step on all ranks; returns their outputs.
std::vector<std::vector<float>> run_all(std::vector<std::unique_ptr<AllToAll>>& a2a, const AllToAllOptions& options,
                                        A2aMode mode, const StepTokens& step) {
  std::vector<std::vector<float>> y(options.num_ranks);
  const auto results =
      run_ranks(options.num_ranks, [&](int rank) { return run_step(*a2a[rank], options, mode, rank, step, &y[rank]); });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
  return y;
}

struct Case {
  int num_ranks;
  A2aMode mode;
  bool fp8;
};

class Contract : public ::testing::TestWithParam<Case> {
 protected:
  Contract() : options(make_options(GetParam().num_ranks, GetParam().fp8)), a2a(*make_thread_all_to_all(options)) {}

  void check(const StepTokens& step, const std::string& what) {
    const auto y = run_all(a2a, options, GetParam().mode, step);
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      EXPECT_TRUE(same_bits(y[rank], expected_output(options, step[rank]))) << what << ", rank " << rank;
    }
  }

  const AllToAllOptions options;
  std::vector<std::unique_ptr<AllToAll>> a2a;
  Rng rng{20240917};
};

TEST_P(Contract, EveryRoutingWithUnequalCounts) {
  const std::pair<Routing, const char*> routings[] = {{Routing::kRandom, "random"},
                                                      {Routing::kDuplicates, "duplicates"},
                                                      {Routing::kHot, "hot"},
                                                      {Routing::kHoles, "holes"},
                                                      {Routing::kNowhere, "nowhere"}};
  for (const auto& [routing, name] : routings) {
    StepTokens step;
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      step.push_back(random_tokens(options, static_cast<int>(rng.below(kMaxTokens + 1)), routing, rng));
    }
    check(step, name);
  }
}

TEST_P(Contract, FullRanksAllToOneExpert) {
  StepTokens step;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    step.push_back(random_tokens(options, kMaxTokens, Routing::kHot, rng));
  }
  check(step, "hot and full");
}

TEST_P(Contract, FullRanksEverywhere) {
  StepTokens step;
  for (int rank = 0; rank < options.num_ranks; ++rank) {
    step.push_back(random_tokens(options, kMaxTokens, Routing::kRandom, rng));
  }
  check(step, "full");
}

TEST_P(Contract, OneRankHasAllTokensOrNobodyHasAny) {
  for (int busy : {-1, 0, options.num_ranks - 1}) {
    StepTokens step;
    for (int rank = 0; rank < options.num_ranks; ++rank) {
      step.push_back(random_tokens(options, rank == busy ? kMaxTokens : 0, Routing::kRandom, rng));
    }
    check(step, "busy rank " + std::to_string(busy));
  }
}

TEST_P(Contract, AllocatesWhatItSays) {
  for (const auto& member : a2a) EXPECT_EQ(member->allocated_bytes(), AllToAll::buffer_bytes(options));
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (int num_ranks : {1, 2, 3, 5, 8, 32}) {
    for (A2aMode mode : {A2aMode::kNormal, A2aMode::kLowLatency}) {
      for (bool fp8 : {false, true}) cases.push_back({num_ranks, mode, fp8});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, Contract, ::testing::ValuesIn(all_cases()), [](const auto& info) {
  return "Ranks" + std::to_string(info.param.num_ranks) +
         (info.param.mode == A2aMode::kNormal ? "Normal" : "LowLatency") + (info.param.fp8 ? "Fp8" : "F32");
});

// 24 tokens spread over any number of ranks and in either mode give the same bits.
TEST(AllToAll, SameBitsForEveryGroupSizeAndMode) {
  for (bool fp8 : {false, true}) {
    std::vector<float> first;
    for (int num_ranks : {1, 2, 3, 8, 24}) {
      AllToAllOptions options = make_options(num_ranks, fp8);
      options.max_tokens_normal = options.max_tokens_low_latency = 24;
      auto a2a = *make_thread_all_to_all(options);
      for (A2aMode mode : {A2aMode::kNormal, A2aMode::kLowLatency}) {
        Rng rng(7);
        StepTokens step;
        for (int rank = 0; rank < num_ranks; ++rank) {
          RankTokens mine;
          for (int i = 0; i < 24 / num_ranks; ++i) {
            const RankTokens one = random_tokens(options, 1, Routing::kRandom, rng);
            mine.x.insert(mine.x.end(), one.x.begin(), one.x.end());
            mine.ids.insert(mine.ids.end(), one.ids.begin(), one.ids.end());
            mine.weights.insert(mine.weights.end(), one.weights.begin(), one.weights.end());
            ++mine.num_tokens;
          }
          step.push_back(mine);
        }
        std::vector<float> all;
        for (const auto& y : run_all(a2a, options, mode, step)) all.insert(all.end(), y.begin(), y.end());
        if (first.empty()) first = all;
        EXPECT_TRUE(same_bits(all, first)) << num_ranks << " ranks, fp8 " << fp8;
      }
    }
  }
}

TEST(AllToAll, RowsWithAStride) {
  const AllToAllOptions options = make_options(1, false);
  auto a2a = *make_thread_all_to_all(options);
  Rng rng(11);
  const RankTokens tokens = random_tokens(options, 5, Routing::kRandom, rng);
  const int64_t stride = options.hidden + 24;
  std::vector<float> wide(5 * stride, 9.0f), y(5 * stride, 3.0f);
  for (int t = 0; t < 5; ++t) {
    std::memcpy(&wide[t * stride], &tokens.x[t * options.hidden], options.hidden * sizeof(float));
  }
  ThreadPool pool(2);
  Stream stream(pool);
  std::vector<int32_t> ids = tokens.ids;
  std::vector<float> weights = tokens.weights;
  ASSERT_TRUE(a2a[0]
                  ->dispatch_send(stream, A2aMode::kNormal,
                                  {.x = Tensor::strided(wide.data(), DType::kF32, 5, options.hidden, stride),
                                   .topk_ids = Tensor(ids.data(), DType::kI32, {5, 4}),
                                   .topk_weights = Tensor(weights.data(), DType::kF32, {5, 4})})
                  .ok());
  ExpertRows rows;
  ASSERT_TRUE(a2a[0]->dispatch_recv(stream, &rows).ok());
  for (int slot = 0; slot < options.num_slots; ++slot) {
    for (int64_t row = rows.group_begin[slot]; row < rows.group_begin[slot] + rows.group_rows[slot]; ++row) {
      for (int64_t i = 0; i < options.hidden; ++i) {
        rows.y.row<float>(row)[i] = expert_value(slot, rows.x.row<float>(row)[i]);
      }
    }
  }
  ASSERT_TRUE(a2a[0]->combine_send(stream).ok());
  ASSERT_TRUE(a2a[0]->combine_recv(stream, Tensor::strided(y.data(), DType::kF32, 5, options.hidden, stride)).ok());
  const std::vector<float> expected = expected_output(options, tokens);
  for (int t = 0; t < 5; ++t) {
    EXPECT_EQ(std::memcmp(&y[t * stride], &expected[t * options.hidden], options.hidden * sizeof(float)), 0) << t;
    EXPECT_EQ(y[t * stride + options.hidden], 3.0f) << "wrote beyond the row";
  }
}

// Large enough that pools take part in quantising, fetching and combining.
TEST(AllToAll, PoolsOfSeveralThreads) {
  for (bool fp8 : {false, true}) {
    AllToAllOptions options = make_options(2, fp8);
    options.hidden = 1024;
    options.max_tokens_normal = 96;
    auto a2a = *make_thread_all_to_all(options);
    Rng rng(5);
    const StepTokens step = {random_tokens(options, 96, Routing::kHoles, rng),
                             random_tokens(options, 61, Routing::kRandom, rng)};
    const auto results = run_all(a2a, options, A2aMode::kNormal, step);
    for (int rank = 0; rank < 2; ++rank) EXPECT_TRUE(same_bits(results[rank], expected_output(options, step[rank])));
  }
}

// Ranks fall behind each other at every half; buffers are reused all the time.
TEST(AllToAll, ThousandRandomStepsWithDelays) {
  constexpr uint64_t kSeed = 99;
  constexpr int kSteps = 1000, kRanks = 4;
  AllToAllOptions options = make_options(kRanks, false);
  options.hidden = 24;
  auto a2a = *make_thread_all_to_all(options);
  std::vector<StepTokens> steps(kSteps);
  std::vector<A2aMode> modes(kSteps);
  Rng rng(kSeed);
  for (int i = 0; i < kSteps; ++i) {
    modes[i] = rng.below(2) == 0 ? A2aMode::kNormal : A2aMode::kLowLatency;
    for (int rank = 0; rank < kRanks; ++rank) {
      steps[i].push_back(
          random_tokens(options, static_cast<int>(rng.below(kMaxTokens + 1)), static_cast<Routing>(rng.below(5)), rng));
    }
  }
  const auto results = run_ranks(kRanks, [&](int rank) -> absl::Status {
    Rng delays(kSeed + 1 + rank);
    std::vector<float> y;
    for (int i = 0; i < kSteps; ++i) {
      random_delay(delays, 8);
      MOESAIC_RETURN_IF_ERROR(run_step(*a2a[rank], options, modes[i], rank, steps[i], &y));
      if (!same_bits(y, expected_output(options, steps[i][rank]))) {
        return absl::InternalError(str_cat("step ", i, " differs; seed ", kSeed));
      }
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : results) EXPECT_TRUE(status.ok()) << status;
}

}  // namespace
}  // namespace moesaic::testing
