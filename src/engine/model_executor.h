// ModelExecutor: runs a StepPlan on all ranks, then the draft module if asked to. Every rank, also of an idle group,
// exchanges its lockstep record, takes the all-to-all mode that all have in common, and calls the model. Owned by the
// engine and called by its thread; the ranks' threads are behind RunRanks. After an error the ranks may be out of step:
// every later call fails.
#pragma once

#include <functional>
#include <vector>

#include "comm/lockstep.h"
#include "comm/parallel_layout.h"
#include "engine/draft_batch.h"
#include "engine/executor.h"
#include "engine/step_batch.h"
#include "model/deepseek.h"

namespace moesaic {

// One rank's model: DeepseekModel::forward and forward_mtp.
struct RankModel {
  std::function<absl::Status(const RankContext&, const ForwardBatch&, ForwardResult*)> forward;
  std::function<absl::Status(const RankContext&, const ForwardBatch&, const Tensor& hidden,
                             std::span<const int32_t> next_ids, ForwardResult*)>
      forward_mtp;
};
using RankBody = std::function<absl::Status(const RankContext&, const RankModel&)>;
// Runs the body on the thread of every rank and returns when all have, with the first error that tells most.
using RunRanks = std::function<absl::Status(const RankBody&)>;

struct ModelExecutorOptions {
  ParallelLayout layout;
  int64_t vocab_size = 0;
  int64_t max_low_latency_tokens = 0;  // of one DP group: ModelOptions::max_decode_tokens
  int max_draft_depth = 0;             // 0: no draft module
};

class ModelExecutor final : public Executor {
 public:
  ModelExecutor(const ModelExecutorOptions& options, RunRanks run_ranks);
  absl::Status execute(const StepPlan& plan, StepLogits* logits) override;
  int max_draft_depth() const override { return options_.max_draft_depth; }
  absl::Status draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) override;

 private:
  // What the thread of one rank keeps between execute() and draft().
  struct RankState {
    Tensor hidden;             // of the last forward
    std::vector<int32_t> ids;  // of the last level's guesses
    std::vector<float> sum;    // of ids over the TP group
  };

  absl::Status run_rank(const StepPlan& plan, const RankContext& context, const RankModel& model);
  absl::Status draft_rank(const StepPlan& plan, int depth, const RankContext& context, const RankModel& model,
                          DraftTokens* tokens);
  absl::Status draft_level(int64_t step_id, int depth, int level, const RankContext& context, const RankModel& model,
                           ForwardResult* result);
  absl::Status take_guesses(const RankContext& context, const ForwardResult& result, int64_t num_guesses);

  const ModelExecutorOptions options_;
  RunRanks run_ranks_;
  std::vector<StepBatch> batches_;         // per group
  std::vector<DraftBatch> drafts_;         // per group
  std::vector<std::span<float>> results_;  // per group; each written by the first rank of its group
  std::vector<RankState> ranks_;
  absl::Status dead_;
};

}  // namespace moesaic
