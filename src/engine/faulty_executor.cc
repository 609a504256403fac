#include "engine/faulty_executor.h"

#include <chrono>
#include <thread>

namespace moesaic {

absl::Status FaultyExecutor::execute(const StepPlan& plan, StepLogits* logits) {
  if (options_.delay_ms > 0 && (options_.delay_at_step < 0 || options_.delay_at_step == plan.step_id)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.delay_ms));
  }
  if (plan.step_id == options_.fail_at_step) {
    return absl::InternalError(str_cat("injected fault at step ", plan.step_id, " (fail_at_step)"));
  }
  return inner_->execute(plan, logits);
}

}  // namespace moesaic
