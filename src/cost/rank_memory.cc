#include "cost/rank_memory.h"

#include <algorithm>
#include <cmath>

#include "cost/model_size.h"

namespace moesaic {
namespace {

constexpr double kBf16Bytes = 2;
constexpr double kF32Bytes = 4;
constexpr double kScaleBlock = 128 * 128;  // FP8 weights with one f32 scale
constexpr double kScaleGroup = 128;        // FP8 activations with one f32 scale

// CUDA context, kernels, NCCL, allocator slack and captured graphs. vLLM's memory table leaves about 10 GB of an H200
// where weights leave 40; SGLang keeps 0.835 of 80 GB for weights and cache in its large decode deployment.
constexpr double kRuntimeBytes = 5e9;
// DeepEP's normal-mode buffers for NVLink and RDMA (its configuration hints for 7,168 channels).
constexpr double kNormalExchangeBytes = 1e9;
constexpr double kMessageHeader = 16;

double fp8_weight(const ModelConfig& c) {
  return c.fp8_weights ? 1 + kF32Bytes / kScaleBlock : kBf16Bytes;
}

// Send and receive buffers of both exchanges, twice, as two may be under way: a slot for every token of every rank in
// every local expert, and for every own token in every expert (DeepEP's size hint).
double low_latency_exchange_bytes(const Deployment& d, double rank_tokens, double physical_experts) {
  const double hidden = static_cast<double>(d.model.hidden_size);
  const double dispatch = kMessageHeader + std::max(hidden * kBf16Bytes, hidden * (1 + kF32Bytes / kScaleGroup));
  const double combine = hidden * kBf16Bytes;
  const double slots = physical_experts * rank_tokens;
  return 2 * (slots * std::max(dispatch, combine) + std::max(rank_tokens * dispatch, slots * combine));
}

// Inputs in FP8, gate and up in bf16, activation in FP8, output in bf16, for each row.
double expert_row_bytes(const ModelConfig& c) {
  const double hidden = static_cast<double>(c.hidden_size), inner = static_cast<double>(c.moe_intermediate_size);
  return hidden * (1 + kF32Bytes / kScaleGroup) + 2 * inner * kBf16Bytes + inner + hidden * kBf16Bytes;
}

double attention_row_bytes(const ModelConfig& c, double heads, bool absorbed) {
  const double qk = static_cast<double>(c.qk_head_dim()), v = static_cast<double>(c.v_head_dim);
  const double latent = static_cast<double>(c.latent_dim());
  return (heads * (qk + v) + heads * (absorbed ? 2 * latent : qk + v) + static_cast<double>(c.q_lora_rank) + latent) *
         kBf16Bytes;
}

void add_weights(const Deployment& d, RankMemory* memory) {
  const ModelConfig& c = d.model;
  const ModelSize size(c);
  const double weight = fp8_weight(c), tp = d.layout.tp_size;
  const double layers = static_cast<double>(c.num_hidden_layers), moe = static_cast<double>(size.num_moe_layers);
  const double slots = static_cast<double>(d.layout.slots_per_rank(c.n_routed_experts + d.num_redundant_experts));
  // The projections into the latent spaces are held by every TP rank, those out of them by heads.
  const double down = static_cast<double>(c.hidden_size * (c.q_lora_rank + c.latent_dim()));
  const double attention = down + (static_cast<double>(size.attention) - down) / tp;
  const double expert = static_cast<double>(size.expert) * weight;
  memory->buffers = {
      {"routed experts", moe * slots * expert},
      {"shared experts", moe * static_cast<double>(size.shared_expert) * weight},
      {"attention weights", layers * attention * weight},
      {"dense FFN", static_cast<double>(size.num_dense_layers * size.dense_ffn) * weight},
      {"gates and norms", (moe * static_cast<double>(size.gate) + layers * static_cast<double>(size.layer_norms) +
                           static_cast<double>(size.final_norm)) *
                              kBf16Bytes},
      {"embedding", static_cast<double>(size.embedding) * kBf16Bytes},
      {"head", static_cast<double>(size.head) * kBf16Bytes},
  };
  if (d.num_draft > 0) {
    const double experts = slots * expert;
    const double others = static_cast<double>(size.mtp_layer - size.num_experts * size.expert) * weight;
    memory->buffers.push_back({"MTP module", experts + others});
  }
}

}  // namespace

double RankMemory::total_bytes() const {
  double total = 0;
  for (const PlannedBuffer& buffer : buffers) total += buffer.num_bytes;
  return total;
}

RankMemory plan_rank_memory(const Deployment& d, const MemoryDemand& demand) {
  const ModelConfig& c = d.model;
  RankMemory memory{.capacity_bytes = d.hardware.hbm_gb * 1e9};
  add_weights(d, &memory);
  const double tp = d.layout.tp_size, ranks = d.layout.ep_size();
  const double hidden = static_cast<double>(c.hidden_size), heads = static_cast<double>(c.num_attention_heads) / tp;
  const double physical = static_cast<double>(c.n_routed_experts + d.num_redundant_experts);
  const double step = static_cast<double>(demand.max_step_tokens),
               decode = static_cast<double>(demand.max_decode_tokens);
  const double topk = static_cast<double>(c.num_experts_per_tok);
  const bool prefills = demand.max_step_tokens > demand.max_decode_tokens;
  if (decode > 0 && ranks > 1) {
    memory.buffers.push_back(
        {"low-latency all-to-all buffers", low_latency_exchange_bytes(d, std::ceil(decode / tp), physical)});
  }
  if (prefills && ranks > 1) memory.buffers.push_back({"normal all-to-all buffers", kNormalExchangeBytes});
  // Twice the mean of what arrives leaves room for skew.
  const double rows = step / tp * topk * 2;
  memory.buffers.push_back({"expert inputs and activations", rows * expert_row_bytes(c)});
  memory.buffers.push_back({"attention activations", step * attention_row_bytes(c, heads, !prefills)});
  memory.buffers.push_back({"residual stream and norms", step * hidden * (kF32Bytes + 2 * kBf16Bytes)});
  memory.buffers.push_back(
      {"logits", std::max(decode, 1.0) * static_cast<double>(c.vocab_size) * (kF32Bytes + kBf16Bytes)});
  memory.buffers.push_back({"runtime, graphs and allocator reserve", kRuntimeBytes});
  memory.kv_bytes_free = memory.capacity_bytes - memory.total_bytes();
  memory.kv_tokens_free =
      static_cast<int64_t>(std::max(0.0, memory.kv_bytes_free) / static_cast<double>(kv_bytes_per_token(c, d.fp8_kv)));
  return memory;
}

double memory_optimal_tp(double num_params, double hidden_state, double graph_copies) {
  return std::sqrt(num_params / ((1 + graph_copies) * hidden_state));
}

}  // namespace moesaic
