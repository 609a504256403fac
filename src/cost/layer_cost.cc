#include "cost/layer_cost.h"

#include <algorithm>
#include <cmath>

#include "cost/all_to_all_cost.h"
#include "cost/model_size.h"

namespace moesaic {
namespace {

constexpr double kBf16Bytes = 2;

// Small kernels of a decode layer besides GEMMs and attention, as served models launch them: norms, quantisation,
// rotation, cache append; output quantisation, norm, gate's top-k; activations; reordering.
constexpr double kQkvKernels = 6;
constexpr double kOutputKernels = 5;
constexpr double kFfnKernels = 2;
constexpr double kExpertKernels = 3;

// Assumed: no published figure isolates them.
constexpr double kTpLatency = 8e-6;         // of one collective inside a node
constexpr double kTpLinkEfficiency = 0.75;  // of NVLink, one direction

struct AttentionCost {
  double qkv = 0, core = 0, output = 0;
};

// Bytes of bf16 rows that a norm reads and writes with its residual, and its quantisation (read, half of it written).
double norm_bytes(double tokens, const ModelConfig& c) {
  return tokens * static_cast<double>(c.hidden_size) * (4 * kBf16Bytes + kBf16Bytes + 1);
}

// Sum and scatter of a DP group's activations over its TP ranks after the output projection, gather before the next
// layer: a token's row leaves each rank once for each.
double tp_exchange_seconds(const Deployment& d, double tokens) {
  const double tp = d.layout.tp_size;
  if (tp <= 1) return 0;
  const double bytes = tokens * static_cast<double>(d.model.hidden_size) * kBf16Bytes * (tp - 1) / tp;
  return 2 * (kTpLatency + bytes / (kTpLinkEfficiency * d.hardware.nvlink_gb_per_s * 1e9));
}

AttentionCost attention_cost(const Deployment& d, const GroupWork& group, double share, const KernelCost& kernels) {
  const ModelConfig& c = d.model;
  const Precision weights = c.fp8_weights ? Precision::kFp8 : Precision::kBf16;
  const double decode = static_cast<double>(group.num_decode_tokens) * share;
  const double prefill = static_cast<double>(group.num_prefill_tokens) * share;
  const double tokens = decode + prefill;
  if (tokens <= 0) return {};
  const int64_t heads = c.num_attention_heads / d.layout.tp_size;
  const int64_t q_out = heads * c.qk_head_dim(), kv_out = heads * (c.qk_nope_head_dim + c.v_head_dim);
  const double latent = static_cast<double>(c.q_lora_rank + c.latent_dim()),
               out = static_cast<double>(heads * c.v_head_dim);
  AttentionCost cost;
  cost.qkv = kernels.elementwise(norm_bytes(tokens, c) + tokens * latent * 3 * kBf16Bytes, kQkvKernels) +
             kernels.gemm({tokens, c.q_lora_rank + c.latent_dim(), c.hidden_size, 1, weights}) +
             kernels.gemm({tokens, q_out, c.q_lora_rank > 0 ? c.q_lora_rank : c.hidden_size, 1, weights});
  cost.output = kernels.gemm({tokens, c.hidden_size, heads * c.v_head_dim, 1, weights}) +
                kernels.elementwise(norm_bytes(tokens, c) + tokens * out * (kBf16Bytes + 1), kOutputKernels) +
                tp_exchange_seconds(d, tokens);
  if (decode > 0) {
    const double absorb_heads = static_cast<double>(heads);
    cost.qkv += kernels.gemm({decode, c.kv_lora_rank, c.qk_nope_head_dim, absorb_heads, Precision::kBf16});
    cost.output += kernels.gemm({decode, c.v_head_dim, c.kv_lora_rank, absorb_heads, Precision::kBf16});
    cost.core += kernels.mla_decode({heads, group.decode_pairs * share,
                                     static_cast<double>(group.decode_kv_tokens) * share, c.kv_lora_rank,
                                     c.qk_rope_head_dim, static_cast<double>(latent_row_bytes(c, d.fp8_kv)), d.fp8_kv});
  }
  if (prefill > 0) {
    const double rows = static_cast<double>(group.prefill_kv_tokens) * share;
    // Rotation and concatenation of queries and keys: each read and written once.
    cost.qkv += kernels.gemm({rows, kv_out, c.kv_lora_rank, 1, weights}) +
                kernels.elementwise((prefill + rows) * static_cast<double>(q_out) * 2 * kBf16Bytes, 2);
    cost.core += kernels.mha_prefill({heads, group.prefill_pairs * share, c.qk_head_dim(), c.v_head_dim});
  }
  return cost;
}

// Gate and up projection, activation with quantisation, down projection, the sum into the residual stream.
double ffn_cost(double tokens, int64_t hidden, int64_t inner, Precision weights, const KernelCost& kernels) {
  if (tokens <= 0) return 0;
  return kernels.gemm({tokens, 2 * inner, hidden, 1, weights}) + kernels.gemm({tokens, hidden, inner, 1, weights}) +
         kernels.elementwise(tokens * (static_cast<double>(inner) * (2 * kBf16Bytes + 1) +
                                       static_cast<double>(hidden) * 3 * kBf16Bytes),
                             kFfnKernels);
}

// Distinct experts that a rank with `slots` slots computes in a step of `tokens` tokens, each choosing topk of
// num_experts independently. The fullest rank of many has more than the mean where few are hit: one standard deviation
// for a Poisson count, and at most the slots.
double experts_hit(double slots, double tokens, double topk, double num_experts, double ranks) {
  const double mean = slots * (1 - std::pow(1 - topk / num_experts, tokens));
  const double spread = std::sqrt(mean * std::exp(-mean / slots * 2) * 2 * std::log(std::max(2.0, ranks)));
  return std::min({slots, tokens * topk, std::max(1.0, mean + spread)});
}

double experts_cost(const Deployment& d, double world_tokens, bool low_latency, const KernelCost& kernels) {
  const ModelConfig& c = d.model;
  const Precision weights = c.fp8_weights ? Precision::kFp8 : Precision::kBf16;
  const double ranks = d.layout.ep_size();
  const double topk = static_cast<double>(c.num_experts_per_tok), num_experts = static_cast<double>(c.n_routed_experts);
  const double slots = static_cast<double>(c.n_routed_experts + d.num_redundant_experts) / ranks;
  const double rows = world_tokens * topk / ranks / d.balancedness;
  if (rows <= 0) return 0;
  const double groups = experts_hit(slots, world_tokens, topk, num_experts, ranks);
  const double inner = static_cast<double>(c.moe_intermediate_size), hidden = static_cast<double>(c.hidden_size);
  // In normal mode received rows are put into expert order and gathered from it.
  const double order_bytes = low_latency ? 0 : hidden * (2 + 2 * kBf16Bytes);
  return kernels.gemm({rows / groups, 2 * c.moe_intermediate_size, c.hidden_size, groups, weights, true}) +
         kernels.gemm({rows / groups, c.hidden_size, c.moe_intermediate_size, groups, weights, true}) +
         kernels.elementwise(rows * (inner * (2 * kBf16Bytes + 1) + order_bytes), kExpertKernels);
}

}  // namespace

RankWork slowest_rank(std::span<const GroupWork> groups) {
  RankWork work;
  double tokens = 0;
  GroupWork& most = work.group;
  for (const GroupWork& group : groups) {
    most.num_decode_seqs = std::max(most.num_decode_seqs, group.num_decode_seqs);
    most.num_decode_tokens = std::max(most.num_decode_tokens, group.num_decode_tokens);
    most.decode_kv_tokens = std::max(most.decode_kv_tokens, group.decode_kv_tokens);
    most.decode_pairs = std::max(most.decode_pairs, group.decode_pairs);
    most.num_prefill_seqs = std::max(most.num_prefill_seqs, group.num_prefill_seqs);
    most.num_prefill_tokens = std::max(most.num_prefill_tokens, group.num_prefill_tokens);
    most.prefill_kv_tokens = std::max(most.prefill_kv_tokens, group.prefill_kv_tokens);
    most.prefill_pairs = std::max(most.prefill_pairs, group.prefill_pairs);
    tokens += static_cast<double>(group.num_tokens());
  }
  if (!groups.empty()) work.mean_tokens = tokens / static_cast<double>(groups.size());
  return work;
}

LayerCost moe_layer_parts(const Deployment& d, const RankWork& work, double share, double sm_share) {
  const ModelConfig& c = d.model;
  const KernelCost kernels(d.hardware, sm_share, d.kernels.get());
  const AttentionCost attention = attention_cost(d, work.group, share, kernels);
  const double tp = d.layout.tp_size;
  const double tokens = static_cast<double>(work.group.num_tokens()) * share / tp;
  const double mean_tokens = work.mean_tokens * share;
  const Precision weights = c.fp8_weights ? Precision::kFp8 : Precision::kBf16;
  LayerCost cost{.qkv = attention.qkv, .attention = attention.core, .output = attention.output};
  cost.output += kernels.gemm({tokens, c.n_routed_experts, c.hidden_size, 1, Precision::kBf16});
  cost.shared = ffn_cost(tokens, c.hidden_size, c.moe_intermediate_size * c.n_shared_experts, weights, kernels);
  cost.experts = experts_cost(d, mean_tokens * d.layout.dp_size, work.group.num_prefill_tokens == 0, kernels);
  const AllToAllTime comm = all_to_all_time(d, tokens, work.group.num_prefill_tokens == 0);
  cost.dispatch = comm.dispatch;
  cost.combine = comm.combine;
  return cost;
}

double dense_layer_seconds(const Deployment& d, const RankWork& work) {
  const KernelCost kernels(d.hardware, 1.0, d.kernels.get());
  const AttentionCost attention = attention_cost(d, work.group, 1.0, kernels);
  const Precision weights = d.model.fp8_weights ? Precision::kFp8 : Precision::kBf16;
  const double tokens = static_cast<double>(work.group.num_tokens()) / d.layout.tp_size;
  return attention.qkv + attention.core + attention.output +
         ffn_cost(tokens, d.model.hidden_size, d.model.intermediate_size, weights, kernels);
}

double head_seconds(const Deployment& d, const RankWork& work) {
  const double rows = static_cast<double>(work.group.num_decode_tokens + work.group.num_prefill_seqs);
  return KernelCost(d.hardware, 1.0, d.kernels.get())
      .gemm({rows, d.model.vocab_size, d.model.hidden_size, 1, Precision::kBf16});
}

double draft_seconds(const Deployment& d, const RankWork& work) {
  if (d.num_draft == 0) return 0;
  RankWork one = work;
  const double per_seq = static_cast<double>(std::max<int64_t>(1, work.group.num_decode_seqs)) /
                         static_cast<double>(std::max<int64_t>(1, work.group.num_decode_tokens));
  const auto pass = [&](double share) {
    const LayerCost layer = moe_layer_parts(d, one, share, 1.0);
    return layer.qkv + layer.attention + layer.output + layer.shared + layer.experts + layer.dispatch + layer.combine +
           head_seconds(d, one) * per_seq;
  };
  // Before it guesses, the module's cache takes in the rows that were verified; further guesses are a row each.
  return pass(1.0) + pass(per_seq) * static_cast<double>(d.num_draft - 1);
}

}  // namespace moesaic
