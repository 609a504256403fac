// StepBatch: one DP group's part of a StepPlan in the form that the model takes. Made by the engine thread, read by the
// ranks of the group during the step; keeps its memory from step to step. Borrows the plan's block tables.
#pragma once

#include <cstdint>
#include <vector>

#include "model/deepseek.h"
#include "sched/step_plan.h"

namespace moesaic {

class StepBatch {
 public:
  // The decode path takes at most this many tokens of a sequence in one piece; a replay is cut into pieces, all of
  // which append their rows before any attends.
  static constexpr int32_t kMaxDecodeTokens = 8;

  void assign(const GroupPlan& plan);
  // a2a_mode is left to the lockstep.
  ForwardBatch forward_batch() const;
  int64_t num_logit_rows() const { return static_cast<int64_t>(logit_rows_.size()); }

 private:
  void add_chunk(const PlannedChunk& chunk);

  std::vector<int32_t> token_ids_;
  std::vector<SequenceChunk> chunks_;
  std::vector<int32_t> logit_rows_;
};

}  // namespace moesaic
