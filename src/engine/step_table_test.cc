#include "engine/step_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/step_measure.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

StepTable sample() {
  return {.device = "a machine",
          .model = "tiny",
          .layout = "EP1",
          .num_threads = 2,
          .decode_tokens = {0, 1, 4},
          .prefill_tokens = {0, 100},
          .step = {.base_s = {0.0, 1.0, 0.5, 1.5, 1.1, 2.1},
                   .decode_pair_s = {0.0, 1e-3, 4e-3},
                   .decode_reuse = 0.25,
                   .prefill_pair_s = 1e-5,
                   .prefill_cached_s = 1e-4},
          .draft = {.base_s = {0.0, 0.1, 0.05, 0.15, 0.11, 0.21}, .decode_pair_s = {0.0, 1e-4, 4e-4}},
          .host_step_s = 0.01,
          .host_logit_row_s = 0.001};
}

TEST(StepTable, InterpolatesAndExtrapolates) {
  const StepTable table = sample();
  GroupWork decode;
  for (int i = 0; i < 2; ++i) decode.add_decode(1, 10);
  EXPECT_NEAR(table.seconds(table.step, decode), 0.7 + 20 * 2e-3, 1e-12);
  EXPECT_NEAR(table.seconds(table.draft, decode), 0.07 + 20 * 2e-4, 1e-12);
  GroupWork many;
  for (int i = 0; i < 7; ++i) many.add_decode(1, 10);  // beyond 4, on as between 1 and 4
  EXPECT_NEAR(table.seconds(table.step, many), 1.7 + 70 * 4e-3, 1e-12);
  GroupWork drafted;
  drafted.add_decode(4, 13);  // queries that meet 10, 11, 12 and 13 rows, of which a quarter is read once
  EXPECT_NEAR(table.seconds(table.step, drafted), 1.1 + (0.75 * 46 + 0.25 * 13) * 4e-3, 1e-12);
  GroupWork mixed = decode;
  mixed.add_prefill(50, 30);
  const double pairs = 50 * 30 + 50 * 51 / 2;
  EXPECT_NEAR(table.seconds(table.step, mixed), 0.7 + 0.5 + 0.04 + pairs * 1e-5 + 30 * 1e-4, 1e-12);
  EXPECT_EQ(table.seconds(table.step, GroupWork()), 0.0);
}

TEST(StepTable, ReadsWhatItWrites) {
  StepTable table = sample();
  for (const bool has_draft : {true, false}) {
    if (!has_draft) table.draft = {};
    const auto read = StepTable::parse(table.to_json());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->to_json(), table.to_json());
    EXPECT_EQ(read->has_draft(), has_draft);
    EXPECT_EQ(read->step.base_s, table.step.base_s);
    EXPECT_EQ(read->draft.decode_pair_s, table.draft.decode_pair_s);
    EXPECT_EQ(read->host_logit_row_s, table.host_logit_row_s);
  }
}

TEST(StepTable, RefusesWhatIsBroken) {
  const std::string good = sample().to_json();
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string json = good;
    const size_t at = json.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    json.replace(at, from.size(), to);
    return std::string(StepTable::parse(json).status().message());
  };
  EXPECT_THAT(error_with("\"decode_tokens\":[0,1,4]", "\"decode_tokens\":[0,4,1]"), HasSubstr("'decode_tokens'"));
  EXPECT_THAT(error_with("\"decode_tokens\":[0,1,4]", "\"decode_tokens\":[0,1]"),
              HasSubstr("step: field 'base_s': expected 4"));
  EXPECT_THAT(error_with("\"prefill_cached_s\":0.0001", "\"prefill_cached_s\":-1"), HasSubstr("'prefill_cached_s'"));
  EXPECT_THAT(error_with("\"decode_pair_s\":[0.0,0.001,", "\"decode_pair_s\":[0.001,"),
              HasSubstr("'decode_pair_s': expected 3"));
  EXPECT_THAT(error_with("\"device\":\"a machine\"", "\"device\":3"), HasSubstr("'device'"));
  EXPECT_THAT(error_with("\"draft\":{", "\"draft\":{\"base_s\":3},\"x\":{"), HasSubstr("draft: field 'base_s'"));
  EXPECT_THAT(error_with("\"step\":", "\"stop\":"), HasSubstr("'step'"));
  EXPECT_THAT(error_with("\"decode_reuse\":0.25", "\"decode_reuse\":1.25"), HasSubstr("'decode_reuse'"));
  EXPECT_FALSE(StepTable::parse("[]").ok());
  EXPECT_FALSE(StepTable::parse(good.substr(0, good.size() / 2)).ok());
}

