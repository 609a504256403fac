// Activations as e4m3 with one f32 scale per row and 128 channels, the bytes of kernels/cpu/quantize_plain.cc.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// scale = max(amax of 128 channels, 1e-4) / 448, q = e4m3(x / scale), saturated.
struct QuantizeArgs {
  // [m, k] bf16, rows may be strided. Or [m, heads, >= k / heads]: the first k / heads channels of each head, as
  // fp8_gemm_batched reads them (MLA's queries: 128 of 192, before k_b).
  Tensor x;
  Tensor q;       // [m, k] e4m3 contiguous
  Tensor scales;  // [k / 128, scale_row_stride(m)] f32 (scales.h)
};
// Limits: k, or k / heads, divisible by 128; rows and heads 16-byte aligned.
absl::Status quantize_fp8(cudaStream_t stream, const QuantizeArgs& args);

}  // namespace moesaic::cuda
