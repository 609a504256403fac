// Activations as e4m3 with one f32 scale per row and 128 channels, the bytes of kernels/cpu/quantize_plain.cc.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// scale = max(amax of 128 channels, 1e-4) / 448, q = e4m3(x / scale), saturated.
struct QuantizeArgs {
  Tensor x;       // [m, k] bf16, rows may be strided
  Tensor q;       // [m, k] e4m3 contiguous
  Tensor scales;  // [k / 128, scale_row_stride(m)] f32 (scales.h)
};
// Limits: k divisible by 128, at most 16384; rows 16-byte aligned.
absl::Status quantize_fp8(cudaStream_t stream, const QuantizeArgs& args);

}  // namespace moesaic::cuda
