#include "model/deepseek.h"

#include <algorithm>

#include "model/forward_plan.h"
#include "model/layer_ops.h"

namespace moesaic {
struct DeepseekModel::Impl {
  Impl(const ModelConfig& config, const ModelOptions& options, std::shared_ptr<const ReplicatedWeights> replicated,
       ExpertWeights experts, std::shared_ptr<const ExpertMap> expert_map, int rank)
      : config(config),
        options(options),
        shape(rank_shape(config, options.layout)),
        replicated(std::move(replicated)),
        experts(std::move(experts)),
        expert_map(std::move(expert_map)),
        rank(rank),
        fp8(options.activations == ActivationMode::kFp8 && config.fp8_weights),
        linear_math(fp8 || options.kv_dtype == DType::kF32 ? LinearMath::kExact : LinearMath::kShort),
        plan(options, options.layout.tp_rank(rank)),
        arena(forward_workspace(config, options).total()) {
    for (int64_t layer = 0; layer < kv_layers(config, options); ++layer) {
      caches.emplace_back(kv_layer_bytes());
    }
  }

  int64_t kv_rows() const { return options.num_kv_blocks * options.kv_block_tokens; }
  int64_t kv_row_elements() const { return latent_row_elements(options.kv_dtype, shape.lora, shape.rope); }
  int64_t kv_layer_bytes() const { return kv_rows() * kv_row_bytes(config, options.kv_dtype); }
  LatentCache cache(int64_t layer) const {
    return {.rows = Tensor(caches[layer].data(), options.kv_dtype, {kv_rows(), kv_row_elements()}),
            .block_tokens = options.kv_block_tokens,
            .kv_lora_rank = shape.lora,
            .rope_dim = shape.rope};
  }

  absl::Status run_layer(const RankContext& context, Stream& stream, int64_t layer, MicroBatch& batch);
  void head(const RankContext& context, Stream& stream, const PackedWeight& weight, const Tensor& hidden,
            const ForwardBatch& batch, ForwardResult* result);
  void report(const std::string& name, const Tensor& state) const {
    if (probe) probe(name, state);
  }

