// CostModel: the time of one step and the memory of one deployment, from a model's config, the hardware's datasheet and
// the measured efficiencies of the kernels (src/cost/README.md). Pure arithmetic: a const CostModel may be used by any
// thread. Everything it returns is a prediction.
//
//   MOESAIC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::make({.model = v3, .hardware = h100, .layout = layout}));
//   std::vector<GroupWork> groups(layout.dp_size);   // what each DP group does in this step
//   groups[0].add_decode(/*query_len=*/1, /*kv_len=*/2100);
//   const double seconds = cost.step(groups).seconds;
#pragma once

#include <cstdint>
#include <span>
#include <utility>

#include "base/status.h"
#include "cost/deployment.h"
#include "cost/rank_memory.h"

namespace moesaic {

// What one DP group does in one step. All TP ranks of the group share it.
struct GroupWork {
  int64_t num_decode_seqs = 0;
  int64_t num_decode_tokens = 0;  // with drafts
  int64_t decode_kv_tokens = 0;   // sum over sequences of the rows that attention reads
  double decode_pairs = 0;        // sum of query tokens x rows
  int64_t num_prefill_seqs = 0;
  int64_t num_prefill_tokens = 0;  // new tokens
  int64_t prefill_kv_tokens = 0;   // sum over chunks of cached and new rows
  double prefill_pairs = 0;        // sum over chunks of query-key pairs under the causal mask

  // One sequence: its newest token and drafts (query_len in all), kv_len rows with them.
  void add_decode(int64_t query_len, int64_t kv_len);
  // One chunk of a prompt of which num_cached tokens are in the cache.
  void add_prefill(int64_t num_tokens, int64_t num_cached);
  int64_t num_tokens() const { return num_decode_tokens + num_prefill_tokens; }
};

// Seconds of the parts of one MoE layer for the whole batch, or, with two micro-batches, of both of them together.
struct LayerCost {
  double qkv = 0;        // norm, q and kv projections, absorption of k_b
  double attention = 0;  // the core: scores, softmax, values
  double output = 0;     // v_b, o, norm, gate
  double shared = 0;
  double experts = 0;  // quantisation, grouped GEMMs, activation
  double dispatch = 0;
  double combine = 0;
  double exposed_comm = 0;  // what of dispatch and combine no computation hides
  double seconds = 0;       // the layer under the step's overlap mode
};

struct StepCost {
  double seconds = 0;
  OverlapMode overlap = OverlapMode::kNone;  // the one used, never kBest
  LayerCost moe_layer;                       // one of num_moe_layers
  double moe_layers = 0;                     // all of them
  double dense_layers = 0;
  double head = 0;     // embedding, final norm, head, sampling
  double draft = 0;    // MTP modules
  double waiting = 0;  // of the other ranks for the slowest
  double host = 0;     // launches, scheduling, synchronisation
};

// Host time of drafting, and again of verifying: each is a launch of its own that waits for the one before.
double draft_host_seconds(CommFamily family);

class CostModel {
 public:
  // Errors: heads that TP does not divide, fewer expert slots than experts, more ranks than experts can use, hardware
  // without a needed unit. Messages show the arithmetic.
  static absl::StatusOr<CostModel> make(Deployment deployment);

  // groups: one entry for each DP group, or some that stand for all of them. Takes microseconds, nothing is kept. A
  // step without tokens costs its host time.
  StepCost step(std::span<const GroupWork> groups) const;

  const Deployment& deployment() const { return deployment_; }
  int64_t kv_bytes_per_token() const;  // on each rank of a DP group

 private:
  explicit CostModel(Deployment deployment) : deployment_(std::move(deployment)) {}
  Deployment deployment_;
};

}  // namespace moesaic
