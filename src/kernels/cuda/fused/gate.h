// The MoE gate: scores, grouped selection, weights and expert counts in one launch.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "kernels/op_types.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// What moesaic::gate (ops.h) computes, with scores to about 1e-6: scores and selection in f32, the bias selects and
// never weighs, ties go to the lower expert, a row with a NaN score gets ids -1 and weights 0.
struct GateArgs {
  Tensor logits;     // [num_tokens, num_experts] f32 contiguous
  Tensor bias;       // [num_experts] f32; or undefined
  Tensor num_valid;  // [1] i32: rows from it on are padding and get ids -1; or undefined
  ScoringFunc scoring_func;
  TopkMethod topk_method;
  int64_t n_group;
  int64_t topk_group;
  bool norm_topk_prob;
  float routed_scaling_factor;
  Tensor topk_ids;       // [num_tokens, num_experts_per_tok] i32, best first, -1 = not routed
  Tensor topk_weights;   // [num_tokens, num_experts_per_tok] f32
  Tensor expert_counts;  // [num_experts] i32, the tokens of each expert are added; or undefined
};
// Limits: at most 512 experts and 32 chosen; groups as moesaic::gate. DeepSeek-V3's (sigmoid, 256 experts in 8 groups
// of which 4 are kept by their best two, 8 chosen) has a kernel of its own.
absl::Status gate(cudaStream_t stream, const GateArgs& args);

}  // namespace moesaic::cuda
