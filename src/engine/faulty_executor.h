// FaultyExecutor: another executor that fails or is slow on demand, for tests of what the engine and everything above
// it do then. Owned by the engine; called by the engine thread.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/executor.h"

namespace moesaic {

struct FaultOptions {
  int64_t fail_at_step = -1;   // this step returns an error; -1 = none
  int64_t delay_at_step = -1;  // only this step is slow; -1 = every step
  int64_t delay_ms = 0;
  bool any() const { return fail_at_step >= 0 || delay_ms > 0; }
};

class FaultyExecutor final : public Executor {
 public:
  FaultyExecutor(std::unique_ptr<Executor> inner, FaultOptions options) : inner_(std::move(inner)), options_(options) {}
  absl::Status execute(const StepPlan& plan, StepLogits* logits) override;
  int max_draft_depth() const override { return inner_->max_draft_depth(); }
  absl::Status draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) override {
    return inner_->draft(plan, drafts, tokens);
  }

 private:
  std::unique_ptr<Executor> inner_;
  FaultOptions options_;
};

}  // namespace moesaic
