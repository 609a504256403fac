// Mixture of experts: gate, dispatch, expert MLPs as grouped GEMMs, combine; the shared expert fits between send and
// receive.
#include <algorithm>

#include "model/layer_ops.h"

namespace moesaic {

absl::Status route_tokens(const LayerContext& context, MicroBatch& batch) {
  const ModelConfig& config = context.config;
  const Range mine = batch.ffn_tokens;
  batch.topk_ids = context.arena.alloc(DType::kI32, {mine.size(), config.num_experts_per_tok});
  batch.topk_weights = context.arena.alloc(DType::kF32, {mine.size(), config.num_experts_per_tok});
  Arena::Scope scope(context.arena);
  const Tensor logits = context.arena.alloc(DType::kF32, {mine.size(), config.n_routed_experts});
  linear(
      context.stream,
      {.x = batch.normed.rows(mine.begin, mine.end), .weight = &context.weights.gate, .bias = Tensor(), .y = logits});
  gate(context.stream, {.logits = logits,
                        .bias = context.weights.gate_bias.tensor,
                        .scoring_func = config.scoring_func,
                        .topk_method = config.topk_method,
                        .n_group = config.n_group,
                        .topk_group = config.topk_group,
                        .norm_topk_prob = config.norm_topk_prob,
                        .routed_scaling_factor = config.routed_scaling_factor,
                        .topk_ids = batch.topk_ids,
                        .topk_weights = batch.topk_weights});
  context.report("topk_ids", batch.topk_ids);
  context.report("topk_weights", batch.topk_weights);
  if (!context.experts.is_identity()) {
    context.experts.to_physical({batch.topk_ids.i32(), static_cast<size_t>(batch.topk_ids.num_elements())},
                                static_cast<int>(config.num_experts_per_tok), static_cast<uint32_t>(context.rank.rank));
  }
  return absl::OkStatus();
}

absl::Status dispatch_send(const LayerContext& context, MicroBatch& batch) {
  const Range mine = batch.ffn_tokens;
  return context.rank.all_to_all->dispatch_send(
      context.stream, batch.a2a_mode,
      {.x = batch.normed.rows(mine.begin, mine.end), .topk_ids = batch.topk_ids, .topk_weights = batch.topk_weights});
}

absl::Status shared_expert(const LayerContext& context, MicroBatch& batch) {
  if (!context.weights.mlp.gate_up.defined()) return absl::OkStatus();
  return shared_ffn(context, batch);
}

absl::Status dispatch_recv(const LayerContext& context, MicroBatch& batch) {
  return context.rank.all_to_all->dispatch_recv(context.stream, &batch.rows);
}

namespace {

// Cuts received rows into slices of at most kFfnSlice rows, expert by expert, whose hidden layer lies packed: what it
// takes depends neither on the worst case nor on how far apart the experts' rows are.
class ExpertSlices {
 public:
  ExpertSlices(const ExpertRows& from, Arena& arena)
      : from_(from), table_(arena.alloc(DType::kI32, {3, static_cast<int64_t>(from.group_rows.size())})) {}

  // Rows of the next slice; 0 after the last.
  int64_t next() {
    int64_t total = 0;
    const int64_t num_groups = table_.dim(1);
    std::fill_n(table_.row<int32_t>(1), num_groups, 0);
    while (group_ < num_groups && total < kFfnSlice) {
      const int64_t count = std::min<int64_t>(from_.group_rows[group_] - done_, kFfnSlice - total);
      table_.row<int32_t>(0)[group_] = static_cast<int32_t>(from_.group_begin[group_] + done_);
      table_.row<int32_t>(1)[group_] = static_cast<int32_t>(count);
      table_.row<int32_t>(2)[group_] = static_cast<int32_t>(total);
      total += count;
      done_ += count;
      if (done_ < from_.group_rows[group_]) break;  // the slice is full
      ++group_;
      done_ = 0;
    }
    return total;
  }
  std::span<const int32_t> received() const { return line(0); }  // first row of each expert's part in ExpertRows::x
  std::span<const int32_t> rows() const { return line(1); }      // rows of each part
  std::span<const int32_t> packed() const { return line(2); }    // first row of each part in the hidden layer

 private:
  std::span<const int32_t> line(int i) const { return {table_.row<int32_t>(i), static_cast<size_t>(table_.dim(1))}; }

  const ExpertRows& from_;
  const Tensor table_;
  int64_t group_ = 0;  // next row: done_ of this group
  int64_t done_ = 0;
};

}  // namespace

absl::Status run_experts(const LayerContext& context, MicroBatch& batch) {
  const ExpertWeights::Layer& experts = context.expert_weights;
  const int64_t intermediate = context.config.moe_intermediate_size;
  Arena::Scope scope(context.arena);
  ExpertSlices slices(batch.rows, context.arena);
  while (const int64_t num_rows = slices.next()) {
    Arena::Scope slice_scope(context.arena);
    const Tensor gate_up = context.arena.alloc(DType::kF32, {num_rows, 2 * intermediate});
    const Tensor act = context.arena.alloc(DType::kF32, {num_rows, intermediate});
    grouped_linear(context.stream, {.x = batch.rows.x,
                                    .weights = experts.gate_up,
                                    .group_begin = slices.received(),
                                    .group_rows = slices.rows(),
                                    .y = gate_up,
                                    .y_begin = slices.packed()});
    silu_mul(context.stream, {.gate_up = gate_up, .y = act, .fp8 = context.fp8});
    grouped_linear(context.stream, {.x = act,
                                    .weights = experts.down,
                                    .group_begin = slices.packed(),
                                    .group_rows = slices.rows(),
                                    .y = batch.rows.x,
                                    .y_begin = slices.received()});
  }
  return context.rank.all_to_all->combine_send(context.stream);
}

absl::Status combine_recv(const LayerContext& context, MicroBatch& batch) {
  const Tensor mine = batch.ffn_out.rows(0, batch.ffn_tokens.size());
  if (!context.weights.mlp.gate_up.defined()) return context.rank.all_to_all->combine_recv(context.stream, mine);
  Arena::Scope scope(context.arena);
  const Tensor routed = context.arena.alloc(DType::kF32, mine.shape());
  MOESAIC_RETURN_IF_ERROR(context.rank.all_to_all->combine_recv(context.stream, routed));
  add_inplace(context.stream, mine, routed);
  return absl::OkStatus();
}

namespace {

constexpr LayerOp kDenseOps[] = {
    {"attention_inputs", 1, attention_inputs},
    {"attention_core", 2, attention_core},
    {"post_attention_norm", 2, post_attention_norm},
    {"dense_ffn", 3, dense_ffn},
    {"ffn_residual", 5, ffn_residual},
};
constexpr LayerOp kMoeOps[] = {
    {"attention_inputs", 1, attention_inputs},
    {"attention_core", 2, attention_core},
    {"post_attention_norm", 2, post_attention_norm},
    {"route_tokens", 2, route_tokens},
    {"dispatch_send", 3, dispatch_send},
    {"shared_expert", 3, shared_expert},
    {"dispatch_recv", 4, dispatch_recv},
    {"run_experts", 4, run_experts},
    {"combine_recv", 5, combine_recv},
    {"ffn_residual", 5, ffn_residual},
};

}  // namespace

std::span<const LayerOp> dense_layer_ops() {
  return kDenseOps;
}
std::span<const LayerOp> moe_layer_ops() {
  return kMoeOps;
}

}  // namespace moesaic
