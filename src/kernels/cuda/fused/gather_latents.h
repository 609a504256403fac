// Cached rows for prefill: what kv_b expands into keys and values, and the part of the keys that is cached as it is.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// Key i of sequence s is row kv_begin[s] + i; its cache row is block_table[s, i / 64] * 64 + i % 64. Latents become
// e4m3 with scales (quantised as by quantize_fp8; FP8 rows hold them already, their bytes are copied); the rotated key
// goes to the last rope_dim of every head. kv_b's products go beside it: fp8_gemm_batched with one x for all heads
// writes the first columns of `keys`.
struct GatherLatentsArgs {
  Tensor rows;         // [num_blocks * 64, lora + rope_dim] bf16, or FP8 rows [num_blocks * 64, bytes] (ops.h)
  Tensor block_table;  // [num_seqs, >= blocks] i32, rows may be strided; entries past a sequence's end are not read
  Tensor kv_begin;     // [num_seqs + 1] i32, from 0, ascending
  int64_t rope_dim;
  Tensor q;       // [num_keys, lora] e4m3
  Tensor scales;  // [lora / 128, scale_row_stride(num_keys)] f32 (scales.h)
  Tensor keys;    // [num_keys, num_heads, key_dim] bf16
};
// Limits: lora divisible by 128 (FP8 rows: by 512), at most 1024; rope_dim and key_dim divisible by 8; at most 2^20
// sequences. Rows of no sequence, and keys whose block is outside of the cache, are not written.
absl::Status gather_latents(cudaStream_t stream, const GatherLatentsArgs& args);

}  // namespace moesaic::cuda
