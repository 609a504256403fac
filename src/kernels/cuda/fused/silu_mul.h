// The activation between an expert's two linears: silu(gate) * up, quantised for the second. Which rows hold tokens is
// read on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// v = silu(gate_up[row, :n]) * gate_up[row, n:] in f32; q = e4m3(v / scale) with scale = max(amax of 128, 1e-4) / 448.
// Rows of group g: [group_begin[g], group_begin[g] + group_rows[g]) (contiguous layout), or [g * rows / num_groups, +
// group_rows[g]) without group_begin (masked layout). Without group_rows: every row. Other rows are neither read nor
// written.
struct SiluMulQuantizeArgs {
  Tensor gate_up;      // [rows, 2n] bf16 contiguous
  Tensor group_begin;  // [num_groups] i32; or undefined
  Tensor group_rows;   // [num_groups] i32, taken between 0 and the room (contiguous: rows); or undefined
  Tensor q;            // [rows, n] e4m3 contiguous
  // scales.h: contiguous [n / 128, scale_row_stride(rows)] f32, masked [num_groups, n / 128, scale_row_stride(rows /
  // num_groups)] f32.
  Tensor scales;
};
// Limits: n divisible by 128, at most 1024 groups.
absl::Status silu_mul_quantize(cudaStream_t stream, const SiluMulQuantizeArgs& args);

}  // namespace moesaic::cuda
