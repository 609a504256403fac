#include "plan/autoscale.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace moesaic {
namespace {

// Of the newest measurement in the level of the day: a few periods decide.
constexpr double kLevelWeight = 0.2;

}  // namespace

const char* policy_name(ScalePolicy policy) {
  constexpr const char* kNames[] = {"fixed", "reactive", "predictive"};
  return kNames[static_cast<size_t>(policy)];
}

Autoscaler::Autoscaler(ScalePolicy policy, PoolSpec spec, double period_s,
                       std::function<double(double)> usual_tokens_per_s)
    : policy_(policy), spec_(std::move(spec)), period_s_(period_s), usual_tokens_per_s_(std::move(usual_tokens_per_s)) {
  MOESAIC_CHECK(spec_.min_units >= 0 && spec_.min_units <= spec_.max_units && spec_.tokens_per_s_per_unit > 0);
  MOESAIC_CHECK(period_s_ > 0);
}

int Autoscaler::units_for(double tokens_per_s) const {
  return static_cast<int>(std::ceil(tokens_per_s * (1 + kHeadroom) / spec_.tokens_per_s_per_unit));
}

ScaleDecision Autoscaler::decide(const PoolState& state) {
  const auto within = [&](int units, const char* reason) {
    if (units < spec_.min_units) return ScaleDecision{spec_.min_units, "the least allowed"};
    if (units > spec_.max_units) return ScaleDecision{spec_.max_units, "all there are"};
    return ScaleDecision{units, reason};
  };
  if (policy_ == ScalePolicy::kFixed) return {spec_.max_units, "fixed"};
  if (!state.tokens_per_s.has_value()) return within(state.num_units, "no metrics: as before");
  const double load = *state.tokens_per_s + state.backlog_tokens / kBacklogDrainS;
  if (policy_ == ScalePolicy::kPredictive) {
    const double usual = usual_tokens_per_s_(state.time_s);
    if (usual > 0) level_ += kLevelWeight * (*state.tokens_per_s / usual - level_);
    double most = load;
    for (double ahead_s = 0; ahead_s <= spec_.load_s + 2 * period_s_; ahead_s += period_s_) {
      most = std::max(most, level_ * usual_tokens_per_s_(state.time_s + ahead_s));
    }
    return within(units_for(most), most > load ? "load to come" : "load now");
  }
  needed_.emplace_back(state.time_s, units_for(load));
  while (needed_.front().first < state.time_s - kHoldS) needed_.pop_front();
  int most = 0;
  for (const auto& [time_s, units] : needed_) most = std::max(most, units);
  if (units_for(load) >= state.num_units) return within(units_for(load), "load now");
  return within(std::min(most, state.num_units), "load of the last minutes");
}

}  // namespace moesaic
