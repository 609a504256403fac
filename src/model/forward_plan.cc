#include "model/forward_plan.h"

#include <algorithm>

namespace moesaic {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int32_t kMaxAbsorbedQueries = 8;  // of one span (mla_decode)

// A sequence's generated tokens may come in pieces of at least kMaxAbsorbedQueries (the last one may be shorter).
int64_t max_pieces(const ModelOptions& options) {
  return options.max_chunks + options.max_tokens_per_step / kMaxAbsorbedQueries;
}

// Adds tensors up as the Arena does.
class BytesSum {
 public:
  void add(DType dtype, int64_t elements) {
    const int64_t bytes = elements * dtype_bytes(dtype);
    total_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  void add_f32(int64_t elements) { add(DType::kF32, elements); }
  int64_t total() const { return total_; }

 private:
  int64_t total_ = 0;
};

int64_t mlp_bytes(int64_t num_rows, int64_t hidden, int64_t intermediate, bool fp8) {
  BytesSum sum;
  sum.add_f32(num_rows * 2 * intermediate);
  sum.add_f32(num_rows * intermediate);
  if (fp8) sum.add_f32(num_rows * hidden);
  return sum.total();
}

// The rows are those of the AllToAll; the hidden layer takes them in slices.
int64_t expert_bytes(const ModelConfig& config, const ModelOptions& options) {
  if (config.n_routed_experts == 0) return 0;
  const AllToAllOptions a2a = DeepseekModel::all_to_all_options(config, options);
  const int64_t capacity =
      std::max(AllToAll::capacity_rows(a2a, A2aMode::kNormal), AllToAll::capacity_rows(a2a, A2aMode::kLowLatency));
  BytesSum slices;
  slices.add(DType::kI32, 3 * options.layout.slots_per_rank(config.n_routed_experts));
  return slices.total() + mlp_bytes(std::min(capacity, kFfnSlice), config.hidden_size, config.moe_intermediate_size,
                                    /*fp8=*/false);
}

// q_a, then the projections in slices, or the attention output and what its paths need.
int64_t attention_bytes(const ModelConfig& config, const ModelOptions& options) {
  const RankShape shape = rank_shape(config, options.layout);
  const int64_t tokens = options.max_tokens_per_step;
  const bool fp8 = options.activations == ActivationMode::kFp8;
  const int64_t q_a_width = shape.q_lora > 0 ? shape.q_lora : shape.heads * shape.qk();
  const LatentCache cache = {
      .rows = Tensor(nullptr, options.kv_dtype, {0, latent_row_elements(options.kv_dtype, shape.lora, shape.rope)}),
      .block_tokens = options.kv_block_tokens,
      .kv_lora_rank = shape.lora,
      .rope_dim = shape.rope};
  BytesSum q_a, inputs, attn, rounded;
  q_a.add_f32(tokens * q_a_width);
  const int64_t slice = std::min(tokens, kTokenSlice);
  inputs.add_f32(slice * (q_a_width + shape.latent()));
  if (fp8) inputs.add_f32(slice * shape.hidden);
  attn.add_f32(tokens * shape.heads * shape.v);
  if (fp8) rounded.add_f32(tokens * shape.heads * shape.v);
  const int64_t run = std::min(tokens, kMaxAbsorbedRun);
  BytesSum absorbed;
  absorbed.add_f32(shape.q_lora > 0 ? run * shape.heads * shape.qk() : 0);
  absorbed.add_f32(run * shape.heads * shape.latent());
  absorbed.add_f32(run * shape.heads * shape.lora);
  const int64_t decode = absorbed.total() + mla_decode_arena_bytes(run, shape.heads, options.max_position, cache);
  // The most tokens for each number of heads: fewer heads at once may make up for more tokens, or not quite.
  int64_t prefill = 0, heads = 0;
  for (int64_t count = tokens; heads < shape.heads; count = kTokenSlice * shape.heads / (2 * heads)) {
    heads = heads_at_once(shape, count);
    BytesSum q;
    q.add_f32(shape.q_lora > 0 ? count * heads * shape.qk() : 0);
    prefill = std::max(prefill, q.total() + mla_prefill_arena_bytes(count, heads, shape.nope, shape.v, cache));
  }
  return q_a.total() + std::max(inputs.total(), attn.total() + std::max({decode, prefill, rounded.total()}));
}

int64_t ffn_bytes(const ModelConfig& config, const ModelOptions& options) {
  const int64_t hidden = config.hidden_size, tp_size = options.layout.tp_size;
  const int64_t slice = options.layout.ffn_slice(options.max_tokens_per_step);
  const int64_t dense_tp = options.layout.moe_dense_tp_size;
  const bool fp8 = options.activations == ActivationMode::kFp8;
  BytesSum lasting, gate, routed, gathered;
  lasting.add_f32(slice * hidden);                               // ffn_out
  lasting.add(DType::kI32, slice * config.num_experts_per_tok);  // topk_ids
  lasting.add_f32(slice * config.num_experts_per_tok);           // topk_weights
  gate.add_f32(slice * config.n_routed_experts);
  routed.add_f32(slice * hidden);
  if (tp_size > 1) gathered.add_f32(tp_size * slice * hidden);
  const int64_t shared =
      mlp_bytes(std::min(slice, kFfnSlice), hidden, config.n_shared_experts * config.moe_intermediate_size, fp8);
  BytesSum sum;
  sum.add_f32(dense_tp > 1 ? options.max_tokens_per_step * hidden : 0);
  const int64_t dense =
      sum.total() + mlp_bytes(std::min(dense_tp * slice, kFfnSlice), hidden, config.intermediate_size / dense_tp, fp8);
  return lasting.total() +
         std::max({gate.total(), shared, dense, expert_bytes(config, options), routed.total(), gathered.total()});
}

}  // namespace

RankShape rank_shape(const ModelConfig& config, const ParallelLayout& layout) {
  return {.hidden = config.hidden_size,
          .heads = config.num_attention_heads / layout.tp_size,
          .nope = config.qk_nope_head_dim,
          .rope = config.qk_rope_head_dim,
          .v = config.v_head_dim,
          .lora = config.kv_lora_rank,
          .q_lora = config.q_lora_rank};
}

int64_t kv_layers(const ModelConfig& config, const ModelOptions& options) {
  return config.num_hidden_layers + (options.load_mtp ? 1 : 0);
}

int64_t kv_row_bytes(const ModelConfig& config, DType kv_dtype) {
  return latent_row_elements(kv_dtype, config.kv_lora_rank, config.qk_rope_head_dim) * dtype_bytes(kv_dtype);
}

int64_t ForwardWorkspace::total() const {
  return residual + std::max({normed + std::max(attention, ffn), logits, mtp_input});
}

ForwardWorkspace forward_workspace(const ModelConfig& config, const ModelOptions& options) {
  BytesSum rows, logits, mtp_input;
  rows.add_f32(options.max_tokens_per_step * config.hidden_size);
  logits.add_f32(options.max_logit_rows * config.vocab_size);
  logits.add_f32(options.max_logit_rows * config.hidden_size);
  if (options.load_mtp) mtp_input.add_f32(options.max_tokens_per_step * 2 * config.hidden_size);
  return {.residual = rows.total(),
          .normed = rows.total(),
          .attention = attention_bytes(config, options),
          .ffn = ffn_bytes(config, options),
          .logits = logits.total(),
          .mtp_input = mtp_input.total()};
}

absl::Status validate_options(const ModelConfig& config, const ModelOptions& options) {
  MOESAIC_RETURN_IF_ERROR(options.layout.validate_heads(config.num_attention_heads));
  MOESAIC_RETURN_IF_ERROR(options.layout.validate_dense(config.intermediate_size));
  const auto positive = [](std::string_view name, int64_t value) {
    if (value > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(str_cat(name, ": expected at least 1, found ", value));
  };
  MOESAIC_RETURN_IF_ERROR(positive("num_kv_blocks", options.num_kv_blocks));
  MOESAIC_RETURN_IF_ERROR(positive("kv_block_tokens", options.kv_block_tokens));
  MOESAIC_RETURN_IF_ERROR(positive("max_tokens_per_step", options.max_tokens_per_step));
  MOESAIC_RETURN_IF_ERROR(positive("max_chunks", options.max_chunks));
  MOESAIC_RETURN_IF_ERROR(positive("max_decode_tokens", options.max_decode_tokens));
  MOESAIC_RETURN_IF_ERROR(positive("max_position", options.max_position));
  MOESAIC_RETURN_IF_ERROR(positive("max_logit_rows", options.max_logit_rows));
  if (options.kv_dtype != DType::kF32 && options.kv_dtype != DType::kBF16 && options.kv_dtype != DType::kE4M3) {
    return absl::InvalidArgumentError(
        str_cat("--kv-cache-dtype: expected f32, bf16 or fp8, found ", dtype_name(options.kv_dtype)));
  }
  const int64_t shard = config.num_attention_heads / options.layout.tp_size * config.v_head_dim;
  if (options.activations == ActivationMode::kFp8 && config.fp8_weights && options.layout.tp_size > 1 &&
      shard % 128 != 0) {
    return absl::InvalidArgumentError(str_cat("--activations fp8 quantises groups of 128 channels, but --tp-size ",
                                              options.layout.tp_size, " splits the attention output into shards of ",
                                              shard, "; use a smaller --tp-size or --activations f32"));
  }
  const int64_t columns = config.intermediate_size / options.layout.moe_dense_tp_size;
  if (options.activations == ActivationMode::kFp8 && config.fp8_weights && options.layout.moe_dense_tp_size > 1 &&
      columns % 128 != 0) {
    return absl::InvalidArgumentError(
        str_cat("--activations fp8 quantises groups of 128 channels, but --moe-dense-tp-size ",
                options.layout.moe_dense_tp_size, " splits intermediate_size into shards of ", columns,
                "; use a smaller --moe-dense-tp-size or --activations f32"));
  }
  return absl::OkStatus();
}

ForwardPlan::ForwardPlan(const ModelOptions& options, int tp_rank) : options_(options), tp_rank_(tp_rank) {
  positions_.reserve(options.max_tokens_per_step);
  slots_.reserve(options.max_tokens_per_step);
  // A piece becomes one span, and one more for every kMaxAbsorbedQueries of its tokens.
  spans_.reserve(max_pieces(options) + options.max_tokens_per_step / kMaxAbsorbedQueries);
  runs_.reserve(max_pieces(options) + options.max_tokens_per_step / (kMaxAbsorbedRun - kMaxAbsorbedQueries) + 1);
}

void ForwardPlan::add_tokens(const SequenceChunk& chunk) {
  const int64_t block_tokens = options_.kv_block_tokens;
  MOESAIC_CHECK_EQ(chunk.token_begin, static_cast<int32_t>(positions_.size()));
  for (int32_t p = chunk.kv_begin; p < chunk.kv_begin + chunk.num_tokens; ++p) {
    positions_.push_back(p);
    slots_.push_back(static_cast<int32_t>(chunk.block_table[p / block_tokens] * block_tokens + p % block_tokens));
  }
}

// The last run, or a new one at token `begin` when the path changes or the run is full. spans_ never grows past its
// capacity, so that the runs' views stay valid.
AttentionRun& ForwardPlan::run_for(bool is_absorbed, int64_t begin, int64_t num_queries) {
  const bool is_open = !runs_.empty() && runs_.back().is_absorbed == is_absorbed &&
                       (!is_absorbed || runs_.back().tokens.size() + num_queries <= kMaxAbsorbedRun);
  if (!is_open) {
    runs_.push_back(
        {.tokens = {begin, begin}, .is_absorbed = is_absorbed, .spans = {spans_.data() + spans_.size(), 0}});
  }
  return runs_.back();
}

void ForwardPlan::add_spans(const SequenceChunk& chunk) {
  const bool is_absorbed = !chunk.is_prefill;
  const int32_t piece = is_absorbed ? kMaxAbsorbedQueries : std::max(chunk.num_tokens, 1);
  for (int32_t at = 0; at < chunk.num_tokens; at += piece) {
    const int32_t num_queries = std::min(piece, chunk.num_tokens - at);
    AttentionRun& run = run_for(is_absorbed, chunk.token_begin + at, num_queries);
    spans_.push_back({.q_begin = static_cast<int32_t>(chunk.token_begin + at - run.tokens.begin),
                      .q_len = num_queries,
                      .kv_len = chunk.kv_begin + at + num_queries,
                      .block_table = chunk.block_table});
    run.spans = {run.spans.data(), run.spans.size() + 1};
    run.tokens.end += num_queries;
  }
}

MicroBatch ForwardPlan::build(const ForwardBatch& batch) {
  MicroBatch micro;
  micro.num_tokens = static_cast<int64_t>(batch.token_ids.size());
  micro.a2a_mode = batch.a2a_mode;
  MOESAIC_CHECK_LE(micro.num_tokens, options_.max_tokens_per_step);
  MOESAIC_CHECK_LE(static_cast<int64_t>(batch.chunks.size()), max_pieces(options_));
  positions_.clear();
  slots_.clear();
  spans_.clear();
  runs_.clear();
  for (const SequenceChunk& chunk : batch.chunks) {
    add_tokens(chunk);
    add_spans(chunk);
  }
  MOESAIC_CHECK_EQ(static_cast<int64_t>(positions_.size()), micro.num_tokens);
  micro.positions = positions_;
  micro.slots = slots_;
  micro.runs = runs_;
  micro.ffn_slice = options_.layout.ffn_slice(micro.num_tokens);
  micro.ffn_tokens = options_.layout.ffn_tokens(micro.num_tokens, tp_rank_);
  return micro;
}

}  // namespace moesaic
