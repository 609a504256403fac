// Log-probabilities of tokens under the model's logits.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// log_probs[r, i] = logits[r, ids[r, i]] - log(sum over the vocabulary of exp(logits[r])); -infinity for an id outside
// of the vocabulary (-1: none). Sums in f32, to about 1e-6; a NaN or +infinite logit makes the row NaN.
struct LogProbsArgs {
  Tensor logits;     // [num_rows, vocab] f32, rows may be strided
  Tensor ids;        // [num_rows, num_ids] i32
  Tensor log_probs;  // [num_rows, num_ids] f32
};
// Limits: vocab divisible by 4; at most 1024 ids a row.
absl::Status log_probs(cudaStream_t stream, const LogProbsArgs& args);

}  // namespace moesaic::cuda
