// Linears in bf16 on Hopper: the router's logits, the head, checkpoints without FP8. Products are exact, sums are f32
// in the tensor cores, rounded once where y is bf16.
//
// As fp8_gemm.h says: device memory, one kernel, no allocation, no wait, capturable; the bits depend on the shape
// alone. Errors, before anything is enqueued: a shape, type or alignment that the kernel was not made for (k not a
// multiple of 64, n not of 8, rows not of 16 bytes), naming it. No rows is no work. NaN stays in its row.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// y = x W^T.
struct Bf16GemmArgs {
  Tensor x;  // [m, k] bf16, rows may be strided
  Tensor w;  // [n, k] bf16
  Tensor y;  // [m, n] f32 or bf16, rows may be strided; overwritten
};
absl::Status bf16_gemm(cudaStream_t stream, const Bf16GemmArgs& args);

}  // namespace moesaic::cuda
