#include "kernels/ops.h"
#include "model/tensor_reader.h"
#include "model/weights.h"

namespace moesaic {
namespace {

using Part = TensorReader::Part;

// Reads into `target` and passes errors on.
template <typename T>
absl::Status take(absl::StatusOr<T> from, T* target) {
  if (!from.ok()) return from.status();
  *target = *std::move(from);
  return absl::OkStatus();
}

class LayerLoader {
 public:
  LayerLoader(const LoadArgs& args, int tp_rank)
      : reader_(args), config_(*args.config), layout_(args.layout), tp_rank_(tp_rank) {}

  absl::Status load(int64_t layer, LayerWeights* weights) const {
    const std::string prefix = str_cat("model.layers.", layer, ".");
    MOESAIC_RETURN_IF_ERROR(
        take(reader_.vector(prefix + "input_layernorm.weight", config_.hidden_size), &weights->input_norm));
    MOESAIC_RETURN_IF_ERROR(load_mla(prefix + "self_attn.", &weights->mla));
    MOESAIC_RETURN_IF_ERROR(
        take(reader_.vector(prefix + "post_attention_layernorm.weight", config_.hidden_size), &weights->post_norm));
    weights->is_moe = config_.is_moe_layer(layer);
    if (!weights->is_moe) {
      return load_mlp(prefix + "mlp.", config_.intermediate_size,
                      layout_.dense_columns(config_.intermediate_size, tp_rank_), &weights->mlp);
    }
    return load_moe(prefix + "mlp.", weights);
  }

 private:
  absl::Status load_mla(const std::string& prefix, MlaWeights* mla) const {
    const int64_t hidden = config_.hidden_size, heads = config_.num_attention_heads;
    const int64_t qk = config_.qk_head_dim(), lora = config_.kv_lora_rank;
    const Range mine = layout_.heads(heads, tp_rank_);
    const Range q_rows = {mine.begin * qk, mine.end * qk};
    Part q = TensorReader::whole(prefix + "q_a_proj", config_.q_lora_rank, hidden);
    if (config_.q_lora_rank == 0) q = {prefix + "q_proj", heads * qk, hidden, q_rows, {0, hidden}};
    Part kv_a = TensorReader::whole(prefix + "kv_a_proj_with_mqa", config_.latent_dim(), hidden);
    // As in DeepSeek's modelling code: q_proj never has a bias.
    q.has_bias = config_.attention_bias && config_.q_lora_rank > 0;
    kv_a.has_bias = config_.attention_bias;
    const std::vector<Part> qkv_a = {q, kv_a};
    if (reader_.same_dtype(q, kv_a)) {
      MOESAIC_RETURN_IF_ERROR(take(reader_.weight(qkv_a), &mla->qkv_a));
    } else {
      MOESAIC_RETURN_IF_ERROR(take(reader_.weight({q}), &mla->qkv_a));
      MOESAIC_RETURN_IF_ERROR(take(reader_.weight({kv_a}), &mla->kv_a));
    }
    MOESAIC_RETURN_IF_ERROR(take(reader_.bias(qkv_a), &mla->qkv_a_bias));
    if (config_.q_lora_rank > 0) {
      MOESAIC_RETURN_IF_ERROR(
          take(reader_.vector(prefix + "q_a_layernorm.weight", config_.q_lora_rank), &mla->q_a_norm));
      const Part q_b = {prefix + "q_b_proj", heads * qk, config_.q_lora_rank, q_rows, {0, config_.q_lora_rank}};
      MOESAIC_RETURN_IF_ERROR(take(reader_.weight({q_b}), &mla->q_b));
    }
    MOESAIC_RETURN_IF_ERROR(take(reader_.vector(prefix + "kv_a_layernorm.weight", lora), &mla->kv_a_norm));
    MOESAIC_RETURN_IF_ERROR(load_kv_b(prefix + "kv_b_proj", mine, mla));
    const int64_t v = config_.v_head_dim;
    Part o = {prefix + "o_proj", hidden, heads * v, {0, hidden}, {mine.begin * v, mine.end * v}};
    o.has_bias = config_.attention_bias;
    MOESAIC_RETURN_IF_ERROR(take(reader_.weight({o}), &mla->o));
    return tp_rank_ == 0 ? take(reader_.bias({o}), &mla->o_bias) : absl::OkStatus();
  }

  // kv_b whole for prefill; per head its key half transposed and its value half, for decode in the latent space.
  absl::Status load_kv_b(const std::string& name, Range heads, MlaWeights* mla) const {
    const int64_t nope = config_.qk_nope_head_dim, both = nope + config_.v_head_dim, lora = config_.kv_lora_rank;
    const int64_t n = config_.num_attention_heads * both;
    MOESAIC_RETURN_IF_ERROR(
        take(reader_.weight({{name, n, lora, {heads.begin * both, heads.end * both}, {0, lora}}}), &mla->kv_b));
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      const int64_t k_begin = head * both, v_begin = k_begin + nope, v_end = k_begin + both;
      MOESAIC_RETURN_IF_ERROR(take(reader_.weight({{name, n, lora, {k_begin, v_begin}, {0, lora}, /*transpose=*/true}}),
                                   &mla->absorb_q.emplace_back()));
      MOESAIC_RETURN_IF_ERROR(
          take(reader_.weight({{name, n, lora, {v_begin, v_end}, {0, lora}}}), &mla->absorb_v.emplace_back()));
    }
    return absl::OkStatus();
  }

