// Absorbed MLA attention over the paged latent cache on Hopper: what ops.h defines as mla_decode, for 512 latents and
// 64 rotated keys a row. One kernel of persistent blocks works through a plan that is made on the device, and a second
// one merges the parts of sequences that were split. Both can be captured in a CUDA graph: nothing is allocated,
// nothing is read on the host; lengths may change between replays as long as num_seqs and max_q_len stay.
//   MOESAIC_RETURN_IF_ERROR(mla_decode_plan(stream, shape, kv_lens, q_begin, plan));  // once a step
//   MOESAIC_RETURN_IF_ERROR(mla_decode(stream, args));                       // in every layer
// Results depend on the plan, so on all lengths of the batch, but not on timing: the same call gives the same bits.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

inline constexpr int kMlaLatentDim = 512, kMlaRopeDim = 64, kMlaBlockTokens = 64;
inline constexpr int kMlaFp8RowBytes = 656;  // 512 e4m3, 4 f32 scales, 64 bf16
inline constexpr int kMlaMaxQueries = 4, kMlaMaxHeads = 128, kMlaMaxSeqs = 8192;

// What decides how the work is cut; the same for plan and call.
struct MlaDecodeShape {
  int64_t num_seqs;   // 1 .. 8192, padding included
  int64_t num_heads;  // 1 .. 128
  int64_t max_q_len;  // 1 .. 4, of any sequence
  DType cache_dtype;  // bf16, or e4m3 for FP8 rows
  int num_sms;        // DeviceInfo::num_sms
};

int64_t mla_decode_plan_bytes(const MlaDecodeShape& shape);
int64_t mla_decode_workspace_bytes(const MlaDecodeShape& shape);

// Deals the sequences out to the device's multiprocessors: whole ones in order, the last cut where a share is full.
// In device memory: kv_lens [num_seqs] i32, >= 0, the step's own rows included; 0 gives zeros. q_begin [num_seqs + 1]
// i32: sequence s has tokens q_begin[s] .. q_begin[s + 1] - 1, its last positions. plan: at least
// mla_decode_plan_bytes, 16-byte aligned; written.
absl::Status mla_decode_plan(cudaStream_t stream, const MlaDecodeShape& shape, const Tensor& kv_lens,
                             const Tensor& q_begin, const Tensor& plan);

// All tensors in device memory, contiguous unless said otherwise.
struct MlaDecodeArgs {
  MlaDecodeShape shape;
  Tensor q;            // [num_tokens, num_heads, 576] bf16: absorbed nope part, then rotated rope part
  Tensor rows;         // [num_blocks * 64, 576] bf16, or [num_blocks * 64, 656] e4m3 (the rows of ops.h LatentCache)
  Tensor block_table;  // [num_seqs, >= max blocks] i32, rows may be strided; entries past a sequence's end are not read
  float softmax_scale;
  Tensor plan;       // made by mla_decode_plan from the same shape
  Tensor workspace;  // mla_decode_workspace_bytes, 16-byte aligned; scratch
  Tensor out;        // [num_tokens, num_heads, 512] bf16; tokens of no sequence are not written
};
// Errors: a shape outside the limits above, with the kernel's name.
absl::Status mla_decode(cudaStream_t stream, const MlaDecodeArgs& args);

}  // namespace moesaic::cuda
