// bf16 linears on Hopper: the router, the head, MTP's projection, and every linear of a checkpoint in bf16. Products
// are summed in f32 by the tensor cores.
//
// All tensors are in device memory. A call enqueues one kernel, allocates nothing and waits for nothing: it may be
// captured in a CUDA graph. The bits of a result depend on the shape alone. NaN stays in its row.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// y = x W^T.
struct Bf16GemmArgs {
  Tensor x;  // [m, k] bf16, rows may be strided
  Tensor w;  // [n, k] bf16
  Tensor y;  // [m, n] f32 (scores, logits) or bf16, rows may be strided; overwritten
};
// Limits: k and n divisible by 8; rows 16-byte aligned. No rows is no work.
absl::Status bf16_gemm(cudaStream_t stream, const Bf16GemmArgs& args);

}  // namespace moesaic::cuda