  // `mine`: this rank's columns of the hidden layer.
  absl::Status load_mlp(const std::string& prefix, int64_t intermediate, Range mine, MlpWeights* mlp) const {
    const int64_t hidden = config_.hidden_size;
    MOESAIC_RETURN_IF_ERROR(take(reader_.weight({{prefix + "gate_proj", intermediate, hidden, mine, {0, hidden}},
                                                 {prefix + "up_proj", intermediate, hidden, mine, {0, hidden}}}),
                                 &mlp->gate_up));
    return take(reader_.weight({{prefix + "down_proj", hidden, intermediate, {0, hidden}, mine}}), &mlp->down);
  }

  absl::Status load_moe(const std::string& prefix, LayerWeights* weights) const {
    MOESAIC_RETURN_IF_ERROR(
        take(reader_.weight({TensorReader::whole(prefix + "gate", config_.n_routed_experts, config_.hidden_size)}),
             &weights->gate));
    if (config_.topk_method == TopkMethod::kNoauxTc) {
      MOESAIC_RETURN_IF_ERROR(
          take(reader_.vector(prefix + "gate.e_score_correction_bias", config_.n_routed_experts), &weights->gate_bias));
    }
    if (config_.n_shared_experts == 0) return absl::OkStatus();
    const int64_t intermediate = config_.n_shared_experts * config_.moe_intermediate_size;
    return load_mlp(prefix + "shared_experts.", intermediate, {0, intermediate}, &weights->mlp);
  }

  TensorReader reader_;
  const ModelConfig& config_;
  const ParallelLayout layout_;
  const int tp_rank_;
};

// The MTP module shares the main model's embedding and head when it stores none, or the same ones again, as DeepSeek-V3
// does (3.7 GB).
absl::Status load_mtp(const LoadArgs& args, int tp_rank, MtpWeights* mtp) {
  const TensorReader reader(args);
  const int64_t hidden = args.config->hidden_size, vocab = args.config->vocab_size;
  const std::string prefix = str_cat("model.layers.", args.config->num_hidden_layers, ".");
  MOESAIC_RETURN_IF_ERROR(take(reader.vector(prefix + "enorm.weight", hidden), &mtp->enorm));
  MOESAIC_RETURN_IF_ERROR(take(reader.vector(prefix + "hnorm.weight", hidden), &mtp->hnorm));
  MOESAIC_RETURN_IF_ERROR(
      take(reader.weight({TensorReader::whole(prefix + "eh_proj", hidden, 2 * hidden)}), &mtp->eh_proj));
  MOESAIC_RETURN_IF_ERROR(take(reader.vector(prefix + "shared_head.norm.weight", hidden), &mtp->norm));
  const std::string table = "model.embed_tokens.weight";
  const std::string head = args.config->tie_word_embeddings ? table : "lm_head.weight";
  const auto has_own = [&](const std::string& name, const std::string& main) {
    return reader.contains(name) && !reader.repeats(name, main);
  };
  if (has_own(prefix + "embed_tokens.weight", table)) {
    MOESAIC_RETURN_IF_ERROR(take(reader.table(prefix + "embed_tokens", vocab, hidden), &mtp->embedding));
  }
  if (tp_rank == 0 && has_own(prefix + "shared_head.head.weight", head)) {
    MOESAIC_RETURN_IF_ERROR(
        take(reader.weight({TensorReader::whole(prefix + "shared_head.head", vocab, hidden)}), &mtp->head));
  }
  return absl::OkStatus();
}

int64_t weight_bytes(const MlpWeights& mlp) {
  return mlp.gate_up.num_bytes() + mlp.down.num_bytes();
}

int64_t weight_bytes(const MlaWeights& mla) {
  int64_t total = mla.qkv_a.num_bytes() + mla.kv_a.num_bytes() + mla.qkv_a_bias.buffer.num_bytes() +
                  mla.q_a_norm.buffer.num_bytes() + mla.q_b.num_bytes() + mla.kv_a_norm.buffer.num_bytes() +
                  mla.kv_b.num_bytes() + mla.o.num_bytes() + mla.o_bias.buffer.num_bytes();
  for (const PackedWeight& weight : mla.absorb_q) total += weight.num_bytes();
  for (const PackedWeight& weight : mla.absorb_v) total += weight.num_bytes();
  return total;
}

}  // namespace

