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

int64_t expert_bytes(const ModelConfig& config, const ModelOptions& options) {
  if (config.n_routed_experts == 0) return 0;
  const AllToAllOptions a2a = DeepseekModel::all_to_all_options(config, options);
  const int64_t rows =
      std::max(AllToAll::capacity_rows(a2a, A2aMode::kNormal), AllToAll::capacity_rows(a2a, A2aMode::kLowLatency));
  return mlp_bytes(rows, config.hidden_size, config.moe_intermediate_size, /*fp8=*/false);
}

}  // namespace

int64_t forward_arena_bytes(const ModelConfig& config, const ModelOptions& options) {
  const int64_t tokens = options.max_tokens_per_step;
  const int64_t decode = tokens;  // tokens recomputed after a preemption take the decode path too
  const int64_t tp_size = options.layout.tp_size, hidden = config.hidden_size;
  const int64_t heads = config.num_attention_heads / tp_size;
  const int64_t slice = (tokens + tp_size - 1) / tp_size;
  const bool fp8 = options.activations == ActivationMode::kFp8;
  const int64_t q_width = config.q_lora_rank > 0 ? config.q_lora_rank : heads * config.qk_head_dim();
  const LatentCache cache = {.rows = Tensor(),
                             .block_tokens = options.kv_block_tokens,
                             .kv_lora_rank = config.kv_lora_rank,
                             .rope_dim = config.qk_rope_head_dim};
  BytesSum lasting;                                              // from one stage of a layer to a later one
  lasting.add_f32(tokens * hidden);                              // x
  lasting.add_f32(tokens * hidden);                              // normed
  lasting.add_f32(tokens * (q_width + config.latent_dim()));     // qkv_a
  lasting.add_f32(tokens * heads * config.qk_head_dim());        // q
  lasting.add_f32(decode * heads * config.latent_dim());         // q_latent
  lasting.add_f32(tokens * heads * config.v_head_dim);           // attn
  lasting.add(DType::kI32, slice * config.num_experts_per_tok);  // topk_ids
  lasting.add_f32(slice * config.num_experts_per_tok);           // topk_weights
  lasting.add_f32(slice * hidden);                               // ffn_out
  lasting.add_f32(tp_size * slice * hidden);                     // gathered ffn_out

  const int64_t widest_input =
      std::max({2 * hidden, config.q_lora_rank, heads * config.v_head_dim, config.intermediate_size});
  const int64_t decode_scratch = decode * heads * config.kv_lora_rank * int64_t{sizeof(float)} + kAlignment +
                                 mla_decode_arena_bytes(decode, heads, options.max_position, cache);
  const int64_t prefill_scratch =
      mla_prefill_arena_bytes(tokens, heads, config.qk_nope_head_dim, config.v_head_dim, cache);
  const int64_t widest_mlp = std::max(config.intermediate_size, config.n_shared_experts * config.moe_intermediate_size);
  const int64_t scratch =
      std::max({decode_scratch, prefill_scratch, tokens * widest_input * int64_t{sizeof(float)} + kAlignment,
                mlp_bytes(slice, hidden, widest_mlp, fp8),
                slice * (config.n_routed_experts + hidden) * int64_t{sizeof(float)} + 2 * kAlignment,
                expert_bytes(config, options)});
  BytesSum head;
  head.add_f32(tokens * config.vocab_size);  // every token's logits may be wanted
  head.add_f32(tokens * hidden);
  return lasting.total() + std::max(scratch, head.total());
}

absl::Status validate_options(const ModelConfig& config, const ModelOptions& options) {
  MOESAIC_RETURN_IF_ERROR(options.layout.validate_heads(config.num_attention_heads));
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
  if (options.kv_dtype != DType::kF32 && options.kv_dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        str_cat("--kv-cache-dtype: expected f32 or bf16, found ", dtype_name(options.kv_dtype)));
  }
  const int64_t shard = config.num_attention_heads / options.layout.tp_size * config.v_head_dim;
  if (options.activations == ActivationMode::kFp8 && config.fp8_weights && options.layout.tp_size > 1 &&
      shard % 128 != 0) {
    return absl::InvalidArgumentError(str_cat("--activations fp8 quantises groups of 128 channels, but --tp-size ",
                                              options.layout.tp_size, " splits the attention output into shards of ",
                                              shard, "; use a smaller --tp-size or --activations f32"));
  }
  return absl::OkStatus();
}

ForwardPlan::ForwardPlan(const ModelOptions& options, int tp_rank) : options_(options), tp_rank_(tp_rank) {
  positions_.reserve(options.max_tokens_per_step);
  slots_.reserve(options.max_tokens_per_step);
  // A piece becomes one span, and one more for every kMaxAbsorbedQueries of its tokens.
  spans_.reserve(max_pieces(options) + options.max_tokens_per_step / kMaxAbsorbedQueries);
  runs_.reserve(max_pieces(options));
}

void ForwardPlan::add_tokens(const SequenceChunk& chunk) {
  const int64_t block_tokens = options_.kv_block_tokens;
  MOESAIC_CHECK_EQ(chunk.token_begin, static_cast<int32_t>(positions_.size()));
  for (int32_t p = chunk.kv_begin; p < chunk.kv_begin + chunk.num_tokens; ++p) {
    positions_.push_back(p);
    slots_.push_back(static_cast<int32_t>(chunk.block_table[p / block_tokens] * block_tokens + p % block_tokens));
  }
}

// Appends to the last run, or opens one when the path changes. spans_ never grows past its capacity, so that the runs'
// views stay valid.
void ForwardPlan::add_spans(const SequenceChunk& chunk, MicroBatch& micro) {
  const bool is_absorbed = !chunk.is_prefill;
  if (runs_.empty() || runs_.back().is_absorbed != is_absorbed) {
    runs_.push_back({.tokens = {chunk.token_begin, chunk.token_begin},
                     .is_absorbed = is_absorbed,
                     .latent_begin = micro.num_absorbed_tokens,
                     .spans = {spans_.data() + spans_.size(), 0}});
  }
  AttentionRun& run = runs_.back();
  const int32_t piece = is_absorbed ? kMaxAbsorbedQueries : std::max(chunk.num_tokens, 1);
  for (int32_t at = 0; at < chunk.num_tokens; at += piece) {
    const int32_t num_queries = std::min(piece, chunk.num_tokens - at);
    spans_.push_back({.q_begin = static_cast<int32_t>(chunk.token_begin + at - run.tokens.begin),
                      .q_len = num_queries,
                      .kv_len = chunk.kv_begin + at + num_queries,
                      .block_table = chunk.block_table});
    run.spans = {run.spans.data(), run.spans.size() + 1};
  }
  run.tokens.end += chunk.num_tokens;
  if (is_absorbed) micro.num_absorbed_tokens += chunk.num_tokens;
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
    add_spans(chunk, micro);
  }
  MOESAIC_CHECK_EQ(static_cast<int64_t>(positions_.size()), micro.num_tokens);
  micro.positions = positions_;
  micro.slots = slots_;
  micro.runs = runs_;
  const int64_t tp_size = options_.layout.tp_size;
  micro.ffn_slice = (micro.num_tokens + tp_size - 1) / tp_size;
  micro.ffn_tokens.begin = std::min(tp_rank_ * micro.ffn_slice, micro.num_tokens);
  micro.ffn_tokens.end = std::min(micro.ffn_tokens.begin + micro.ffn_slice, micro.num_tokens);
  return micro;
}

}  // namespace moesaic
