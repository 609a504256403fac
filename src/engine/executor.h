// Executor: runs a StepPlan. ModelExecutor runs the model on all ranks; a simulated or faulty one can stand in. Called
// by the engine thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "sched/step_plan.h"

namespace moesaic {

// Logits of the rows that a plan asked for, group by group, chunk by chunk, row by row. Valid until the next execute()
// or draft().
struct StepLogits {
  // logits(group)[row * vocab_size + id]
  std::vector<std::span<float>> groups;
  int64_t vocab_size = 0;
};

// What the draft module (MTP) does after a step: its cache takes the step's rows whose next tokens are known, and it
// guesses what follows them.
struct DraftChunk {
  int32_t chunk = 0;     // its index in the GroupPlan that was executed
  int32_t num_rows = 0;  // the first rows of that chunk; at least one
  int32_t depth = 0;     // tokens to guess; row kv_begin + num_rows - 2 + depth lies inside its block table
};
struct GroupDraft {
  std::vector<DraftChunk> chunks;  // ascending
  std::vector<int32_t> next_ids;   // the token after each of the rows, chunk by chunk
};
struct DraftPlan {
  int depth = 0;                   // the largest of any chunk
  std::vector<GroupDraft> groups;  // [dp_size]
};
struct DraftTokens {
  // groups[g][i * depth + level]: guess `level` of the group's chunk i, as far as its depth goes; then -1.
  std::vector<std::vector<int32_t>> groups;
};

class Executor {
 public:
  virtual ~Executor() = default;
  // The largest depth that draft() takes; 0 without a draft module.
  virtual int max_draft_depth() const { return 0; }
  // After execute(plan), at most once. Errors are fatal likewise.
  virtual absl::Status draft(const StepPlan& /*plan*/, const DraftPlan& /*drafts*/, DraftTokens* /*tokens*/) {
    return absl::UnimplementedError("this executor has no draft module");
  }
  // An error is fatal for the engine (the EP group is the fault domain); its message names rank, step and operation.
  virtual absl::Status execute(const StepPlan& plan, StepLogits* logits) = 0;
};

}  // namespace moesaic
