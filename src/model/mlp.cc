// The dense feed-forward network, and what dense and MoE layers share: the norm before and the residual after. Work is
// split by tokens between the TP ranks of a group (data-parallel), then gathered; a dense FFN's hidden layer may be
// split too.
#include <algorithm>

#include "model/layer_ops.h"

namespace moesaic {

void quantised_linear(const LayerContext& context, const Tensor& x, const PackedWeight& weight, const Tensor& bias,
                      const Tensor& y) {
  if (!context.fp8 || weight.dtype() != DType::kE4M3) {
    linear(context.stream, {.x = x, .weight = &weight, .bias = bias, .y = y});
    return;
  }
  Arena::Scope scope(context.arena);
  const Tensor rounded = context.arena.alloc(DType::kF32, x.shape());
  round_trip_fp8(context.stream, x, rounded);
  linear(context.stream, {.x = rounded, .weight = &weight, .bias = bias, .y = y});
}

void mlp_forward(const LayerContext& context, const MlpWeights& weights, const Tensor& x, const Tensor& y) {
  const bool fp8 = context.fp8 && weights.down.dtype() == DType::kE4M3;
  for (int64_t begin = 0; begin < x.dim(0); begin += kFfnSlice) {
    const int64_t end = std::min(begin + kFfnSlice, x.dim(0));
    Arena::Scope scope(context.arena);
    const Tensor gate_up = context.arena.alloc(DType::kF32, {end - begin, weights.gate_up.n()});
    quantised_linear(context, x.rows(begin, end), weights.gate_up, Tensor(), gate_up);
    const Tensor act = context.arena.alloc(DType::kF32, {end - begin, weights.down.k()});
    silu_mul(context.stream, {.gate_up = gate_up, .y = act, .fp8 = fp8});
    linear(context.stream, {.x = act, .weight = &weights.down, .bias = Tensor(), .y = y.rows(begin, end)});
  }
}

absl::Status post_attention_norm(const LayerContext& context, MicroBatch& batch) {
  rms_norm(context.stream, {.x = batch.x,
                            .weight = context.weights.post_norm.tensor,
                            .eps = context.config.rms_norm_eps,
                            .y = batch.normed});
  context.report("post_norm", batch.normed);
  batch.ffn_sum = Tensor();
  batch.ffn_out = context.arena.alloc(DType::kF32, {batch.ffn_slice, context.shape.hidden});
  return absl::OkStatus();
}

absl::Status dense_ffn(const LayerContext& context, MicroBatch& batch) {
  const ParallelLayout& layout = context.options.layout;
  if (layout.moe_dense_tp_size == 1) return shared_ffn(context, batch);
  // The sum over the TP group adds the parts of each token and gathers the tokens at once.
  const Range mine = layout.dense_tokens(batch.num_tokens, layout.tp_rank(context.rank.rank));
  batch.ffn_sum = context.arena.alloc(DType::kF32, {batch.num_tokens, context.shape.hidden});
  std::fill_n(batch.ffn_sum.f32(), batch.ffn_sum.num_elements(), 0.0f);
  mlp_forward(context, context.weights.mlp, batch.normed.rows(mine.begin, mine.end),
              batch.ffn_sum.rows(mine.begin, mine.end));
  return context.rank.tp_group->all_reduce_sum(batch.ffn_sum);
}

absl::Status shared_ffn(const LayerContext& context, MicroBatch& batch) {
  const Range mine = batch.ffn_tokens;
  mlp_forward(context, context.weights.mlp, batch.normed.rows(mine.begin, mine.end),
              batch.ffn_out.rows(0, mine.size()));
  return absl::OkStatus();
}

absl::Status ffn_residual(const LayerContext& context, MicroBatch& batch) {
  Tensor out = batch.ffn_sum.defined() ? batch.ffn_sum : batch.ffn_out;
  if (context.rank.tp_group != nullptr && !batch.ffn_sum.defined()) {
    const int64_t tp_size = context.options.layout.tp_size;
    out = context.arena.alloc(DType::kF32, {tp_size * batch.ffn_slice, context.shape.hidden});
    MOESAIC_RETURN_IF_ERROR(context.rank.tp_group->all_gather_rows(batch.ffn_out, out));
  }
  out = out.rows(0, batch.num_tokens);
  context.report("mlp", out);
  add_inplace(context.stream, batch.x, out);
  context.report("out", batch.x);
  return absl::OkStatus();
}

}  // namespace moesaic
