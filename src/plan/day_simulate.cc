// simulate_day: the fluid load of two pools, minute by minute, under a policy.
#include <algorithm>
#include <cmath>
#include <deque>
#include <numbers>

#include "base/check.h"
#include "base/rng.h"
#include "plan/day.h"

namespace moesaic {
namespace {

constexpr int kDayMinutes = 24 * 60;
constexpr double kStepS = 60;
constexpr double kPeriodS = 300;  // between decisions
// Of the noise: what is left of a deviation after a minute; half an hour forgets it.
constexpr double kNoiseMemory = 0.967;

// Share of the day's tokens in a second at `time_s` of the usual day: hours are met at their middle, straight between.
double share_per_s(const std::vector<DayHour>& hours, double time_s) {
  const double position = time_s / 3600 - 0.5;
  const double below = std::floor(position);
  const auto hour = [&](double index) {
    const auto n = static_cast<int64_t>(hours.size());
    return hours[((static_cast<int64_t>(index) % n) + n) % n].share;
  };
  const double part = position - below;
  return (hour(below) * (1 - part) + hour(below + 1) * part) / 3600;
}

// The load of a day, and of one before it, relative to the usual one: a slow random walk about day_level.
std::vector<double> draw_levels(const DayFleet& fleet, int num_minutes) {
  Rng rng(fleet.seed);
  std::vector<double> levels(num_minutes);
  double deviation = 0;
  for (double& level : levels) {
    const double normal = std::sqrt(-2 * std::log(1 - rng.uniform())) * std::cos(2 * std::numbers::pi * rng.uniform());
    deviation = kNoiseMemory * deviation + std::sqrt(1 - kNoiseMemory * kNoiseMemory) * normal;
    level = fleet.day_level * std::exp(fleet.noise * deviation);
  }
  return levels;
}

// One pool: what serves, what loads, what waits.
class Pool {
 public:
  Pool(PoolSpec spec, ScalePolicy policy, std::function<double(double)> usual)
      : spec_(spec), scaler_(policy, spec, kPeriodS, std::move(usual)), num_serving_(spec.max_units) {}

  // Whether the number of units changed.
  bool decide(double time_s, double tokens_per_s) {
    const int before = num_units();
    const int wanted =
        scaler_
            .decide({.time_s = time_s, .tokens_per_s = tokens_per_s, .backlog_tokens = backlog_, .num_units = before})
            .num_units;
    for (int i = before; i < wanted; ++i) loading_.push_back(time_s + spec_.load_s);
    for (int i = wanted; i < before; ++i) {  // the last that was asked for is the first to go
      if (loading_.empty()) {
        --num_serving_;
      } else {
        loading_.pop_back();
      }
    }
    return wanted != before;
  }

  // Serves for a step; the share of the arriving tokens that wait too long.
  double serve(double time_s, double tokens_per_s, double slo_wait_s) {
    while (!loading_.empty() && loading_.front() <= time_s) {
      loading_.pop_front();
      ++num_serving_;
    }
    const double rate = num_serving_ * spec_.tokens_per_s_per_unit;
    const double start = backlog_;
    backlog_ = std::max(0.0, backlog_ + (tokens_per_s - rate) * kStepS);
    if (tokens_per_s <= 0) return 0;
    // Waits run straight from start / rate to backlog / rate within the step.
    const double limit = slo_wait_s * rate, low = std::min(start, backlog_), high = std::max(start, backlog_);
    if (high <= limit) return 0;
    return low >= limit ? 1 : (high - limit) / (high - low);
  }

  int num_units() const { return num_serving_ + static_cast<int>(loading_.size()); }
  int num_nodes() const { return num_units() * spec_.nodes_per_unit; }
  int nodes_for(double tokens_per_s) const {
    return static_cast<int>(std::ceil(tokens_per_s / spec_.tokens_per_s_per_unit)) * spec_.nodes_per_unit;
  }

 private:
  const PoolSpec spec_;
  Autoscaler scaler_;
  int num_serving_;
  std::deque<double> loading_;  // when each unit will serve, ascending
  double backlog_ = 0;
};

double input_tokens(const DayTraffic& traffic) {
  return traffic.input_hit_tokens + traffic.input_miss_tokens;
}

}  // namespace

std::array<int, 2> peak_units(const std::vector<DayHour>& hours, const DayTraffic& traffic, const DayFleet& fleet) {
  double peak = 0;
  for (const DayHour& hour : hours) peak = std::max(peak, hour.share / 3600);
  const auto units = [&](double tokens, double rate, int nodes) {
    return static_cast<int>(std::ceil(peak * tokens / (rate * fleet.capacity * nodes)));
  };
  return {units(input_tokens(traffic), fleet.prefill_rate, fleet.prefill_unit_nodes),
          units(traffic.output_tokens, fleet.decode_rate, fleet.decode_unit_nodes)};
}

DayRun simulate_day(const std::vector<DayHour>& hours, const DayTraffic& traffic, const DayFleet& fleet,
                    ScalePolicy policy) {
  const std::array<double, 2> tokens = {input_tokens(traffic), traffic.output_tokens};
  const auto make_pool = [&](int i, const char* name, int nodes, int units, double rate, double load_s) {
    const PoolSpec spec{.name = name,
                        .nodes_per_unit = nodes,
                        .tokens_per_s_per_unit = nodes * rate * fleet.capacity,
                        .load_s = load_s,
                        .min_units = 1,
                        .max_units = units};
    const double total = tokens[i];
    return Pool(spec, policy, [&hours, total](double time_s) { return total * share_per_s(hours, time_s); });
  };
  Pool pools[] = {
      make_pool(0, "prefill", fleet.prefill_unit_nodes, fleet.prefill_units, fleet.prefill_rate, fleet.prefill_load_s),
      make_pool(1, "decode", fleet.decode_unit_nodes, fleet.decode_units, fleet.decode_rate, fleet.decode_load_s)};
  const std::vector<double> levels = draw_levels(fleet, 2 * kDayMinutes);

  DayRun run{.policy = policy, .least_nodes = fleet.num_nodes()};
  double total_load = 0, missed_load = 0;
  int64_t node_minutes = 0;
  for (int minute = 0; minute < 2 * kDayMinutes; ++minute) {
    const double time_s = minute * kStepS, share = levels[minute] * share_per_s(hours, time_s);
    const bool is_counted = minute >= kDayMinutes;
    double miss = 0;
    int nodes = 0, needed = 0;
    for (int i = 0; i < 2; ++i) {
      const double load = tokens[i] * share;
      const bool is_due = std::fmod(time_s, kPeriodS) == 0;
      if (is_due && pools[i].decide(time_s, load) && is_counted) ++run.num_changes;
      miss = std::max(miss, pools[i].serve(time_s, load, fleet.slo_wait_s));
      nodes += pools[i].num_nodes();
      needed += pools[i].nodes_for(load);
    }
    if (!is_counted) continue;
    total_load += share;
    missed_load += share * miss;
    node_minutes += nodes;
    run.least_nodes = std::min(run.least_nodes, nodes);
    run.most_nodes = std::max(run.most_nodes, nodes);
    run.minutes.push_back({.needed_nodes = needed, .nodes = nodes});
  }
  run.node_hours = static_cast<double>(node_minutes) / 60;
  run.training_node_hours = static_cast<double>(fleet.num_nodes() * int64_t{kDayMinutes} - node_minutes) / 60;
  run.cost_usd = run.node_hours * traffic.gpus_per_node * traffic.usd_per_gpu_hour;
  run.miss_share = missed_load / total_load;
  return run;
}

}  // namespace moesaic
