// StepTimer: how long a step takes, as the simulator asks: the cost model, or a table measured on a machine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cost/cost_model.h"
#include "engine/executor.h"
#include "engine/step_table.h"
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
  // What the engine may know of the times before it starts; null: it measures them.
  virtual std::shared_ptr<const StepTable> table() const { return nullptr; }
  // Where the times come from, as the report says it: "measured: ...", "predicted: ...".
  virtual std::string source() const = 0;
};

// A measured table.
class TableStepTimer final : public StepTimer {
 public:
  explicit TableStepTimer(StepTable table) : table_(std::make_shared<const StepTable>(std::move(table))) {}
  double step_s(const StepWork& work) const override;
  double draft_level_s(const StepWork& work) const override { return most_seconds(table_->draft, work); }
  std::shared_ptr<const StepTable> table() const override { return table_; }
  std::string source() const override;

 private:
  // Groups run side by side: the largest one counts.
  double most_seconds(const StepTimes& times, const StepWork& work) const;
  const std::shared_ptr<const StepTable> table_;
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
