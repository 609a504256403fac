// Autoscaler: how many units of a pool of instances should serve, decided every control period from what was measured.
// A unit is the least that can serve: 4 nodes of a prefill pool at EP32, 18 of a decode pool at EP144. Units that are
// asked for serve only after they have loaded; units that are given back go to training. One thread; deterministic.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>

namespace moesaic {

struct PoolSpec {
  std::string name;
  int nodes_per_unit = 1;
  double tokens_per_s_per_unit = 1;  // what a unit serves within its SLO
  double load_s = 0;                 // from asking for a unit until it serves
  int min_units = 1;
  int max_units = 1;
};

enum class ScalePolicy { kFixed, kReactive, kPredictive };
const char* policy_name(ScalePolicy policy);

struct PoolState {
  double time_s = 0;
  std::optional<double> tokens_per_s;  // arriving; none while the source of metrics is down
  double backlog_tokens = 0;           // waiting
  int num_units = 0;                   // that serve or load
};

struct ScaleDecision {
  int num_units = 0;
  const char* reason = "";
};

class Autoscaler {
 public:
  // usual_tokens_per_s(time_s): the load of a usual day, for kPredictive. period_s: between decisions.
  Autoscaler(ScalePolicy policy, PoolSpec spec, double period_s, std::function<double(double)> usual_tokens_per_s);

  // kFixed: max_units. kReactive: units for the load now; fewer only when a quarter of an hour has needed fewer, so
  // that noise does not make it swing. kPredictive: units for the most that a usual day, scaled to today's level,
  // brings until a unit that is asked for now would serve. Both also work off the backlog and keep kHeadroom. Without
  // metrics the present count holds. Never outside min_units to max_units.
  ScaleDecision decide(const PoolState& state);

  static constexpr double kHeadroom = 0.05;      // capacity beyond the expected load
  static constexpr double kBacklogDrainS = 120;  // in which a backlog is to be worked off
  static constexpr double kHoldS = 900;          // for how long a reactive pool must need fewer units

 private:
  int units_for(double tokens_per_s) const;

  const ScalePolicy policy_;
  const PoolSpec spec_;
  const double period_s_;
  const std::function<double(double)> usual_tokens_per_s_;
  double level_ = 1;                           // today's load over the usual day's, smoothed
  std::deque<std::pair<double, int>> needed_;  // time, units: the last kHoldS
};

}  // namespace moesaic
