// StepTimer: how long a step takes, as the simulator asks: the cost model, or a table measured on this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "engine/executor.h"
#include "sched/step_plan.h"

namespace moesaic {

// What a step does, as far as time depends on it. [dp_size] each.
struct StepWork {
  std::vector<GroupWork> groups;
  std::vector<int64_t> logit_rows;

  // Output that is computed again after a preemption counts as decoding: it takes that path.
  void assign(const StepPlan& plan);
  // The draft module's part at one level: at level 0 the rows that its cache takes in, then one row a guess.
  void assign(const StepPlan& plan, const DraftPlan& drafts, int level);
};

class StepTimer {
 public:
  virtual ~StepTimer() = default;
  // Seconds from the start of a step to that of the next. Not all groups are idle.
  virtual double step_s(const StepWork& work) const = 0;
  // Seconds that one level of the draft module adds.
  virtual double draft_level_s(const StepWork& work) const = 0;
  // Where the times come from, as the report says it: "measured: ...", "predicted: ...".
  virtual std::string source() const = 0;
};

// Linear in the work of the largest group: for tests, where the queue's behaviour is known in closed form.
class LinearStepTimer final : public StepTimer {
 public:
  struct Seconds {
    double step = 0.0;
    double decode_token = 0.0;
    double decode_kv_token = 0.0;
    double prefill_token = 0.0;
    double draft_level = 0.0;
  };
  explicit LinearStepTimer(const Seconds& seconds) : seconds_(seconds) {}
  double step_s(const StepWork& work) const override;
  double draft_level_s(const StepWork&) const override { return seconds_.draft_level; }
  std::string source() const override { return "given: linear in the tokens of the largest group"; }

 private:
  const Seconds seconds_;
};

// The cost model. Its Deployment::num_draft is not used: the engine drafts as it decides.
class CostStepTimer final : public StepTimer {
 public:
  static absl::StatusOr<CostStepTimer> make(Deployment deployment);
  double step_s(const StepWork& work) const override;
  double draft_level_s(const StepWork& work) const override;
  std::string source() const override;

 private:
  CostStepTimer(CostModel cost, CostModel draft_cost) : cost_(std::move(cost)), draft_cost_(std::move(draft_cost)) {}
  CostModel cost_;        // without drafts
  CostModel draft_cost_;  // with one, if the model can
};

}  // namespace moesaic
