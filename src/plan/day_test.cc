#include "plan/day.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/embedded_files.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

std::vector<DayHour> published_day() {
  const auto text = embedded_text("deepseek_diurnal.csv");
  EXPECT_TRUE(text.ok()) << text.status();
  auto hours = parse_day(*text, "deepseek_diurnal.csv");
  EXPECT_TRUE(hours.ok()) << hours.status();
  return *std::move(hours);
}

// "Day 6: one more thing" of DeepSeek's open-infra-index: 226.75 nodes of 8 GPUs at $2, $87,072, $562,027, 545 %.
TEST(Day, TotalsAreThePublishedOnes) {
  const DayTotals totals = day_totals(published_day(), {});
  EXPECT_DOUBLE_EQ(totals.mean_nodes, 226.75);
  EXPECT_DOUBLE_EQ(totals.cost_usd, 87072);
  EXPECT_NEAR(totals.income_usd, 562027, 562.027);
  EXPECT_NEAR(totals.income_tokens_usd, 562027, 562.027);
  EXPECT_EQ(static_cast<int>(totals.margin * 100), 545);
}

TEST(Day, TheBusiestHourNeedsTheNodesThatServedIt) {
  const auto units = peak_units(published_day(), {}, {.capacity = 1.1});
  EXPECT_EQ(units[0], 29);
  EXPECT_EQ(units[1], 9);
  EXPECT_EQ(units[0] * 4 + units[1] * 18, 278);
}

TEST(Day, PoliciesKeepTheirPromises) {
  const std::vector<DayHour> hours = published_day();
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(str_cat("seed ", seed));
    const DayFleet fleet{.seed = seed};
    const DayRun fixed = simulate_day(hours, {}, fleet, ScalePolicy::kFixed);
    const DayRun reactive = simulate_day(hours, {}, fleet, ScalePolicy::kReactive);
    const DayRun predictive = simulate_day(hours, {}, fleet, ScalePolicy::kPredictive);
    EXPECT_NEAR(fixed.node_hours, 278 * 24, 1e-6);
    EXPECT_EQ(fixed.num_changes, 0);
    for (const DayRun* run : {&fixed, &reactive, &predictive}) {
      EXPECT_NEAR(run->node_hours + run->training_node_hours, 278 * 24, 1e-6);
      EXPECT_DOUBLE_EQ(run->cost_usd, run->node_hours * 16);
      EXPECT_LE(run->most_nodes, 278);
      EXPECT_GE(run->least_nodes, 22);
      ASSERT_EQ(run->minutes.size(), 1440u);
    }
    EXPECT_LT(reactive.node_hours, 0.9 * fixed.node_hours);
    EXPECT_LT(predictive.node_hours, 0.9 * fixed.node_hours);
    EXPECT_LT(predictive.miss_share, reactive.miss_share);
    EXPECT_LE(fixed.miss_share, predictive.miss_share + 1e-12);
    EXPECT_LT(fixed.miss_share, 0.01);
  }
}

TEST(Day, WithoutNoiseAPredictivePoolMissesNothing) {
  const std::vector<DayHour> hours = published_day();
  const DayRun calm = simulate_day(hours, {}, {.noise = 0}, ScalePolicy::kPredictive);
  EXPECT_EQ(calm.miss_share, 0);
  for (const DayRun::Minute& minute : calm.minutes) EXPECT_GE(minute.nodes, minute.needed_nodes);
  // Slow loading hurts who does not look ahead.
  const DayFleet slow{.prefill_load_s = 3600, .decode_load_s = 3600, .noise = 0};
  EXPECT_EQ(simulate_day(hours, {}, slow, ScalePolicy::kPredictive).miss_share, 0);
  EXPECT_GT(simulate_day(hours, {}, slow, ScalePolicy::kReactive).miss_share, 0.02);
}

TEST(Day, SeedsDecide) {
  const std::vector<DayHour> hours = published_day();
  const auto minutes = [&](uint64_t seed) {
    std::vector<double> nodes;
    for (const auto& m : simulate_day(hours, {}, {.seed = seed}, ScalePolicy::kReactive).minutes)
      nodes.push_back(m.nodes);
    return nodes;
  };
  EXPECT_EQ(minutes(1), minutes(1));
  EXPECT_NE(minutes(1), minutes(2));
}

