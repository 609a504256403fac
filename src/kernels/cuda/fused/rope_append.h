// Between MLA's projections and attention: rotation of queries and of the shared key, the norm of the latent, and the
// row appended to the paged cache, in one launch.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// Adjacent elements form the pairs that turn. A cache row is what moesaic::append_latent (ops.h) writes, byte for byte:
// [lora] latents and [rope_dim] rotated key as bf16, or an FP8 row: e4m3 latents, one f32 scale per 128 of them, the
// key as bf16 (DeepSeek-V3: 512 + 16 + 128 = 656 bytes). A token whose slot or position is outside (-1: padding) leaves
// everything as it was.
struct RopeAppendArgs {
  Tensor kv;           // [num_tokens, lora + rope_dim] bf16, rows may be strided: latent, then the key before rotation
  Tensor norm_weight;  // [lora] bf16: latents go through RMSNorm first; or undefined
  float eps;
  Tensor q;          // [num_tokens, num_heads, head_dim] bf16: the last rope_dim of each head turn; or undefined
  Tensor q_out;      // [num_tokens, num_heads, out_dim] bf16: they go to the last rope_dim here; undefined: in place
  Tensor table;      // [max_positions, rope_dim] f32, (cos, sin) pairs as moesaic::rope_table makes them
  Tensor positions;  // [num_tokens] i32
  Tensor slots;      // [num_tokens] i32, cache rows
  Tensor rows;       // [num_slots, lora + rope_dim] bf16, or [num_slots, lora + lora / 32 + 2 * rope_dim] e4m3
};
// Limits: lora divisible by 128 (FP8 rows: by 512), at most 2048; rope_dim, head_dim and out_dim divisible by 8.
absl::Status rope_append(cudaStream_t stream, const RopeAppendArgs& args);

}  // namespace moesaic::cuda
