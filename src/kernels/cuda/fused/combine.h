// The weighted sum of the experts' results, and embedding rows: gathers of bf16 rows.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// y[t] = base[t] + sum over i of weights[t, i] * x[row_ids[t, i]], summed in f32 in order of i (the gate's top-k order,
// whoever computed the rows), products and sums rounded apart; then base is added, then bf16. The bits do not depend on
// where the rows lie.
struct CombineArgs {
  Tensor x;        // [num_rows, n] bf16, rows may be strided
  Tensor row_ids;  // [num_tokens, num_experts_per_tok] i32; outside of x (-1): adds nothing
  Tensor weights;  // [num_tokens, num_experts_per_tok] f32
  Tensor base;     // [num_tokens, n] bf16, rows may be strided (the shared expert's); or undefined
  Tensor y;        // [num_tokens, n] bf16, rows may be strided; may be base
};
// Limits: n divisible by 8, at most 32 experts a token.
absl::Status combine(cudaStream_t stream, const CombineArgs& args);

// y[t] = table[ids[t]]; zeros where the id is outside of the table (-1: padding).
struct EmbeddingArgs {
  Tensor table;  // [vocab, n] bf16 contiguous
  Tensor ids;    // [num_tokens] i32
  Tensor y;      // [num_tokens, n] bf16, rows may be strided
};
// Limits: n divisible by 8.
absl::Status embedding(cudaStream_t stream, const EmbeddingArgs& args);

}  // namespace moesaic::cuda