// Steps of a known price on a clock of their own; some are disturbed.
class PricedExecutor final : public Executor {
 public:
  PricedExecutor(ManualClock& clock, bool has_draft) : clock_(clock), has_draft_(has_draft) {}
  static int64_t price(const GroupWork& work) {
    return 1'000'000 + 50'000 * work.num_decode_tokens + 20'000 * work.num_prefill_tokens +
           static_cast<int64_t>(6 * work.decode_pairs) + 4 * work.decode_kv_tokens +
           static_cast<int64_t>(2 * work.prefill_pairs) + 100 * (work.prefill_kv_tokens - work.num_prefill_tokens);
  }
  absl::Status execute(const StepPlan& plan, StepLogits*) override {
    GroupWork work;
    for (const PlannedChunk& chunk : plan.groups.back().chunks) {
      chunk.is_prefill ? work.add_prefill(chunk.num_tokens(), chunk.kv_begin)
                       : work.add_decode(chunk.num_tokens(), chunk.kv_end());
    }
    most_tokens_ = std::max(most_tokens_, work.num_tokens());
    most_seqs_ = std::max(most_seqs_, work.num_decode_seqs);
    clock_.advance_ns(price(work) + (++num_steps_ % 3 == 0 ? 700'000 : 0));
    return absl::OkStatus();
  }
  int max_draft_depth() const override { return has_draft_ ? 3 : 0; }
  absl::Status draft(const StepPlan&, const DraftPlan& drafts, DraftTokens*) override {
    clock_.advance_ns(200'000 + 10'000 * std::ssize(drafts.groups.back().next_ids));
    return absl::OkStatus();
  }
  int num_steps() const { return num_steps_; }
  int64_t most_tokens() const { return most_tokens_; }
  int64_t most_seqs() const { return most_seqs_; }

 private:
  ManualClock& clock_;
  const bool has_draft_;
  int num_steps_ = 0;
  int64_t most_tokens_ = 0, most_seqs_ = 0;
};

EngineOptions measured_engine() {
  return {.dp_size = 2,
          .context_length = 4096,
          .vocab_size = 100,
          .num_kv_blocks = 64,
          .max_running_requests = 24,
          .max_tokens_per_step = 300,
          .max_draft_depth = 3};
}

// What was measured is the price, also between and beyond the points, and of sequences with drafts.
TEST(MeasureSteps, FindsThePrice) {
  for (const bool has_draft : {true, false}) {
    ManualClock clock;
    PricedExecutor executor(clock, has_draft);
    const EngineOptions engine = measured_engine();
    constexpr int64_t kNoBound = std::numeric_limits<int64_t>::max();
    const auto table =
        measure_steps(executor, engine, {.prompts = true, .max_decode_tokens = kNoBound, .budget_ns = kNoBound}, clock);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_EQ(table->has_draft(), has_draft);
    EXPECT_LE(executor.most_tokens(), engine.max_tokens_per_step);
    EXPECT_LE(executor.most_seqs(), engine.max_running_requests);
    for (const int num_seqs : {0, 1, 3, 24, 40}) {
      for (const int query_len : {1, 2, 4}) {
        for (const int num_prompt : {0, 16, 50, 276}) {
          if (num_seqs + num_prompt == 0 || (num_seqs == 0 && num_prompt < 16)) continue;
          GroupWork work;
          for (int i = 0; i < num_seqs; ++i) work.add_decode(query_len, 100 + 10 * i);
          if (num_prompt > 0) work.add_prefill(num_prompt, 200);
          const auto price = static_cast<double>(PricedExecutor::price(work));
          EXPECT_NEAR(table->seconds(table->step, work) * 1e9 / price, 1.0, 0.01)
              << num_seqs << " x " << query_len << " and a prompt of " << num_prompt;
          if (!has_draft) continue;
          const auto draft_ns = 200'000 + 10'000 * static_cast<double>(work.num_tokens());
          EXPECT_NEAR(table->seconds(table->draft, work) * 1e9 / draft_ns, 1.0, 0.01);
        }
      }
    }
  }
}

// The engine's start: within the budget, or the first points alone.
TEST(MeasureSteps, KeepsTheBudget) {
  for (const int64_t budget_ns : {int64_t{1}, int64_t{40'000'000}, int64_t{1'000'000'000}}) {
    ManualClock clock;
    PricedExecutor executor(clock, /*has_draft=*/true);
    const auto table = measure_steps(executor, measured_engine(), {.budget_ns = budget_ns}, clock);
    ASSERT_TRUE(table.ok()) << table.status();
    EXPECT_LT(clock.now_ns(), budget_ns + 25'000'000);
    EXPECT_EQ(table->prefill_tokens.size(), 1u);
    EXPECT_LE(table->decode_tokens.back(), 32);
    if (budget_ns == 1) continue;
    GroupWork work;
    for (int i = 0; i < 24; ++i) work.add_decode(4, 500);
    const double price = static_cast<double>(PricedExecutor::price(work)) * 1e-9;
    EXPECT_NEAR(table->seconds(table->step, work) / price, 1.0, 0.1) << budget_ns;
  }
}

TEST(MeasureSteps, HandsOnTheError) {
  class Broken final : public Executor {
    absl::Status execute(const StepPlan&, StepLogits*) override { return absl::InternalError("rank 3 is gone"); }
  } broken;
  const auto table = measure_steps(broken, measured_engine(), StepMeasureOptions(), real_clock());
  EXPECT_EQ(table.status(), absl::InternalError("rank 3 is gone"));
}

}  // namespace
}  // namespace moesaic