TEST(Day, BadFilesAreNamed) {
  const std::string header = "hour_utc8,avg_nodes,income_usd,share_of_day\n";
  std::string good = header;
  for (int hour = 0; hour < 24; ++hour) good += str_cat(hour, ":00,10,100,0.041667\n");
  const auto message = [](const std::string& csv) {
    const auto hours = parse_day(csv, "day.csv");
    return hours.ok() ? std::string("accepted") : str_cat(hours.status().message());
  };
  EXPECT_EQ(message(good), "accepted");
  EXPECT_THAT(message("nodes\n"), HasSubstr("day.csv:1: expected the header hour_utc8"));
  EXPECT_THAT(message(header + "0:00,ten,100,0.04\n"), HasSubstr("day.csv:2: avg_nodes is \"ten\""));
  EXPECT_THAT(message(header + "0:00,10,-1,0.04\n"), HasSubstr("day.csv:2: income_usd is \"-1\""));
  EXPECT_THAT(message(header + "0:00,10,100,2\n"), HasSubstr("share_of_day is \"2\"; expected a number from 0 to 1"));
  EXPECT_THAT(message(header + "0:00,10,100\n"), HasSubstr("day.csv:2: 3 fields; expected 4"));
  EXPECT_THAT(message(good.substr(0, good.size() / 2)), HasSubstr("expected"));
  std::string doubled = header;
  for (int hour = 0; hour < 24; ++hour) doubled += "x,10,100,0.08\n";
  EXPECT_THAT(message(doubled), HasSubstr("share_of_day adds up to 1.92"));
}

PoolSpec pool(int min_units, int max_units) {
  return {
      .name = "decode", .tokens_per_s_per_unit = 100, .load_s = 600, .min_units = min_units, .max_units = max_units};
}

TEST(Autoscaler, WithoutMetricsTheCountHoldsWithinItsLimits) {
  for (const ScalePolicy policy : {ScalePolicy::kReactive, ScalePolicy::kPredictive}) {
    Autoscaler scaler(policy, pool(2, 4), 60, [](double) { return 1000.0; });
    EXPECT_EQ(scaler.decide({.num_units = 1}).num_units, 2);
    EXPECT_EQ(scaler.decide({.num_units = 3}).num_units, 3);
    EXPECT_THAT(scaler.decide({.num_units = 3}).reason, HasSubstr("no metrics"));
    EXPECT_EQ(scaler.decide({.num_units = 9}).num_units, 4);
  }
}

TEST(Autoscaler, AReactivePoolDoesNotSwing) {
  Autoscaler scaler(ScalePolicy::kReactive, pool(1, 100), 60, nullptr);
  int units = 1;
  const auto at = [&](double time_s, double load) {
    return units = scaler.decide({.time_s = time_s, .tokens_per_s = load, .num_units = units}).num_units;
  };
  EXPECT_EQ(at(0, 900), 10);
  for (int minute = 1; minute <= 15; ++minute) EXPECT_EQ(at(minute * 60.0, minute % 2 == 0 ? 850 : 650), 10) << minute;
  EXPECT_EQ(at(16 * 60.0, 650), 9);  // the most that the last quarter of an hour needed
  EXPECT_EQ(at(17 * 60.0, 2000), 21);
  // A backlog asks for more than the load does.
  Autoscaler busy(ScalePolicy::kReactive, pool(1, 100), 60, nullptr);
  EXPECT_EQ(busy.decide({.tokens_per_s = 900, .backlog_tokens = 12000, .num_units = 10}).num_units, 11);
}

TEST(Autoscaler, APredictivePoolAsksBeforeTheLoadComes) {
  const auto usual = [](double time_s) { return time_s < 3600 ? 100.0 : 1000.0; };
  Autoscaler scaler(ScalePolicy::kPredictive, pool(1, 100), 60, usual);
  const auto at = [&](double time_s, double load) {
    return scaler.decide({.time_s = time_s, .tokens_per_s = load, .num_units = 2}).num_units;
  };
  EXPECT_EQ(at(0, 100), 2);
  EXPECT_EQ(at(2700, 100), 2);
  EXPECT_EQ(at(3000, 100), 11) << "the load is 600 s away, and loading takes as long";
  // Twice the usual load now means about twice the usual load later.
  for (int i = 0; i < 40; ++i) at(3000, 200);
  EXPECT_EQ(at(3000, 200), 21);
}

}  // namespace
}  // namespace moesaic
