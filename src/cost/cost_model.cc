#include "cost/cost_model.h"

#include <algorithm>

#include "cost/layer_cost.h"
#include "cost/model_size.h"

namespace moesaic {
namespace {

constexpr double kHostSeconds = 1e-3;
constexpr double kSmallWorkspaceBytes = 3e9;
// Prefill with two micro-batches: what DeepSeek's profile leaves to computation, 108 of 132.
constexpr double kPrefillComputeShare = 108.0 / 132.0;

double exposed(double comm, double hidden_by) {
  return std::max(0.0, comm - hidden_by);
}

LayerCost finish(LayerCost layer, double exposed_comm) {
  layer.exposed_comm = exposed_comm;
  layer.seconds = layer.qkv + layer.attention + layer.output + layer.shared + layer.experts + exposed_comm;
  return layer;
}

LayerCost moe_layer(const Deployment& d, const RankWork& work, OverlapMode overlap) {
  const bool prefill = work.group.num_prefill_tokens > 0;
  if (overlap != OverlapMode::kTwoBatch) {
    const LayerCost one = moe_layer_parts(d, work, 1.0, 1.0);
    const double dispatch = overlap == OverlapMode::kDispatch ? exposed(one.dispatch, one.shared) : one.dispatch;
    return finish(one, dispatch + one.combine);
  }
  const LayerCost half = moe_layer_parts(d, work, 0.5, prefill ? kPrefillComputeShare : 1.0);
  LayerCost both{2 * half.qkv,     2 * half.attention, 2 * half.output, 2 * half.shared,
                 2 * half.experts, 2 * half.dispatch,  2 * half.combine};
  if (prefill) {
    const double compute = half.qkv + half.attention + half.output + half.shared + half.experts;
    return finish(both, 2 * exposed(half.dispatch + half.combine, compute));
  }
  return finish(
      both, 2 * (exposed(half.dispatch, half.shared + half.qkv) + exposed(half.combine, half.attention + half.output)));
}

}  // namespace

void GroupWork::add_decode(int64_t query_len, int64_t kv_len) {
  ++num_decode_seqs;
  num_decode_tokens += query_len;
  decode_kv_tokens += kv_len;
  // Query i of q sees kv_len - q + 1 + i rows.
  decode_pairs += static_cast<double>(query_len) * static_cast<double>(kv_len) -
                  static_cast<double>(query_len * (query_len - 1)) / 2;
}

void GroupWork::add_prefill(int64_t num_tokens, int64_t num_cached) {
  ++num_prefill_seqs;
  num_prefill_tokens += num_tokens;
  prefill_kv_tokens += num_cached + num_tokens;
  prefill_pairs += static_cast<double>(num_tokens) * static_cast<double>(num_cached) +
                   static_cast<double>(num_tokens) * static_cast<double>(num_tokens + 1) / 2;
}

absl::StatusOr<CostModel> CostModel::make(Deployment d) {
  MOESAIC_RETURN_IF_ERROR(d.layout.validate_heads(d.model.num_attention_heads));
  if (d.model.n_routed_experts <= 0) {
    return absl::InvalidArgumentError("the cost model is one of mixture-of-experts models; n_routed_experts is 0");
  }
  const int64_t slots = d.model.n_routed_experts + d.num_redundant_experts;
  if (slots < d.layout.ep_size()) {
    return absl::InvalidArgumentError(str_cat("EP", d.layout.ep_size(), " needs ", d.layout.ep_size(),
                                              " expert slots; the model has ", d.model.n_routed_experts,
                                              " experts and ", d.num_redundant_experts, " redundant ones = ", slots));
  }
  if (!(d.balancedness > 0 && d.balancedness <= 1)) {
    return absl::InvalidArgumentError(str_cat("balancedness expects a number in (0, 1], found ", d.balancedness));
  }
  return CostModel(std::move(d));
}

StepCost CostModel::step(std::span<const GroupWork> groups) const {
  const RankWork work = slowest_rank(groups);
  StepCost cost{.host = kHostSeconds};
  cost.seconds = kHostSeconds;
  if (work.group.num_tokens() == 0) return cost;
  const ModelSize size(deployment_.model);
  cost.overlap = deployment_.overlap;
  if (deployment_.overlap != OverlapMode::kBest) {
    cost.moe_layer = moe_layer(deployment_, work, deployment_.overlap);
  } else {
    for (OverlapMode mode : {OverlapMode::kNone, OverlapMode::kDispatch, OverlapMode::kTwoBatch}) {
      const LayerCost layer = moe_layer(deployment_, work, mode);
      if (mode != OverlapMode::kNone && layer.seconds >= cost.moe_layer.seconds) continue;
      cost.moe_layer = layer;
      cost.overlap = mode;
    }
  }
  cost.moe_layers = cost.moe_layer.seconds * static_cast<double>(size.num_moe_layers);
  cost.dense_layers = dense_layer_seconds(deployment_, work) * static_cast<double>(size.num_dense_layers);
  cost.head = head_seconds(deployment_, work);
  cost.draft = draft_seconds(deployment_, work);
  cost.seconds += cost.moe_layers + cost.dense_layers + cost.head + cost.draft;
  return cost;
}

int64_t CostModel::kv_bytes_per_token() const {
  return moesaic::kv_bytes_per_token(deployment_.model, deployment_.fp8_kv);
}

double RankMemory::total_bytes() const {
  double total = 0;
  for (const PlannedBuffer& buffer : buffers) total += buffer.num_bytes;
  return total;
}

RankMemory plan_rank_memory(const Deployment& d, const MemoryDemand& demand) {
  const ModelConfig& c = d.model;
  const ModelSize size(c);
  const double weight = c.fp8_weights ? 1.0 : 2.0, tp = d.layout.tp_size;
  const double layers = static_cast<double>(c.num_hidden_layers), moe = static_cast<double>(size.num_moe_layers);
  const int64_t slots = d.layout.slots_per_rank(c.n_routed_experts + d.num_redundant_experts);
  const auto bytes = [](int64_t count, double each) { return static_cast<double>(count) * each; };
  RankMemory memory;
  memory.buffers = {
      {"routed experts", moe * bytes(slots * size.expert, weight)},
      {"shared experts", moe * bytes(size.shared_expert, weight)},
      {"attention", layers * bytes(size.attention, weight) / tp},
      {"dense FFN", static_cast<double>(size.num_dense_layers) * bytes(size.dense_ffn, weight)},
      {"gate and norms", moe * bytes(size.gate, 2) + layers * bytes(size.layer_norms, 2)},
      {"embedding and head", bytes(size.embedding + size.head, 2)},
      {"workspace", kSmallWorkspaceBytes},
      {"activations", bytes(demand.max_step_tokens * c.hidden_size, 2) * 16},
  };
  if (d.num_draft > 0) memory.buffers.push_back({"MTP module", bytes(size.mtp_layer, weight) / tp});
  memory.kv_bytes_free = d.hardware.hbm_gb * 1e9 - memory.total_bytes();
  memory.kv_tokens_free =
      static_cast<int64_t>(std::max(0.0, memory.kv_bytes_free) / static_cast<double>(kv_bytes_per_token(c, d.fp8_kv)));
  return memory;
}

}  // namespace moesaic
