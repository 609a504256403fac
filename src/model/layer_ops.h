// A layer as a list of operations cut into five stages (1 attention inputs, 2 attention core to gate, 3 dispatch send
// and shared expert, 4 experts, 5 combine). Yield points lie between stages: an executor may run another micro-batch
// there. The plain executor runs one list after the other. Private to model/; one rank's thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/all_to_all.h"
#include "kernels/ops.h"
#include "model/deepseek.h"
#include "model/weights.h"

namespace moesaic {

// Sizes of one rank's share that operations need again and again.
struct RankShape {
  int64_t hidden, heads, nope, rope, v, lora, q_lora;
  int64_t qk() const { return nope + rope; }
  int64_t latent() const { return lora + rope; }
};
RankShape rank_shape(const ModelConfig& config, const ParallelLayout& layout);

// Workspace stays small because operations on many tokens work in slices; rows do not depend on what is beside them.
inline constexpr int64_t kMaxAbsorbedRun = 256;  // generated tokens that pass through attention together
inline constexpr int64_t kTokenSlice = 512;      // tokens of the low-rank projections
inline constexpr int64_t kFfnSlice = 1024;       // rows inside the hidden layer of an FFN or of the experts

// Heads of which prompt tokens have queries, keys and values at once: all for up to kTokenSlice tokens, then so many
// fewer that the queries take no more memory, as far as packed weights can be cut.
int64_t heads_at_once(const RankShape& shape, int64_t num_tokens);

// Neighbouring tokens of a step that take the same attention path.
struct AttentionRun {
  Range tokens;
  bool is_absorbed = false;              // generated tokens, at most kMaxAbsorbedRun; else the expanded path
  std::span<const AttentionSpan> spans;  // q_begin counted from tokens.begin
};

// A micro-batch on its way through the layers. Tensors named here live until the operation that uses them last; all
// come from the arena and are given back when the layer ends.
struct MicroBatch {
  // The whole step.
  int64_t num_tokens = 0;
  std::span<const int32_t> positions;  // [num_tokens]
  std::span<const int32_t> slots;      // [num_tokens] cache rows
  std::span<const AttentionRun> runs;  // cover all tokens
  Range ffn_tokens;                    // this TP rank's slice for gate, experts and FFN
  int64_t ffn_slice = 0;               // slice length, the same on every TP rank (the last ones may be padded)
  A2aMode a2a_mode = A2aMode::kNormal;
  Tensor x;  // [num_tokens, hidden] residual stream

  // Within a layer.
  Tensor normed;        // [num_tokens, hidden] input of attention, then of the FFN
  Tensor q_a;           // [num_tokens, q_lora], normed; without q_lora: q [num_tokens, heads * (nope + rope)], rotated
  Tensor attn;          // [num_tokens, heads * v]; like q_a, given back when attention ends
  Tensor topk_ids;      // [ffn tokens, k] i32
  Tensor topk_weights;  // [ffn tokens, k] f32
  Tensor ffn_out;       // [ffn_slice, hidden] dense or shared-expert output, then the sum with the experts
  Tensor ffn_sum;       // [num_tokens, hidden] with a dense FFN that is split over ranks; then ffn_out stays unused
  ExpertRows rows;
  int64_t attention_mark = 0;  // of the arena: what attention allocates lies behind it
};

// What the operations of one layer see.
struct LayerContext {
  const ModelConfig& config;
  const ModelOptions& options;
  const RankShape& shape;
  const RankContext& rank;
  const ExpertMap& experts;
  const LayerWeights& weights;
  const ExpertWeights::Layer& expert_weights;
  const Tensor& rope_table;
  LatentCache cache;
  Stream& stream;
  Arena& arena;
  const StateProbe& probe;
  int64_t layer;
  bool fp8;  // activations are rounded through e4m3 before e4m3 linears

  void report(const char* state, const Tensor& tensor) const;  // to the probe, if one is set
};

struct LayerOp {
  const char* name;
  int stage;  // 1 .. 5
  absl::Status (*run)(const LayerContext&, MicroBatch&);
};

std::span<const LayerOp> dense_layer_ops();
std::span<const LayerOp> moe_layer_ops();

// The operations themselves.
absl::Status attention_inputs(const LayerContext&, MicroBatch&);     // mla.cc
absl::Status attention_core(const LayerContext&, MicroBatch&);       // mla.cc
absl::Status post_attention_norm(const LayerContext&, MicroBatch&);  // mlp.cc
absl::Status dense_ffn(const LayerContext&, MicroBatch&);            // mlp.cc
absl::Status shared_ffn(const LayerContext&, MicroBatch&);           // mlp.cc, all of the hidden layer for ffn_tokens
absl::Status ffn_residual(const LayerContext&, MicroBatch&);         // mlp.cc
absl::Status route_tokens(const LayerContext&, MicroBatch&);         // moe.cc
absl::Status dispatch_send(const LayerContext&, MicroBatch&);        // moe.cc
absl::Status shared_expert(const LayerContext&, MicroBatch&);        // moe.cc
absl::Status dispatch_recv(const LayerContext&, MicroBatch&);        // moe.cc
absl::Status run_experts(const LayerContext&, MicroBatch&);          // moe.cc
absl::Status combine_recv(const LayerContext&, MicroBatch&);         // moe.cc

// y = x W^T (+ bias), with x rounded through e4m3 first (in the arena) where FP8 activations ask for it.
void quantised_linear(const LayerContext& context, const Tensor& x, const PackedWeight& weight, const Tensor& bias,
                      const Tensor& y);
// down(silu(gate) * up) of rows x into y.
void mlp_forward(const LayerContext& context, const MlpWeights& weights, const Tensor& x, const Tensor& y);

}  // namespace moesaic
