#include "plan/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

#include "base/bounded_queue.h"
#include "base/rng.h"
#include "plan/sim_executor.h"

namespace moesaic {
namespace {

constexpr int64_t kMs = 1'000'000;

SimOptions small_options() {
  return {.engine = {.dp_size = 1,
                     .context_length = 4096,
                     .num_kv_blocks = 4096,
                     .kv_block_tokens = 64,
                     .max_running_requests = 256,
                     .max_queued_requests = 1'000'000,
                     .max_tokens_per_step = 2048}};
}

TableStepTimer linear_timer(const StepTable::Linear& seconds) {
  return TableStepTimer(StepTable::linear(seconds));
}

SimResult run(const SimOptions& options, const std::vector<TrafficRequest>& traffic, const StepTimer& timer) {
  absl::StatusOr<SimResult> result = simulate(options, traffic, timer);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : SimResult();
}

TEST(Simulator, TwoRequestsByHand) {
  const TableStepTimer timer = linear_timer({.step = 10e-3, .decode_token = 1e-3, .prefill_token = 0.1e-3});
  // Prompt of 100: step of 20 ms. The second comes at 5 ms: its prompt of 50 runs beside the first one's second token.
  const SimResult result = run(small_options(),
                               {{.due_ns = 0, .num_input = 100, .num_output = 3},
                                {.due_ns = 5 * kMs, .num_input = 50, .num_output = 2},
                                {.due_ns = 900 * kMs, .num_input = 10, .num_output = 1}},
                               timer);
  ASSERT_EQ(result.records.size(), 3u);
  EXPECT_EQ(result.records[0].first_ns, 20 * kMs);
  EXPECT_EQ(result.records[1].start_ns, 5 * kMs);
  EXPECT_EQ(result.records[1].first_ns, 36 * kMs);  // 10 + 1 + 5
  EXPECT_EQ(result.records[0].last_ns, 48 * kMs);   // 10 + 2
  EXPECT_EQ(result.records[1].last_ns, 48 * kMs);
  EXPECT_EQ(result.records[2].start_ns, 900 * kMs);  // nobody is left: time jumps
  EXPECT_EQ(result.records[2].last_ns, 911 * kMs);
  EXPECT_DOUBLE_EQ(result.duration_s, 0.911);
  EXPECT_EQ(result.totals.num_steps, 4);
  EXPECT_EQ(result.totals.prefill_tokens, 160);
  EXPECT_EQ(result.totals.decode_tokens, 3);
  EXPECT_NEAR(result.totals.busy_s, 0.059, 1e-12);
  EXPECT_EQ(result.stats.requests_finished_total, 3);
}

// Fixed gaps 1 / rate, equal lengths: while a request makes its `output` tokens, `rate` times its stay arrive. A
// request stays output - 1 steps after its first token, and its group, one of dp_size, holds n sequences. A step has
// rate * t prompts; they are fewer than one, and the step of the group that has it sets the time:
//   t = step + decode_token * n + prefill_token * input * rate * t,  n = rate * t * (output - 1) / dp_size
TEST(Simulator, SteadyStateIsTheClosedForm) {
  const StepTable::Linear s{.step = 4e-3, .decode_token = 50e-6, .prefill_token = 5e-6};
  for (const double rate : {5.0, 20.0, 60.0}) {
    for (const int dp_size : {1, 4}) {
      constexpr double kInput = 300, kOutput = 120;
      const double step_s =
          s.step / (1.0 - s.decode_token * rate * (kOutput - 1) / dp_size - s.prefill_token * kInput * rate);
      ASSERT_LT(rate * step_s, 1.0);
      SimOptions options = small_options();
      options.engine.dp_size = dp_size;
      const std::vector<TrafficRequest> traffic =
          make_traffic({.num_prompts = 3000,
                        .arrivals = {.request_rate = rate, .burstiness = INFINITY, .seed = 3},
                        .input_len = static_cast<int64_t>(kInput),
                        .output_len = static_cast<int64_t>(kOutput)});
      const SimResult result = run(options, traffic, linear_timer(s));
      double tpot = 0.0, running = 0.0;
      constexpr size_t kWarm = 1000, kUsed = 1500;
      for (size_t i = kWarm; i < kWarm + kUsed; ++i) {
        const SimRecord& record = result.records[i];
        tpot += static_cast<double>(record.last_ns - record.first_ns) * 1e-9 / (kOutput - 1) / kUsed;
        running += static_cast<double>(record.last_ns - record.start_ns) * 1e-9 * rate / kUsed;  // Little's law
      }
      EXPECT_NEAR(tpot / step_s, 1.0, 0.03) << "rate " << rate << ", DP" << dp_size;
      // A request also waits half a step on average, and its prompt takes one.
      EXPECT_NEAR(running / (rate * step_s * (kOutput + 0.5)), 1.0, 0.03) << "rate " << rate << ", DP" << dp_size;
    }
  }
}

// M / D / 1: one request at a time, constant service s, Poisson arrivals: the wait is rho s / (2 (1 - rho)) on average.
TEST(Simulator, PoissonQueueIsPollaczekKhinchine) {
  constexpr double kService = 0.05;
  SimOptions options = small_options();
  options.engine.max_running_requests = 1;
  options.engine.prefix_cache = false;
  for (const double rho : {0.3, 0.7}) {
    const std::vector<TrafficRequest> traffic = make_traffic({.num_prompts = 100'000,
                                                              .arrivals = {.request_rate = rho / kService, .seed = 11},
                                                              .input_len = 16,
                                                              .output_len = 1});
    const SimResult result = run(options, traffic, linear_timer({.step = kService}));
    double wait = 0.0;
    for (const SimRecord& record : result.records) {
      wait += static_cast<double>(record.last_ns - record.start_ns) * 1e-9 - kService;
    }
    wait /= static_cast<double>(result.records.size());
    EXPECT_NEAR(wait / (rho * kService / (2 * (1 - rho))), 1.0, 0.03) << rho;
    EXPECT_NEAR(result.totals.busy_s / result.duration_s, rho, 0.02);
  }
}

TEST(Simulator, SameSeedSameResult) {
  SimOptions options = small_options();
  options.engine.dp_size = 3;
  options.engine.num_kv_blocks = 40;  // preempts
  options.engine.max_draft_depth = 2;
  options.engine.synthetic_acceptance = 0.7;
  options.seed = 5;
  options.record_trace = true;
  const std::vector<TrafficRequest> traffic =
      make_traffic({.num_prompts = 300,
                    .arrivals = {.request_rate = 200, .burstiness = 0.3, .seed = 5},
                    .input_len = 200,
                    .output_len = 100,
                    .range_ratio = 0.9,
                    .num_prefixes = 3,
                    .prefix_len = 128});
  const TableStepTimer timer =
      linear_timer({.step = 1e-3, .decode_token = 1e-4, .prefill_token = 1e-5, .draft_level = 1e-4});
  const SimResult one = run(options, traffic, timer), two = run(options, traffic, timer);
  ASSERT_EQ(one.records.size(), two.records.size());
  for (size_t i = 0; i < one.records.size(); ++i) {
    EXPECT_EQ(one.records[i].first_ns, two.records[i].first_ns);
    EXPECT_EQ(one.records[i].last_ns, two.records[i].last_ns);
    EXPECT_EQ(one.records[i].num_output, traffic[i].num_output);
  }
  EXPECT_TRUE(one.trace_json == two.trace_json);  // gtest's comparison of such long texts takes minutes
  EXPECT_THAT(one.trace_json, testing::Not(testing::HasSubstr("request 300\"")));
  EXPECT_GT(one.stats.preemptions_total, 0);
  EXPECT_GT(one.stats.speculation->accepted_tokens_total, 0);
  const double right = static_cast<double>(one.stats.speculation->accepted_tokens_total) /
                       static_cast<double>(one.stats.speculation->draft_tokens_total);
  EXPECT_GT(right, 0.4);
  EXPECT_LT(right, 0.75);
  // Prefixes of two blocks are found again.
  double cached = 0;
  for (const SimRecord& record : one.records) cached += record.num_cached;
  EXPECT_GT(cached, 100 * 128);
}

// The same requests to an engine on the machine's clock, which knows the same table: it drafts the same.
EngineStats drafts_of_real_engine(const SimOptions& options, const std::vector<TrafficRequest>& traffic,
                                  const TableStepTimer& timer) {
  EngineOptions engine_options = options.engine;
  engine_options.vocab_size = SimExecutor::kVocabSize;
  engine_options.step_table = timer.table();
  BoundedQueue<bool> started(1), submitted(1);
  const auto wait_once = [&, waited = false](int64_t) mutable {
    if (std::exchange(waited, true)) return;
    EXPECT_TRUE(started.try_push(true) && submitted.pop_for(60'000));
  };
  Engine engine(engine_options,
                std::make_unique<SimExecutor>(timer, engine_options.max_draft_depth,
                                              SimExecutor::Hooks{.advance = wait_once, .on_step = {}}),
                nullptr, real_clock());
  for (size_t i = 0; i < traffic.size(); ++i) {
    const absl::Status status = engine.submit(sim_request(options, traffic[i], i), [](const RequestOutput&) {});
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(i > 0 || started.pop_for(60'000));  // the others come during the first step, as in the simulation
  }
  EXPECT_TRUE(submitted.try_push(true));
  engine.drain(60'000);
  return engine.stats();
}

TEST(Simulator, DraftsAsTheEngineDoes) {
  StepTable table = StepTable::linear({});
  table.decode_tokens = {0, 4, 16, 64};  // four tokens cost what one does, sixty-four ten times as much
  table.step.base_s = {1e-3, 1.1e-3, 1e-3, 1.1e-3, 2e-3, 2.1e-3, 10e-3, 10.1e-3};
  table.step.decode_pair_s = {1e-7, 1e-7, 1e-7, 2e-7};
  table.draft.base_s = {1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 1e-4, 2e-4, 2e-4};
  table.draft.decode_pair_s = {0.0, 0.0, 0.0, 0.0};
  const TableStepTimer timer(table);
  double share_before = 1.0;
  for (const int64_t num_requests : {2, 14, 40}) {
    SimOptions options = small_options();
    options.engine.dp_size = 2;
    options.engine.max_draft_depth = 3;
    options.engine.synthetic_acceptance = 0.75;
    options.seed = 9;
    const std::vector<TrafficRequest> traffic = make_traffic({.num_prompts = num_requests,
                                                              .arrivals = {.request_rate = INFINITY, .seed = 9},
                                                              .input_len = 40,
                                                              .output_len = 300,
                                                              .range_ratio = 0.9});
    const EngineStats simulated = run(options, traffic, timer).stats;
    const EngineStats real = drafts_of_real_engine(options, traffic, timer);
    EXPECT_EQ(simulated.steps_total, real.steps_total);
    EXPECT_EQ(simulated.speculation->drafts_total, real.speculation->drafts_total);
    EXPECT_EQ(simulated.speculation->draft_tokens_total, real.speculation->draft_tokens_total);
    EXPECT_EQ(simulated.speculation->accepted_tokens_total, real.speculation->accepted_tokens_total);
    const double share = static_cast<double>(simulated.speculation->accepted_tokens_total) /
                         static_cast<double>(simulated.output_tokens_total);
    EXPECT_LT(share, share_before - 0.05) << "fewer guesses pay where many decode";
    share_before = share;
  }
  table.draft = {};
  SimOptions options = small_options();
  options.engine.max_draft_depth = 1;
  options.engine.synthetic_acceptance = 0.5;
  EXPECT_FALSE(simulate(options, std::vector<TrafficRequest>(1), TableStepTimer(table)).ok());
}

TEST(Simulator, RefusalsFailuresAndClosedLoops) {
  SimOptions options = small_options();
  options.engine.context_length = 100;
  options.engine.queue_timeout_ms = 25;
  options.engine.max_running_requests = 1;
  const TableStepTimer timer = linear_timer({.step = 10e-3});
  SimResult result = run(options,
                         {{.due_ns = 0, .num_input = 90, .num_output = 11},  // above the context
                          {.due_ns = 0, .num_input = 10, .num_output = 5},
                          {.due_ns = kMs, .num_input = 10, .num_output = 1},  // waits 50 ms: too long
                          {.due_ns = 200 * kMs, .num_input = 90, .num_output = 20}},
                         timer);
  EXPECT_FALSE(result.records[0].ok());
  EXPECT_TRUE(result.records[1].ok());
  EXPECT_FALSE(result.records[2].ok());
  EXPECT_FALSE(result.records[3].ok());
  ASSERT_EQ(result.errors.size(), 3u);
  EXPECT_EQ(result.errors.begin()->second, 1);

  options = small_options();
  options.max_concurrency = 2;
  result = run(options, std::vector<TrafficRequest>(5, {.num_input = 10, .num_output = 2}), timer);
  // Pairs: two steps each; the third waits for the first to end.
  EXPECT_EQ(result.records[1].last_ns, 30 * kMs);  // it came after the first step had begun
  EXPECT_EQ(result.records[2].start_ns, 20 * kMs);
  EXPECT_FALSE(simulate(options, {}, timer).ok());
  options.engine.max_draft_depth = 1;
  EXPECT_EQ(simulate(options, std::vector<TrafficRequest>(1), timer).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace moesaic
