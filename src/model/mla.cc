// Multi-head latent attention. Prompt tokens take the expanded path (keys and values per head), generated tokens the
// absorbed one (queries moved into the latent space, 576-wide rows in DeepSeek-V3). DeepSeek-V2 paper, section 2.1.
#include <cstring>

#include "model/layer_ops.h"

namespace moesaic {
namespace {

// Matrix [a, b * c] seen as [a, b, c].
Tensor by_head(const Tensor& matrix, int64_t heads) {
  MOESAIC_CHECK(matrix.is_contiguous());
  return Tensor(matrix.raw(), matrix.dtype(), {matrix.dim(0), heads, matrix.dim(1) / heads});
}

// q of the absorbed runs into the latent space: W_UK^T q_nope, with the rotated part beside it.
void absorb_queries(const LayerContext& context, MicroBatch& batch) {
  const RankShape& shape = context.shape;
  batch.q_latent = context.arena.alloc(DType::kF32, {batch.num_absorbed_tokens, shape.heads, shape.latent()});
  for (const AttentionRun& run : batch.runs) {
    if (!run.is_absorbed) continue;
    const Tensor q = batch.q.rows(run.tokens.begin, run.tokens.end);
    const Tensor latent = batch.q_latent.rows(run.latent_begin, run.latent_begin + run.tokens.size());
    head_linear(context.stream, {.x = q, .weights = context.weights.mla.absorb_q, .y = latent});
    for (int64_t i = 0; i < run.tokens.size() * shape.heads; ++i) {
      std::memcpy(latent.f32() + i * shape.latent() + shape.lora, q.f32() + i * shape.qk() + shape.nope,
                  shape.rope * sizeof(float));
    }
  }
}

void run_absorbed(const LayerContext& context, const MicroBatch& batch, const AttentionRun& run, const Tensor& out) {
  const RankShape& shape = context.shape;
  Arena::Scope scope(context.arena);
  const Tensor o_latent = context.arena.alloc(DType::kF32, {run.tokens.size(), shape.heads, shape.lora});
  mla_decode(context.stream, {.q = batch.q_latent.rows(run.latent_begin, run.latent_begin + run.tokens.size()),
                              .cache = context.cache,
                              .spans = run.spans,
                              .softmax_scale = context.config.softmax_scale(),
                              .out = o_latent,
                              .arena = &context.arena});
  head_linear(context.stream, {.x = o_latent, .weights = context.weights.mla.absorb_v, .y = out});
}

void run_expanded(const LayerContext& context, const MicroBatch& batch, const AttentionRun& run, const Tensor& out) {
  const PackedWeight& kv_b = context.weights.mla.kv_b;
  Arena::Scope scope(context.arena);
  mla_prefill(context.stream, {.q = batch.q.rows(run.tokens.begin, run.tokens.end),
                               .cache = context.cache,
                               .kv_b = &kv_b,
                               .fp8 = context.fp8 && kv_b.dtype() == DType::kE4M3,
                               .nope_dim = context.shape.nope,
                               .v_dim = context.shape.v,
                               .spans = run.spans,
                               .softmax_scale = context.config.softmax_scale(),
                               .out = out,
                               .arena = &context.arena});
}

// q (or its low-rank input) and the latent row of every token, side by side in batch.qkv_a.
void project_inputs(const LayerContext& context, MicroBatch& batch) {
  const MlaWeights& mla = context.weights.mla;
  const Tensor& bias = mla.qkv_a_bias.tensor;
  const int64_t split = mla.qkv_a.n(), width = split + mla.kv_a.n();
  batch.qkv_a = context.arena.alloc(DType::kF32, {batch.num_tokens, width});
  const auto part = [&](int64_t begin, int64_t end) { return bias.defined() ? bias.rows(begin, end) : Tensor(); };
  quantised_linear(context, batch.normed, mla.qkv_a, part(0, split), batch.qkv_a.cols(0, split));
  if (!mla.kv_a.defined()) return;
  quantised_linear(context, batch.normed, mla.kv_a, part(split, width), batch.qkv_a.cols(split, width));
}

}  // namespace

absl::Status attention_inputs(const LayerContext& context, MicroBatch& batch) {
  const RankShape& shape = context.shape;
  const MlaWeights& mla = context.weights.mla;
  Stream& stream = context.stream;
  const int64_t num_tokens = batch.num_tokens;
  const float eps = context.config.rms_norm_eps;
  batch.normed = context.arena.alloc(DType::kF32, {num_tokens, shape.hidden});
  rms_norm(stream, {.x = batch.x, .weight = context.weights.input_norm.tensor, .eps = eps, .y = batch.normed});
  context.report("input_norm", batch.normed);
  project_inputs(context, batch);

  const int64_t q_width = batch.qkv_a.dim(1) - shape.latent();
  const Tensor q_a = batch.qkv_a.cols(0, q_width);
  const Tensor q = context.arena.alloc(DType::kF32, {num_tokens, shape.heads * shape.qk()});
  batch.q = by_head(q, shape.heads);
  if (shape.q_lora > 0) {
    rms_norm(stream, {.x = q_a, .weight = mla.q_a_norm.tensor, .eps = eps, .y = q_a});
    quantised_linear(context, q_a, mla.q_b, Tensor(), q);
  } else {
    for (int64_t t = 0; t < num_tokens; ++t) {
      std::memcpy(q.row<float>(t), q_a.row<float>(t), q_width * sizeof(float));
    }
  }
  rope_inplace(stream, {.x = batch.q, .table = context.rope_table, .positions = batch.positions});

  const Tensor latent = batch.qkv_a.cols(q_width, q_width + shape.latent());
  const Tensor c_kv = latent.cols(0, shape.lora);
  rms_norm(stream, {.x = c_kv, .weight = mla.kv_a_norm.tensor, .eps = eps, .y = c_kv});
  rope_inplace(
      stream,
      {.x = latent.cols(shape.lora, shape.latent()), .table = context.rope_table, .positions = batch.positions});
  append_latent(stream, context.cache, latent, batch.slots);
  absorb_queries(context, batch);
  return absl::OkStatus();
}

absl::Status attention_core(const LayerContext& context, MicroBatch& batch) {
  const RankShape& shape = context.shape;
  const MlaWeights& mla = context.weights.mla;
  batch.attn = context.arena.alloc(DType::kF32, {batch.num_tokens, shape.heads * shape.v});
  const Tensor out = by_head(batch.attn, shape.heads);
  for (const AttentionRun& run : batch.runs) {
    const Tensor rows = out.rows(run.tokens.begin, run.tokens.end);
    run.is_absorbed ? run_absorbed(context, batch, run, rows) : run_expanded(context, batch, run, rows);
  }
  const Tensor projected = batch.normed;  // no longer needed as input
  quantised_linear(context, batch.attn, mla.o, mla.o_bias.tensor, projected);
  if (context.rank.tp_group != nullptr) MOESAIC_RETURN_IF_ERROR(context.rank.tp_group->all_reduce_sum(projected));
  context.report("attn", projected);
  add_inplace(context.stream, batch.x, projected);
  return absl::OkStatus();
}

}  // namespace moesaic