  const ModelConfig config;
  const ModelOptions options;
  const RankShape shape;
  const std::shared_ptr<const ReplicatedWeights> replicated;
  const ExpertWeights experts;
  const std::shared_ptr<const ExpertMap> expert_map;
  const int rank;
  const bool fp8;
  // Cache rows of bf16 or less are rounded far more. Activations that are about to be rounded to e4m3 must not fall on
  // the other side of a step.
  const LinearMath linear_math;
  ForwardPlan plan;
  Arena arena;
  std::vector<Buffer> caches;  // one a layer
  StateProbe probe;
};

void LayerContext::report(const char* state, const Tensor& tensor) const {
  if (!probe) return;
  const bool is_mtp = layer >= config.num_hidden_layers;
  probe(str_cat(is_mtp ? "mtp.layer" : "layer", layer, ".", state), tensor);
}

DeepseekModel::DeepseekModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeepseekModel::~DeepseekModel() = default;

absl::StatusOr<std::unique_ptr<DeepseekModel>> DeepseekModel::make(
    const ModelConfig& config, const ModelOptions& options, std::shared_ptr<const ReplicatedWeights> replicated,
    ExpertWeights experts, std::shared_ptr<const ExpertMap> expert_map, int rank) {
  MOESAIC_RETURN_IF_ERROR(validate_options(config, options));
  return std::unique_ptr<DeepseekModel>(new DeepseekModel(
      std::make_unique<Impl>(config, options, std::move(replicated), std::move(experts), std::move(expert_map), rank)));
}

const ModelConfig& DeepseekModel::config() const {
  return impl_->config;
}
int64_t DeepseekModel::weight_bytes() const {
  return impl_->replicated->num_bytes + impl_->experts.num_bytes;
}
int64_t DeepseekModel::kv_cache_bytes() const {
  return static_cast<int64_t>(impl_->caches.size()) * impl_->kv_layer_bytes();
}
int64_t DeepseekModel::workspace_bytes() const {
  return impl_->arena.capacity_bytes();
}
void DeepseekModel::set_probe(StateProbe probe) {
  impl_->probe = std::move(probe);
}

AllToAllOptions DeepseekModel::all_to_all_options(const ModelConfig& config, const ModelOptions& options) {
  const int64_t tp_size = options.layout.tp_size;
  const auto slice = [&](int64_t tokens) { return static_cast<int>((tokens + tp_size - 1) / tp_size); };
  return {.num_ranks = options.layout.world_size(),
          .num_slots = static_cast<int>(config.n_routed_experts),
          .hidden = config.hidden_size,
          .num_experts_per_tok = static_cast<int>(config.num_experts_per_tok),
          .max_tokens_normal = slice(options.max_tokens_per_step),
          .max_tokens_low_latency = slice(options.max_decode_tokens),
          .fp8 = options.activations == ActivationMode::kFp8 && config.fp8_weights};
}

absl::Status DeepseekModel::Impl::run_layer(const RankContext& context, Stream& stream, int64_t layer,
                                            MicroBatch& batch) {
  Arena::Scope scope(arena);
  const LayerWeights& weights = replicated->layers[layer];
  const LayerContext layer_context = {.config = config,
                                      .options = options,
                                      .shape = shape,
                                      .rank = context,
                                      .experts = *expert_map,
                                      .weights = weights,
                                      .expert_weights = experts.layers[layer],
                                      .rope_table = replicated->rope_table.tensor,
                                      .cache = cache(layer),
                                      .stream = stream,
                                      .arena = arena,
                                      .probe = probe,
                                      .layer = layer,
                                      .fp8 = fp8};
  for (const LayerOp& op : weights.is_moe ? moe_layer_ops() : dense_layer_ops()) {
    if (absl::Status status = op.run(layer_context, batch); !status.ok()) {
      return annotate(status, str_cat("rank ", rank, ", layer ", layer, ", ", op.name));
    }
  }
  return absl::OkStatus();
}

// Logits of the wanted rows; on TP rank 0 only, where they are sampled.
void DeepseekModel::Impl::head(const RankContext&, Stream& stream, const PackedWeight& weight, const Tensor& hidden,
                               const ForwardBatch& batch, ForwardResult* result) {
  result->hidden = hidden;
  if (options.layout.tp_rank(rank) != 0) return;
  const int64_t num_rows = static_cast<int64_t>(batch.logit_rows.size());
  MOESAIC_CHECK_LE(num_rows, options.max_logit_rows);
  result->logits = arena.alloc(DType::kF32, {num_rows, config.vocab_size});
  const Tensor wanted = arena.alloc(DType::kF32, {num_rows, shape.hidden});
  for (int64_t i = 0; i < num_rows; ++i) {
    const float* from = hidden.row<float>(batch.logit_rows[i]);
    std::copy(from, from + shape.hidden, wanted.row<float>(i));
  }
  linear(stream, {.x = wanted, .weight = &weight, .bias = Tensor(), .y = result->logits});
}

absl::Status DeepseekModel::forward(const RankContext& context, const ForwardBatch& batch, ForwardResult* result) {
  Impl& impl = *impl_;
  Stream stream(*context.pool, impl.linear_math);
  impl.arena.reset();
  MicroBatch micro = impl.plan.build(batch);
  micro.x = impl.arena.alloc(DType::kF32, {micro.num_tokens, impl.shape.hidden});
  embedding(stream, impl.replicated->embedding.tensor, batch.token_ids, micro.x);
  impl.report("embed", micro.x);
  for (int64_t layer = 0; layer < impl.config.num_hidden_layers; ++layer) {
    MOESAIC_RETURN_IF_ERROR(impl.run_layer(context, stream, layer, micro));
  }
  rms_norm(stream,
           {.x = micro.x, .weight = impl.replicated->final_norm.tensor, .eps = impl.config.rms_norm_eps, .y = micro.x});
  impl.report("final_norm", micro.x);
  impl.head(context, stream, impl.replicated->head, micro.x, batch, result);
  return absl::OkStatus();
}

// DeepSeek-V3 report, section 2.2: eh_proj([enorm(embedding of the next token), hnorm(hidden)]), one layer, norm, head.
absl::Status DeepseekModel::forward_mtp(const RankContext& context, const ForwardBatch& batch, const Tensor& hidden,
                                        std::span<const int32_t> next_ids, ForwardResult* result) {
  Impl& impl = *impl_;
  MOESAIC_CHECK(impl.replicated->mtp != nullptr);
  const MtpWeights& mtp = *impl.replicated->mtp;
  const int64_t h = impl.shape.hidden;
  const float eps = impl.config.rms_norm_eps;
  Stream stream(*context.pool, impl.linear_math);
  impl.arena.reset();
  MicroBatch micro = impl.plan.build(batch);
  MOESAIC_CHECK_EQ(hidden.dim(0), micro.num_tokens);
  micro.x = impl.arena.alloc(DType::kF32, {micro.num_tokens, h});
  // `hidden` may be the previous result, at the start of this same arena: read it before anything else is written
  // there.
  MOESAIC_CHECK(hidden.raw() == micro.x.raw() || micro.num_tokens == 0 || !impl.arena.contains(hidden.raw()));
  {
    Arena::Scope scope(impl.arena);
    const Tensor both = impl.arena.alloc(DType::kF32, {micro.num_tokens, 2 * h});
    rms_norm(stream, {.x = hidden, .weight = mtp.hnorm.tensor, .eps = eps, .y = both.cols(h, 2 * h)});
    const Tensor& table = mtp.embedding.tensor.defined() ? mtp.embedding.tensor : impl.replicated->embedding.tensor;
    embedding(stream, table, next_ids, micro.x);
    rms_norm(stream, {.x = micro.x, .weight = mtp.enorm.tensor, .eps = eps, .y = both.cols(0, h)});
    Tensor input = both;
    if (impl.fp8 && mtp.eh_proj.dtype() == DType::kE4M3) round_trip_fp8(stream, both, input);
    linear(stream, {.x = input, .weight = &mtp.eh_proj, .bias = Tensor(), .y = micro.x});
  }
  MOESAIC_RETURN_IF_ERROR(impl.run_layer(context, stream, impl.config.num_hidden_layers, micro));
  rms_norm(stream, {.x = micro.x, .weight = mtp.norm.tensor, .eps = eps, .y = micro.x});
  impl.report("mtp.norm_out", micro.x);
  impl.head(context, stream, mtp.head.defined() ? mtp.head : impl.replicated->head, micro.x, batch, result);
  return absl::OkStatus();
}

}  // namespace moesaic
