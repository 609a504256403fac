// Sampling: a token for each row of logits, without sorting the vocabulary.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// What moesaic::sample_token (ops.h) does, row by row: softmax(logits / temperature) cut by top_k, then top_p, then
// min_p, equal logits by id; temperature 0 is argmax, the lowest id on ties; NaN never wins, a row of NaN gives -1. The
// uniform number is Rng(seed, position).uniform() (base/rng.h). Masses are exact sums of weights rounded down to 2^-46
// of the largest, so that a result is the same in every run; it is another than the CPU's only where the uniform number
// or top_p falls within about 1e-8 of a border.
struct SampleArgs {
  Tensor logits;       // [num_rows, vocab] f32, rows may be strided
  Tensor temperature;  // [num_rows] f32
  Tensor top_k;        // [num_rows] i32; 0 = all
  Tensor top_p;        // [num_rows] f32
  Tensor min_p;        // [num_rows] f32
  Tensor seeds;        // [num_rows] i64, the bits of the u64 seed
  Tensor positions;    // [num_rows] i64, tokens that the sequence has generated
  Tensor ids;          // [num_rows] i32, out
};
// Limits: vocab divisible by 4, at most 344,064.
absl::Status sample(cudaStream_t stream, const SampleArgs& args);

}  // namespace moesaic::cuda
