// Multi-head latent attention. Prompt tokens take the expanded path (keys and values per head), generated tokens the
// absorbed one (queries moved into the latent space, 576-wide rows in DeepSeek-V3). DeepSeek-V2 paper, section 2.1.
#include <algorithm>
#include <cstring>

#include "model/layer_ops.h"

namespace moesaic {
namespace {

// Matrix [a, b * c] seen as [a, b, c].
Tensor by_head(const Tensor& matrix, int64_t heads) {
  MOESAIC_CHECK(matrix.is_contiguous());
  return Tensor(matrix.raw(), matrix.dtype(), {matrix.dim(0), heads, matrix.dim(1) / heads});
}

// Queries into the latent space (W_UK^T q_nope, with the rotated part beside it), attention there, values back out.
void run_absorbed(const LayerContext& context, const MicroBatch& batch, const AttentionRun& run, const Tensor& out) {
  const RankShape& shape = context.shape;
  const int64_t num_tokens = run.tokens.size();
  Arena::Scope scope(context.arena);
  const Tensor q = batch.q.rows(run.tokens.begin, run.tokens.end);
  const Tensor q_latent = context.arena.alloc(DType::kF32, {num_tokens, shape.heads, shape.latent()});
  head_linear(context.stream, {.x = q, .weights = context.weights.mla.absorb_q, .y = q_latent});
  for (int64_t i = 0; i < num_tokens * shape.heads; ++i) {
    std::memcpy(q_latent.f32() + i * shape.latent() + shape.lora, q.f32() + i * shape.qk() + shape.nope,
                shape.rope * sizeof(float));
  }
  const Tensor o_latent = context.arena.alloc(DType::kF32, {num_tokens, shape.heads, shape.lora});
  mla_decode(context.stream, {.q = q_latent,
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

// [tokens, q_lora or heads * qk | latent]: q (or its low-rank input) and the latent row of tokens [begin, end).
Tensor project_inputs(const LayerContext& context, const MicroBatch& batch, int64_t begin, int64_t end) {
  const MlaWeights& mla = context.weights.mla;
  const Tensor& bias = mla.qkv_a_bias.tensor;
  const int64_t split = mla.qkv_a.n(), width = split + mla.kv_a.n();
  const Tensor normed = batch.normed.rows(begin, end);
  const Tensor qkv_a = context.arena.alloc(DType::kF32, {end - begin, width});
  const auto part = [&](int64_t from, int64_t to) { return bias.defined() ? bias.rows(from, to) : Tensor(); };
  quantised_linear(context, normed, mla.qkv_a, part(0, split), qkv_a.cols(0, split));
  if (mla.kv_a.defined()) quantised_linear(context, normed, mla.kv_a, part(split, width), qkv_a.cols(split, width));
  return qkv_a;
}

// The latent rows of tokens [begin, end), normalised and rotated, into the cache.
void append_rows(const LayerContext& context, const MicroBatch& batch, const Tensor& latent, int64_t begin) {
  const RankShape& shape = context.shape;
  const Tensor c_kv = latent.cols(0, shape.lora);
  rms_norm(context.stream,
           {.x = c_kv, .weight = context.weights.mla.kv_a_norm.tensor, .eps = context.config.rms_norm_eps, .y = c_kv});
  rope_inplace(context.stream, {.x = latent.cols(shape.lora, shape.latent()),
                                .table = context.rope_table,
                                .positions = batch.positions.subspan(begin, latent.dim(0))});
  append_latent(context.stream, context.cache, latent, batch.slots.subspan(begin, latent.dim(0)));
}

// q of tokens [begin, end) from its part of project_inputs.
void make_queries(const LayerContext& context, const Tensor& q_a, const Tensor& q) {
  const MlaWeights& mla = context.weights.mla;
  if (context.shape.q_lora == 0) {
    for (int64_t t = 0; t < q.dim(0); ++t) std::memcpy(q.row<float>(t), q_a.row<float>(t), q.dim(1) * sizeof(float));
    return;
  }
  rms_norm(context.stream, {.x = q_a, .weight = mla.q_a_norm.tensor, .eps = context.config.rms_norm_eps, .y = q_a});
  quantised_linear(context, q_a, mla.q_b, Tensor(), q);
}

}  // namespace

absl::Status attention_inputs(const LayerContext& context, MicroBatch& batch) {
  const RankShape& shape = context.shape;
  const int64_t num_tokens = batch.num_tokens;
  batch.normed = context.arena.alloc(DType::kF32, {num_tokens, shape.hidden});
  rms_norm(context.stream, {.x = batch.x,
                            .weight = context.weights.input_norm.tensor,
                            .eps = context.config.rms_norm_eps,
                            .y = batch.normed});
  context.report("input_norm", batch.normed);
  batch.attention_mark = context.arena.mark();
  const Tensor q = context.arena.alloc(DType::kF32, {num_tokens, shape.heads * shape.qk()});
  batch.q = by_head(q, shape.heads);
  for (int64_t begin = 0; begin < num_tokens; begin += kTokenSlice) {
    const int64_t end = std::min(begin + kTokenSlice, num_tokens);
    Arena::Scope scope(context.arena);
    const Tensor qkv_a = project_inputs(context, batch, begin, end);
    const int64_t q_width = qkv_a.dim(1) - shape.latent();
    make_queries(context, qkv_a.cols(0, q_width), q.rows(begin, end));
    append_rows(context, batch, qkv_a.cols(q_width, qkv_a.dim(1)), begin);
  }
  rope_inplace(context.stream, {.x = batch.q, .table = context.rope_table, .positions = batch.positions});
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
  context.arena.release(batch.attention_mark);
  if (context.rank.tp_group != nullptr) MOESAIC_RETURN_IF_ERROR(context.rank.tp_group->all_reduce_sum(projected));
  context.report("attn", projected);
  add_inplace(context.stream, batch.x, projected);
  return absl::OkStatus();
}

}  // namespace moesaic
