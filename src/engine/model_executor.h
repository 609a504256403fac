// ModelExecutor: runs a StepPlan on all ranks. Every rank, also of an idle group, exchanges its lockstep record, takes
// the all-to-all mode that all have in common, and calls the model. Owned by the engine and called by its thread; the
// ranks' threads are behind RunRanks. After an error the ranks may be out of step: every later execute() fails.
#pragma once

#include <functional>
#include <vector>

#include "comm/parallel_layout.h"
#include "engine/executor.h"
#include "engine/step_batch.h"
#include "model/deepseek.h"

namespace moesaic {

// One rank's DeepseekModel::forward.
using RankForward = std::function<absl::Status(const RankContext&, const ForwardBatch&, ForwardResult*)>;
using RankBody = std::function<absl::Status(const RankContext&, const RankForward&)>;
// Runs the body on the thread of every rank and returns when all have, with the first error that tells most.
using RunRanks = std::function<absl::Status(const RankBody&)>;

class ModelExecutor final : public Executor {
 public:
  ModelExecutor(const ParallelLayout& layout, int64_t vocab_size, RunRanks run_ranks);
  absl::Status execute(const StepPlan& plan, StepLogits* logits) override;

 private:
  absl::Status run_rank(const StepPlan& plan, const RankContext& context, const RankForward& forward);

  ParallelLayout layout_;
  int64_t vocab_size_;
  RunRanks run_ranks_;
  std::vector<StepBatch> batches_;         // per group
  std::vector<std::span<float>> results_;  // per group; each written by the first rank of its group
  absl::Status dead_;
};

}  // namespace moesaic
