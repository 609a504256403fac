// SimExecutor: answers steps from a StepTimer in virtual time, under the production Engine. Its logits are all zero, so
// greedy sampling gives token 0 and requests end at max_tokens. Owned by the engine and called by its thread.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "engine/executor.h"
#include "plan/step_timer.h"

namespace moesaic {

class SimExecutor final : public Executor {
 public:
  // Prompts are drawn from so few ids: sampling then costs nothing, and blocks of 8 tokens or more are still distinct.
  static constexpr int64_t kVocabSize = 256;

  struct Hooks {
    // Lets virtual time pass; what happens meanwhile happens inside.
    std::function<void(int64_t duration_ns)> advance;
    // What a step does and how long it takes, before the time passes; may be empty.
    std::function<void(const StepWork& work, int64_t duration_ns)> on_step;
  };
  // `timer` outlives the executor. max_draft_depth 0: no draft module.
  SimExecutor(const StepTimer& timer, int max_draft_depth, Hooks hooks);

  int max_draft_depth() const override { return max_draft_depth_; }
  absl::Status execute(const StepPlan& plan, StepLogits* logits) override;
  absl::Status draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) override;

 private:
  const StepTimer& timer_;
  const int max_draft_depth_;
  const Hooks hooks_;
  StepWork work_;
  std::vector<float> zeros_;  // logits of every group
};

}  // namespace moesaic
