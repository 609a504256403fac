#include "cost/cost_model.h"

#include <algorithm>

#include "cost/layer_cost.h"
#include "cost/model_size.h"

namespace moesaic {
namespace {

// Scheduling and launch of a step: SGLang's overlapped scheduler hides the rest.
constexpr double kHostSeconds = 1e-3;
// DP ranks in lockstep wait for the slowest of them: clocks, lengths, network. Fitted on the calibration rows of
// data/validation.csv, beside everything else that no part of the model stands for.
constexpr double kDecodeLockstep = 0.955;
constexpr double kPrefillLockstep = 0.92;
// Prefill with two micro-batches: what DeepSeek's profile leaves to computation, 108 of 132.
constexpr double kPrefillComputeShare = 108.0 / 132.0;

// Sending and receiving occupy the SMs, also in low-latency mode: only the time on the wire can be hidden. 60 us of a
// dispatch of 128 tokens, which quantises them (F100).
constexpr double kExchangeKernels = 20e-6;
constexpr double kDispatchKernelsPerToken = 0.31e-6;

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
  const double attention = half.attention + half.output;
  if (prefill) {
    // Compute runs beside the other micro-batch's communication: attention beside one's dispatch and another's
    // combine, experts likewise.
    const double experts = half.shared + half.experts;
    return finish(both, exposed(half.dispatch, half.qkv + attention) + exposed(half.dispatch, experts) +
                            exposed(half.combine, experts) + exposed(half.combine, half.qkv + attention));
  }
  const double tokens = static_cast<double>(work.group.num_tokens()) / d.layout.tp_size / 2;
  const double dispatch_kernels = std::min(half.dispatch, kExchangeKernels + kDispatchKernelsPerToken * tokens);
  const double combine_kernels = std::min(half.combine, kExchangeKernels);
  return finish(both, 2 * (std::max(exposed(half.dispatch, half.shared + half.qkv), dispatch_kernels) +
                           std::max(exposed(half.combine, attention), combine_kernels)));
}

}  // namespace

// Around DeepEP 2.5 ms: SGLang's table of 65K prompts loses 6 ms a step where nothing overlaps drafting and
// verification. Perplexity captures them in graphs.
double draft_host_seconds(CommFamily family) {
  return family == CommFamily::kPplx ? 0.25e-3 : 2.5e-3;
}

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
  if (d.num_draft > 0 && d.model.num_nextn_predict_layers == 0) {
    return absl::InvalidArgumentError(
        str_cat(d.num_draft, " drafts need an MTP module; num_nextn_predict_layers of the model is 0"));
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
  const double device = cost.moe_layers + cost.dense_layers + cost.head + cost.draft;
  if (deployment_.layout.dp_size > 1) {
    cost.waiting = device * (1 / (work.group.num_prefill_tokens > 0 ? kPrefillLockstep : kDecodeLockstep) - 1);
  }
  if (deployment_.num_draft > 0 && work.group.num_decode_tokens > 0) {
    cost.host += draft_host_seconds(deployment_.comm) * static_cast<double>(deployment_.num_draft + 1);
  }
  cost.seconds = cost.host + device + cost.waiting;
  return cost;
}

int64_t CostModel::kv_bytes_per_token() const {
  return moesaic::kv_bytes_per_token(deployment_.model, deployment_.fp8_kv);
}

}  // namespace moesaic
