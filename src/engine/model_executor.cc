#include "engine/model_executor.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/ops.h"

namespace moesaic {

ModelExecutor::ModelExecutor(const ModelExecutorOptions& options, RunRanks run_ranks)
    : options_(options),
      run_ranks_(std::move(run_ranks)),
      batches_(options.layout.dp_size),
      drafts_(options.layout.dp_size, DraftBatch(options.max_draft_depth)),
      results_(options.layout.dp_size),
      ranks_(options.layout.world_size()) {}

absl::Status ModelExecutor::execute(const StepPlan& plan, StepLogits* logits) {
  if (!dead_.ok()) return dead_;
  MOESAIC_CHECK_EQ(static_cast<int>(plan.groups.size()), options_.layout.dp_size);
  for (size_t group = 0; group < plan.groups.size(); ++group) batches_[group].assign(plan.groups[group]);
  dead_ = run_ranks_([&](const RankContext& context, const RankModel& model) {
    return annotate(run_rank(plan, context, model), str_cat("rank ", context.rank));
  });
  if (!dead_.ok()) return dead_;
  logits->vocab_size = options_.vocab_size;
  logits->groups.assign(results_.begin(), results_.end());
  return absl::OkStatus();
}

absl::Status ModelExecutor::run_rank(const StepPlan& plan, const RankContext& context, const RankModel& model) {
  const int group = options_.layout.dp_rank(context.rank);
  const LockstepRecord mine{.step_id = plan.step_id,
                            .num_prefill_tokens = plan.groups[group].num_prefill_tokens,
                            .num_decode_tokens = plan.groups[group].num_decode_tokens};
  MOESAIC_ASSIGN_OR_RETURN(const LockstepDecision decision,
                           lockstep(*context.world, mine, options_.max_low_latency_tokens));
  if (decision.stop) return absl::UnavailableError("the ranks were told to stop");
  ForwardBatch batch = batches_[group].forward_batch();
  batch.a2a_mode = decision.a2a_mode;
  ForwardResult result;
  MOESAIC_RETURN_IF_ERROR(model.forward(context, batch, &result));
  ranks_[context.rank].hidden = result.hidden;
  if (options_.layout.tp_rank(context.rank) != 0) return absl::OkStatus();
  const int64_t num_rows = batches_[group].num_logit_rows();
  if (num_rows > 0) {
    MOESAIC_CHECK_EQ(result.logits.dim(0), num_rows);
    MOESAIC_CHECK_EQ(result.logits.dim(1), options_.vocab_size);
  }
  results_[group] = num_rows == 0 ? std::span<float>() : std::span(result.logits.f32(), num_rows * options_.vocab_size);
  return absl::OkStatus();
}

absl::Status ModelExecutor::draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) {
  if (!dead_.ok()) return dead_;
  MOESAIC_CHECK_EQ(drafts.groups.size(), drafts_.size());
  // With depth 0 the module only takes the step's rows into its cache.
  const int num_levels = std::max(drafts.depth, 1);
  tokens->groups.resize(drafts.groups.size());
  for (size_t group = 0; group < drafts.groups.size(); ++group) {
    drafts_[group].assign(plan.groups[group], drafts.groups[group], num_levels);
    tokens->groups[group].assign(drafts.groups[group].chunks.size() * drafts.depth, -1);
  }
  dead_ = run_ranks_([&](const RankContext& context, const RankModel& model) {
    return annotate(draft_rank(plan, num_levels, context, model, tokens),
                    str_cat("rank ", context.rank, ", draft module"));
  });
  return dead_;
}

absl::Status ModelExecutor::draft_rank(const StepPlan& plan, int depth, const RankContext& context,
                                       const RankModel& model, DraftTokens* tokens) {
  const int group = options_.layout.dp_rank(context.rank);
  for (int level = 0; level < depth; ++level) {
    ForwardResult result;
    MOESAIC_RETURN_IF_ERROR(draft_level(plan.step_id, depth, level, context, model, &result));
    const std::span<const int32_t> chunks = drafts_[group].guess_chunks(level);
    MOESAIC_RETURN_IF_ERROR(take_guesses(context, result, static_cast<int64_t>(chunks.size())));
    if (options_.layout.tp_rank(context.rank) != 0) continue;
    for (size_t i = 0; i < chunks.size(); ++i) {
      tokens->groups[group][chunks[i] * depth + level] = ranks_[context.rank].ids[i];
    }
  }
  return absl::OkStatus();
}

absl::Status ModelExecutor::draft_level(int64_t step_id, int depth, int level, const RankContext& context,
                                        const RankModel& model, ForwardResult* result) {
  const DraftBatch& draft = drafts_[options_.layout.dp_rank(context.rank)];
  RankState& state = ranks_[context.rank];
  const int32_t num_prefill = level == 0 ? draft.num_prefill_rows() : 0;
  const LockstepRecord mine{.step_id = step_id,
                            .num_prefill_tokens = num_prefill,
                            .num_decode_tokens = draft.num_rows(level) - num_prefill,
                            .draft_depth = depth};
  MOESAIC_ASSIGN_OR_RETURN(const LockstepDecision decision,
                           lockstep(*context.world, mine, options_.max_low_latency_tokens));
  ForwardBatch batch = draft.forward_batch(level);
  batch.a2a_mode = decision.a2a_mode;
  // The rows that go on move to the front, where the module reads them before it writes there.
  const std::span<const int32_t> rows = draft.hidden_rows(level);
  const Tensor hidden = state.hidden.rows(0, static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == static_cast<int32_t>(i)) continue;
    std::copy_n(state.hidden.row<float>(rows[i]), hidden.dim(1), hidden.row<float>(static_cast<int64_t>(i)));
  }
  std::span<const int32_t> next_ids = draft.next_ids();
  if (level > 0) {
    const std::span<const int32_t> from = draft.guess_rows(level);
    for (size_t i = 0; i < from.size(); ++i) state.ids[i] = state.ids[from[i]];
    next_ids = std::span(state.ids).first(from.size());
  }
  MOESAIC_RETURN_IF_ERROR(model.forward_mtp(context, batch, hidden, next_ids, result));
  state.hidden = result->hidden;
  return absl::OkStatus();
}

// The best token of every logit row. Only the first TP rank has logits; the others get the ids as its part of a sum,
// which is exact: ids are below 2^24.
absl::Status ModelExecutor::take_guesses(const RankContext& context, const ForwardResult& result, int64_t num_guesses) {
  MOESAIC_CHECK_LT(options_.vocab_size, int64_t{1} << 24);
  RankState& state = ranks_[context.rank];
  state.ids.assign(num_guesses, 0);
  if (options_.layout.tp_rank(context.rank) == 0) {
    for (int64_t i = 0; i < num_guesses; ++i) {
      const std::span<const float> row(result.logits.row<float>(i), options_.vocab_size);
      state.ids[i] = std::max(sample_token({.logits = row, .temperature = 0.0f}), 0);  // all NaN: any guess will do
    }
  }
  if (options_.layout.tp_size == 1 || num_guesses == 0) return absl::OkStatus();
  state.sum.assign(state.ids.begin(), state.ids.end());
  MOESAIC_RETURN_IF_ERROR(context.tp_group->all_reduce_sum(Tensor(state.sum.data(), DType::kF32, {num_guesses})));
  for (int64_t i = 0; i < num_guesses; ++i) state.ids[i] = static_cast<int32_t>(state.sum[i]);
  return absl::OkStatus();
}

}  // namespace moesaic
