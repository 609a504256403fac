// Attention over expanded keys and values (MHA) on Hopper: what prompts use. Causal; sequences of different lengths lie
// one after the other; a sequence whose keys began in earlier chunks has more keys than queries. Can be captured in a
// CUDA graph: nothing is allocated, lengths are read on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

inline constexpr int kMlaKeyDim = 192, kMlaValueDim = 128;

inline constexpr int64_t kMlaPrefillWorkspaceBytes = 16;

// All tensors in device memory; rows may be strided (strides in multiples of 8 elements, starts 16-byte aligned).
struct MlaPrefillArgs {
  int64_t num_heads;
  Tensor q;         // [num_tokens, num_heads * 192] bf16, rope part rotated
  Tensor k;         // [num_keys, num_heads * 192] bf16
  Tensor v;         // [num_keys, num_heads * 128] bf16
  Tensor q_begin;   // [num_seqs + 1] i32: sequence s has queries q_begin[s] .. q_begin[s + 1] - 1, its last positions
  Tensor kv_begin;  // [num_seqs + 1] i32: and keys kv_begin[s] .. kv_begin[s + 1] - 1, at least as many
  float softmax_scale;
  Tensor workspace;  // kMlaPrefillWorkspaceBytes, scratch
  Tensor out;        // [num_tokens, num_heads * 128] bf16; rows of no sequence are not written
  int num_sms;       // DeviceInfo::num_sms
};
// Errors: what is not as above, named; at most 1,024 heads and 2^20 sequences.
absl::Status mla_prefill(cudaStream_t stream, const MlaPrefillArgs& args);

}  // namespace moesaic::cuda
