// Executor: runs a StepPlan. ModelExecutor runs the model on all ranks; a simulated or faulty one can stand in. Called
// by the engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "sched/step_plan.h"

namespace moesaic {

// Logits of the rows that a plan asked for, group by group, chunk by chunk, row by row. Valid until the next execute().
struct StepLogits {
  // logits(group)[row * vocab_size + id]
  std::vector<std::span<float>> groups;
  int64_t vocab_size = 0;
};

class Executor {
 public:
  virtual ~Executor() = default;
  // An error is fatal for the engine (the EP group is the fault domain); its message names rank, step and operation.
  virtual absl::Status execute(const StepPlan& plan, StepLogits* logits) = 0;
};

}  // namespace moesaic