std::vector<WeightPart> weight_parts(const ReplicatedWeights& weights) {
  int64_t attention = 0, ffn = 0, gate = 0, norms = weights.final_norm.buffer.num_bytes(), mtp_bytes = 0;
  for (const LayerWeights& layer : weights.layers) {
    attention += weight_bytes(layer.mla);
    ffn += weight_bytes(layer.mlp);
    gate += layer.gate.num_bytes() + layer.gate_bias.buffer.num_bytes();
    norms += layer.input_norm.buffer.num_bytes() + layer.post_norm.buffer.num_bytes();
  }
  if (const MtpWeights* mtp = weights.mtp.get()) {
    mtp_bytes = mtp->embedding.buffer.num_bytes() + mtp->enorm.buffer.num_bytes() + mtp->hnorm.buffer.num_bytes() +
                mtp->eh_proj.num_bytes() + mtp->norm.buffer.num_bytes() + mtp->head.num_bytes();
  }
  return {{"embedding", weights.embedding.buffer.num_bytes()},
          {"attention", attention},
          {"dense and shared FFN", ffn},
          {"gate", gate},
          {"norms", norms},
          {"head", weights.head.num_bytes()},
          {"MTP projection, embedding, head", mtp_bytes},
          {"RoPE table", weights.rope_table.buffer.num_bytes()}};
}

absl::StatusOr<std::shared_ptr<const ReplicatedWeights>> load_replicated_weights(const LoadArgs& args, int tp_rank) {
  const ModelConfig& config = *args.config;
  const TensorReader reader(args);
  auto weights = std::make_shared<ReplicatedWeights>();
  MOESAIC_RETURN_IF_ERROR(
      take(reader.table("model.embed_tokens", config.vocab_size, config.hidden_size), &weights->embedding));
  const LayerLoader loader(args, tp_rank);
  const int64_t num_layers = config.num_hidden_layers + (args.load_mtp ? 1 : 0);
  weights->layers.resize(num_layers);
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    MOESAIC_RETURN_IF_ERROR(loader.load(layer, &weights->layers[layer]));
  }
  MOESAIC_RETURN_IF_ERROR(take(reader.vector("model.norm.weight", config.hidden_size), &weights->final_norm));
  const std::string head = config.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
  if (tp_rank == 0) {
    MOESAIC_RETURN_IF_ERROR(
        take(reader.weight({TensorReader::whole(head, config.vocab_size, config.hidden_size)}), &weights->head));
  }
  if (args.load_mtp) {
    weights->mtp = std::make_unique<MtpWeights>();
    MOESAIC_RETURN_IF_ERROR(load_mtp(args, tp_rank, weights->mtp.get()));
  }
  const Shape rope_shape = {args.max_position, config.qk_rope_head_dim};
  const int64_t rope_bytes = rope_shape.num_elements() * dtype_bytes(DType::kF32);
  weights->rope_table.buffer = args.sizes_only ? Buffer::size_only(rope_bytes) : Buffer(rope_bytes);
  weights->rope_table.tensor = Tensor(weights->rope_table.buffer.data(), DType::kF32, rope_shape);
  if (!args.sizes_only) rope_table(config.rope(), weights->rope_table.tensor);
  for (const WeightPart& part : weight_parts(*weights)) weights->num_bytes += part.num_bytes;
  return weights;
}

absl::StatusOr<ExpertWeights> load_expert_weights(const LoadArgs& args, const ExpertMap& experts, int rank) {
  const ModelConfig& config = *args.config;
  const TensorReader reader(args);
  const int64_t hidden = config.hidden_size, intermediate = config.moe_intermediate_size;
  const Range slots = args.layout.slots(experts.num_slots(), rank);
  ExpertWeights weights;
  weights.layers.resize(config.num_hidden_layers + (args.load_mtp ? 1 : 0));
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    if (!config.is_moe_layer(layer)) continue;
    ExpertWeights::Layer& mine = weights.layers[layer];
    for (int64_t slot = slots.begin; slot < slots.end; ++slot) {
      PackedWeight& gate_up = mine.gate_up.emplace_back();
      PackedWeight& down = mine.down.emplace_back();
      const int32_t expert = experts.logical(static_cast<int>(slot));
      if (expert < 0) continue;  // an empty slot never gets rows
      const std::string prefix = str_cat("model.layers.", layer, ".mlp.experts.", expert, ".");
      MOESAIC_RETURN_IF_ERROR(take(reader.weight({TensorReader::whole(prefix + "gate_proj", intermediate, hidden),
                                                  TensorReader::whole(prefix + "up_proj", intermediate, hidden)}),
                                   &gate_up));
      MOESAIC_RETURN_IF_ERROR(
          take(reader.weight({TensorReader::whole(prefix + "down_proj", hidden, intermediate)}), &down));
      weights.num_bytes += gate_up.num_bytes() + down.num_bytes();
    }
  }
  return weights;
}

}  // namespace moesaic
