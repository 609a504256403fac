#include "engine/model_executor.h"

#include <utility>

#include "base/check.h"
#include "comm/lockstep.h"

namespace moesaic {

ModelExecutor::ModelExecutor(const ParallelLayout& layout, int64_t vocab_size, RunRanks run_ranks)
    : layout_(layout),
      vocab_size_(vocab_size),
      run_ranks_(std::move(run_ranks)),
      batches_(layout.dp_size),
      results_(layout.dp_size) {}

absl::Status ModelExecutor::execute(const StepPlan& plan, StepLogits* logits) {
  if (!dead_.ok()) return dead_;
  MOESAIC_CHECK_EQ(static_cast<int>(plan.groups.size()), layout_.dp_size);
  for (size_t group = 0; group < plan.groups.size(); ++group) batches_[group].assign(plan.groups[group]);
  dead_ = run_ranks_([&](const RankContext& context, const RankForward& forward) {
    return annotate(run_rank(plan, context, forward), str_cat("rank ", context.rank));
  });
  if (!dead_.ok()) return dead_;
  logits->vocab_size = vocab_size_;
  logits->groups.assign(results_.begin(), results_.end());
  return absl::OkStatus();
}

absl::Status ModelExecutor::run_rank(const StepPlan& plan, const RankContext& context, const RankForward& forward) {
  const int group = layout_.dp_rank(context.rank);
  const LockstepRecord mine{.step_id = plan.step_id,
                            .num_prefill_tokens = plan.groups[group].num_prefill_tokens,
                            .num_decode_tokens = plan.groups[group].num_decode_tokens};
  MOESAIC_ASSIGN_OR_RETURN(const LockstepDecision decision, lockstep(*context.world, mine));
  if (decision.stop) return absl::UnavailableError("the ranks were told to stop");
  ForwardBatch batch = batches_[group].forward_batch();
  batch.a2a_mode = decision.a2a_mode;
  ForwardResult result;
  MOESAIC_RETURN_IF_ERROR(forward(context, batch, &result));
  if (layout_.tp_rank(context.rank) != 0) return absl::OkStatus();
  const int64_t num_rows = batches_[group].num_logit_rows();
  if (num_rows > 0) {
    MOESAIC_CHECK_EQ(result.logits.dim(0), num_rows);
    MOESAIC_CHECK_EQ(result.logits.dim(1), vocab_size_);
  }
  results_[group] = num_rows == 0 ? std::span<float>() : std::span(result.logits.f32(), num_rows * vocab_size_);
  return absl::OkStatus();
}

}  // namespace moesaic
