// Quantised rows in the order of the experts: what stands between expert_rows and fp8_gemm_contiguous where tokens and
// experts are on one device.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// q_out[r] = q[row_tokens[r]], and its scales. Rows whose token is none (-1: padding) are not written.
struct GatherRowsArgs {
  Tensor q;           // [num_tokens, k] e4m3
  Tensor scales;      // [k / 128, scale_row_stride(num_tokens)] f32 (scales.h)
  Tensor row_tokens;  // [rows] i32
  Tensor q_out;       // [rows, k] e4m3
  Tensor scales_out;  // [k / 128, scale_row_stride(rows)] f32
};
// Limits: k divisible by 128.
absl::Status gather_rows(cudaStream_t stream, const GatherRowsArgs& args);

}  // namespace moesaic::cuda
