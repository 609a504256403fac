// Multi-head latent attention. Prompt tokens take the expanded path (keys and values per head), generated tokens the
// absorbed one (queries moved into the latent space, 576-wide rows in DeepSeek-V3). DeepSeek-V2 paper, section 2.1.
#include <algorithm>
#include <cstring>

#include "model/layer_ops.h"

namespace moesaic {
namespace {

constexpr int64_t kMostParts = 8;  // of the heads

// Matrix [a, b * c] seen as [a, b, c].
Tensor by_head(const Tensor& matrix, int64_t heads) {
  MOESAIC_CHECK(matrix.is_contiguous());
  return Tensor(matrix.raw(), matrix.dtype(), {matrix.dim(0), heads, matrix.dim(1) / heads});
}

// q [run tokens, heads * (nope + rope)] of some heads, not rotated; from the arena if it is made here.
Tensor queries(const LayerContext& context, const MicroBatch& batch, const AttentionRun& run, Range heads) {
  const RankShape& shape = context.shape;
  const Tensor q_a = batch.q_a.rows(run.tokens.begin, run.tokens.end);
  if (shape.q_lora == 0) return q_a.cols(heads.begin * shape.qk(), heads.end * shape.qk());
  const PackedWeight q_b = context.weights.mla.q_b.rows(heads.begin * shape.qk(), heads.end * shape.qk());
  const Tensor q = context.arena.alloc(DType::kF32, {run.tokens.size(), q_b.n()});
  linear(context.stream, {.x = q_a, .weight = &q_b, .bias = Tensor(), .y = q});
  return q;
}

// The rotated parts of q into those of y [run tokens, heads * any width].
void rotate_queries(const LayerContext& context, const MicroBatch& batch, const AttentionRun& run, const Tensor& q,
                    int64_t num_heads, const Tensor& y) {
  rope(context.stream, {.x = q,
                        .num_heads = num_heads,
                        .table = context.rope_table,
                        .positions = batch.positions.subspan(run.tokens.begin, run.tokens.size()),
                        .y = y});
}

// Queries into the latent space (W_UK^T q_nope, with the rotated part beside it), attention there, values back out.
void run_absorbed(const LayerContext& context, const MicroBatch& batch, const AttentionRun& run, const Tensor& out) {
  const RankShape& shape = context.shape;
  const int64_t num_tokens = run.tokens.size();
  Arena::Scope scope(context.arena);
  const Tensor q = queries(context, batch, run, {0, shape.heads});
  const Tensor q_rows = context.arena.alloc(DType::kF32, {num_tokens, shape.heads * shape.latent()});
  const Tensor q_latent = by_head(q_rows, shape.heads);
  rotate_queries(context, batch, run, q, shape.heads, q_rows);
  head_linear(context.stream, {.x = by_head(q, shape.heads), .weights = context.weights.mla.absorb_q, .y = q_latent});
  const Tensor o_latent = context.arena.alloc(DType::kF32, {num_tokens, shape.heads, shape.lora});
  mla_decode(context.stream, {.q = q_latent,
                              .cache = context.cache,
                              .spans = run.spans,
                              .softmax_scale = context.config.softmax_scale(),
                              .out = o_latent,
                              .arena = &context.arena});
  head_linear(context.stream, {.x = o_latent, .weights = context.weights.mla.absorb_v, .y = by_head(out, shape.heads)});
}

void run_expanded(const LayerContext& context, const MicroBatch& batch, const AttentionRun& run, const Tensor& out) {
  const RankShape& shape = context.shape;
  const int64_t both = shape.nope + shape.v, at_once = heads_at_once(shape, run.tokens.size());
  for (int64_t head = 0; head < shape.heads; head += at_once) {
    const Range heads = {head, head + at_once};
    const PackedWeight kv_b = context.weights.mla.kv_b.rows(heads.begin * both, heads.end * both);
    Arena::Scope scope(context.arena);
    const Tensor q = queries(context, batch, run, heads);
    rotate_queries(context, batch, run, q, at_once, q);
    mla_prefill(context.stream, {.q = q,
                                 .cache = context.cache,
                                 .kv_b = &kv_b,
                                 .fp8 = context.fp8 && kv_b.dtype() == DType::kE4M3,
                                 .nope_dim = shape.nope,
                                 .v_dim = shape.v,
                                 .spans = run.spans,
                                 .softmax_scale = context.config.softmax_scale(),
                                 .out = out.cols(heads.begin * shape.v, heads.end * shape.v),
                                 .arena = &context.arena});
  }
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
  const Tensor keys = latent.cols(shape.lora, shape.latent());
  rope(context.stream,
       {.x = keys, .table = context.rope_table, .positions = batch.positions.subspan(begin, latent.dim(0)), .y = keys});
  append_latent(context.stream, context.cache, latent, batch.slots.subspan(begin, latent.dim(0)));
}

// What queries() starts from, out of its part of project_inputs.
void keep_q_a(const LayerContext& context, const Tensor& from, const Tensor& q_a) {
  const MlaWeights& mla = context.weights.mla;
  if (context.shape.q_lora == 0) {
    for (int64_t t = 0; t < q_a.dim(0); ++t) {
      std::memcpy(q_a.row<float>(t), from.row<float>(t), q_a.dim(1) * sizeof(float));
    }
    return;
  }
  rms_norm(context.stream, {.x = from, .weight = mla.q_a_norm.tensor, .eps = context.config.rms_norm_eps, .y = q_a});
  if (context.fp8 && mla.q_b.dtype() == DType::kE4M3) round_trip_fp8(context.stream, q_a, q_a);
}

}  // namespace

int64_t heads_at_once(const RankShape& shape, int64_t num_tokens) {
  int64_t at_once = shape.heads;
  for (int64_t parts = 2; parts <= kMostParts && num_tokens * at_once > kTokenSlice * shape.heads; parts *= 2) {
    const int64_t fewer = shape.heads / parts;
    const bool fits = shape.heads % parts == 0 && fewer * shape.qk() % PackedWeight::kScaleCols == 0 &&
                      fewer * (shape.nope + shape.v) % PackedWeight::kScaleCols == 0;
    if (!fits) break;
    at_once = fewer;
  }
  return at_once;
}

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
  const int64_t q_a_width = shape.q_lora > 0 ? shape.q_lora : shape.heads * shape.qk();
  batch.q_a = context.arena.alloc(DType::kF32, {num_tokens, q_a_width});
  for (int64_t begin = 0; begin < num_tokens; begin += kTokenSlice) {
    const int64_t end = std::min(begin + kTokenSlice, num_tokens);
    Arena::Scope scope(context.arena);
    const Tensor qkv_a = project_inputs(context, batch, begin, end);
    keep_q_a(context, qkv_a.cols(0, q_a_width), batch.q_a.rows(begin, end));
    append_rows(context, batch, qkv_a.cols(q_a_width, qkv_a.dim(1)), begin);
  }
  return absl::OkStatus();
}

absl::Status attention_core(const LayerContext& context, MicroBatch& batch) {
  const RankShape& shape = context.shape;
  const MlaWeights& mla = context.weights.mla;
  batch.attn = context.arena.alloc(DType::kF32, {batch.num_tokens, shape.heads * shape.v});
  for (const AttentionRun& run : batch.runs) {
    const Tensor rows = batch.attn.rows(run.tokens.begin, run.tokens.end);
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
