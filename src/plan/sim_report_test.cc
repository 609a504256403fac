#include "plan/sim_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace moesaic {
namespace {

constexpr int64_t kMs = 1'000'000;
using testing::HasSubstr;

SimResult sample() {
  SimResult result;
  result.records = {
      {.start_ns = 0, .first_ns = 100 * kMs, .last_ns = 500 * kMs, .num_input = 10, .num_output = 5, .num_cached = 4},
      {.start_ns = 50 * kMs, .first_ns = 250 * kMs, .last_ns = 250 * kMs, .num_input = 20, .num_output = 1},
      {.start_ns = 60 * kMs, .num_input = 99}};
  result.errors["the queue is full"] = 1;
  result.duration_s = 0.5;
  result.totals = {.num_steps = 4,
                   .decode_tokens = 6,
                   .prefill_tokens = 26,
                   .busy_s = 0.4,
                   .mean_step_tokens = 8,
                   .max_step_tokens = 10,
                   .mean_kv_rows = 3,
                   .max_kv_rows = 4,
                   .max_kv_use = 0.5,
                   .max_queued = 2};
  result.timeline.add({.begin_ns = 0, .duration_ns = 400 * kMs, .num_running = 2, .num_queued = 1, .kv_use = 0.25});
  return result;
}

TEST(SimReport, FiguresByHand) {
  const std::vector<double> percents = {50};
  const SimFigures figures = make_figures(sample(), {.ttft_ms = 150.0}, percents);
  EXPECT_EQ(figures.completed, 2);
  EXPECT_EQ(figures.failed, 1);
  EXPECT_EQ(figures.total_input_tokens, 30);
  EXPECT_EQ(figures.total_cached_tokens, 4);
  EXPECT_DOUBLE_EQ(figures.request_throughput, 4.0);
  EXPECT_DOUBLE_EQ(figures.request_goodput, 2.0);  // one of the two came in 150 ms
  EXPECT_DOUBLE_EQ(figures.output_throughput, 12.0);
  EXPECT_DOUBLE_EQ(figures.ttft_ms.mean, 150.0);
  EXPECT_DOUBLE_EQ(figures.tpot_ms.mean, 100.0);  // the other has a single token
  EXPECT_DOUBLE_EQ(figures.e2el_ms.percentiles[0].second, 350.0);
  EXPECT_DOUBLE_EQ(figures.busy_share, 0.8);
  EXPECT_DOUBLE_EQ(figures.mean_step_ms, 100.0);
  EXPECT_DOUBLE_EQ(figures.token_balancedness, 0.8);
  EXPECT_DOUBLE_EQ(figures.kv_balancedness, 0.75);
  EXPECT_NEAR(figures.mean_running, 2 * 0.8, 1e-9);
  EXPECT_NEAR(figures.mean_kv_use, 0.25 * 0.8, 1e-9);
}

TEST(SimReport, EveryFormSaysSimulated) {
  const SimResult result = sample();
  const std::vector<double> percents = {99};
  const SimSettings settings = {.command = "moesaic simulate", .timer = "given", .traffic = "3 requests"};
  const SimFigures figures = make_figures(result, {}, percents);
  EXPECT_THAT(figures_text(figures, result, settings), HasSubstr("Simulated; step times given"));
  const auto json = nlohmann::json::parse(figures_json(figures, result, settings));
  EXPECT_EQ(json["source"], "simulated");
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_TRUE(json["acceptance"].is_null());
  EXPECT_EQ(json["errors"]["the queue is full"], 1);
  EXPECT_TRUE(json.contains("p99_ttft_ms"));
  const Report report = sim_report(figures, result, settings);
  for (const Section& section : report.sections) {
    for (const Table& table : section.tables) EXPECT_EQ(table.source, Source::kSimulated) << table.title;
    for (const Chart& chart : section.charts) {
      for (const Series& series : chart.series) EXPECT_EQ(series.source, Source::kSimulated) << chart.title;
    }
  }
  EXPECT_THAT(report_html(report), HasSubstr("Simulated, not measured"));
}

// Whatever the steps, the intervals hold all of them, and the means are those of the time inside.
TEST(SimTimeline, NothingIsLostWhenIntervalsMerge) {
  constexpr uint64_t kSeed = 4;
  Rng rng(kSeed);
  for (int trial = 0; trial < 20; ++trial) {
    SimTimeline timeline;
    double busy = 0.0, decode = 0.0, running = 0.0, steps = 0.0;
    int64_t now = 0;
    const int64_t longest = int64_t{1} << rng.below(36);
    for (int i = 0; i < 500; ++i) {
      if (rng.below(3) == 0) now += static_cast<int64_t>(rng.below(longest));
      const SimStep step{.begin_ns = now,
                         .duration_ns = 1 + static_cast<int64_t>(rng.below(longest)),
                         .num_running = static_cast<double>(rng.below(50)),
                         .decode_tokens = static_cast<double>(rng.below(50))};
      timeline.add(step);
      now += step.duration_ns;
      busy += static_cast<double>(step.duration_ns) * 1e-9;
      running += static_cast<double>(step.duration_ns) * 1e-9 * step.num_running;
      decode += step.decode_tokens;
      steps += 1;
    }
    const std::vector<SimTimeline::Interval> intervals = timeline.intervals();
    EXPECT_LE(intervals.size(), 400u);
    EXPECT_GE(timeline.interval_s() * static_cast<double>(intervals.size()), static_cast<double>(now) * 1e-9 - 1e-9);
    for (const SimTimeline::Interval& interval : intervals) {
      EXPECT_LE(interval.busy_s, timeline.interval_s() * (1 + 1e-9)) << "seed " << kSeed << ", trial " << trial;
      busy -= interval.busy_s;
      running -= interval.busy_s * interval.num_running;
      decode -= interval.decode_tokens;
      steps -= interval.num_steps;
    }
    for (const double rest : {busy / (1 + static_cast<double>(now) * 1e-9), decode, steps}) {
      EXPECT_NEAR(rest, 0.0, 1e-6) << "seed " << kSeed << ", trial " << trial;
    }
    EXPECT_NEAR(running / (1 + static_cast<double>(now) * 1e-9), 0.0, 1e-6) << "seed " << kSeed << ", trial " << trial;
  }
}

}  // namespace
}  // namespace moesaic
