// What stands between the head and sampling: penalties for tokens that were seen, and the tokens that a constrained
// output allows.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// In place. First moesaic::apply_penalties (ops.h), bit for bit, where seen tokens are given; then, where `allowed` is
// given, logits of tokens whose bit is 0 become -infinity.
struct AdjustLogitsArgs {
  Tensor logits;                // [num_rows, vocab] f32, rows may be strided
  Tensor seen_begin;            // [num_rows + 1] i32, ascending: row r has seen tokens seen_begin[r] .. ; or undefined
  Tensor seen_ids;              // [num_seen] i32, distinct within a row; outside of the vocabulary (-1): none
  Tensor seen_counts;           // [num_seen] i32, occurrences in the output; 0 = in the prompt alone
  Tensor frequency_penalties;   // [num_rows] f32
  Tensor presence_penalties;    // [num_rows] f32
  Tensor repetition_penalties;  // [num_rows] f32, 1 = none
  Tensor allowed;               // [num_rows, ceil(vocab / 64)] i64, bit i % 64 of word i / 64; or undefined
};
// Limits: vocab divisible by 4; at most 65,535 rows.
absl::Status adjust_logits(cudaStream_t stream, const AdjustLogitsArgs& args);

}  // namespace moesaic::cuda
