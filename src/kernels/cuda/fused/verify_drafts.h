// The check of drafts against what was sampled.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// Drafted tokens count as long as they are what was sampled: num_accepted[s] is the number of leading i with
// draft_ids[s, i] == sampled_ids[s, i]; next_ids[s] = sampled_ids[s, num_accepted[s]].
struct VerifyDraftsArgs {
  Tensor draft_ids;     // [num_seqs, depth] i32
  Tensor num_drafts;    // [num_seqs] i32, at most depth; or undefined: depth
  Tensor sampled_ids;   // [num_seqs, depth + 1] i32; -1 (nothing could be sampled) accepts no draft
  Tensor num_accepted;  // [num_seqs] i32, out
  Tensor next_ids;      // [num_seqs] i32, out
};
absl::Status verify_drafts(cudaStream_t stream, const VerifyDraftsArgs& args);

}  // namespace moesaic::cuda
