// RMSNorm of rows of bf16, with what stands around it in a layer: the residual add before, quantisation after. One
// pass: each row is read once.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// h = x + residual, rounded to bf16 and written over residual (h = x without one);
// y = h / sqrt(mean(h^2) + eps) * weight in f32, written as bf16 to y, as e4m3 to q, or to both.
struct RmsNormArgs {
  Tensor x;         // [m, n] bf16, rows may be strided
  Tensor residual;  // [m, n] bf16 contiguous, in and out; or undefined
  Tensor weight;    // [n] bf16
  float eps;
  Tensor y;       // [m, n] bf16, rows may be strided; or undefined
  Tensor q;       // [m, n] e4m3 contiguous; or undefined
  Tensor scales;  // [n / 128, scale_row_stride(m)] f32 (scales.h); with q
};
// Limits: n divisible by 8 (128 with q), at most 16384; rows 16-byte aligned.
absl::Status rms_norm(cudaStream_t stream, const RmsNormArgs& args);

}  // namespace moesaic::cuda
