// FP8 linears on Hopper, the recipe of DeepSeek-V3 (report, section 3.3): x e4m3 with one f32 scale per row and 128 of
// k, W e4m3 with one per 128 x 128, products summed in f32 over 128 of k by the tensor cores, then scaled and added in
// f32, the result rounded to bf16 once.
//
// All tensors are in device memory. A call enqueues one kernel and returns: it allocates nothing, waits for nothing and
// reads counts on the device, so it may be captured in a CUDA graph. The bits of a result depend on the shape alone,
// not on other rows' values, the order of blocks, or repetition.
//
// Errors, before anything is enqueued: a shape, type or alignment that the kernels were not made for (k not a multiple
// of 128, n not of 8, rows not of 16 bytes), naming it. No rows is no work. NaN stays in its row.
#pragma once

#include <cuda_runtime_api.h>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

// y = x W^T.
struct Fp8GemmArgs {
  Tensor x;         // [m, k] e4m3, rows may be strided
  Tensor x_scales;  // [k / 128, scale_row_stride(m)] f32: see scales.h
  Tensor w;         // [n, k] e4m3
  Tensor w_scales;  // [ceil(n / 128), k / 128] f32
  Tensor y;         // [m, n] bf16, rows may be strided; overwritten
};
absl::Status fp8_gemm(cudaStream_t stream, const Fp8GemmArgs& args);

// y[r] = W[row_ids[r]] x[r]. A group's rows start at a multiple of 128 and are contiguous; the rest of its last 128 is
// padding with id -1, in any number, also whole tiles. `rows` may be any number. Padding is not written; it may be read
// and may be NaN. Groups may be empty.
struct Fp8GemmContiguousArgs {
  Tensor x;         // [rows, k] e4m3
  Tensor x_scales;  // [k / 128, scale_row_stride(rows)] f32
  Tensor w;         // [groups, n, k] e4m3
  Tensor w_scales;  // [groups, ceil(n / 128), k / 128] f32
  Tensor row_ids;   // [rows] i32, group of the row or -1; ids outside the groups count as -1
  Tensor y;         // [rows, n] bf16
};
absl::Status fp8_gemm_contiguous(cudaStream_t stream, const Fp8GemmContiguousArgs& args);

// y[g, r] = W[g] x[g, r] for r < group_rows[g], counts that only the device knows. Other rows are not written; they may
// be read and may be NaN. Counts are taken between 0 and max_rows.
struct Fp8GemmMaskedArgs {
  Tensor x;               // [groups, max_rows, k] e4m3
  Tensor x_scales;        // [groups, k / 128, scale_row_stride(max_rows)] f32
  Tensor w;               // [groups, n, k] e4m3
  Tensor w_scales;        // [groups, ceil(n / 128), k / 128] f32
  Tensor group_rows;      // [groups] i32
  Tensor y;               // [groups, max_rows, n] bf16
  int64_t expected_rows;  // of a group, about: only speed depends on it
};
absl::Status fp8_gemm_masked(cudaStream_t stream, const Fp8GemmMaskedArgs& args);

// y[t, h] = W[h] x[t, h] for every head: the absorbed k_b and v_b of MLA; x is quantised as the matrix [m, heads * k].
// Or y[t, h] = W[h] x[t], one x for all heads: kv_b, which makes keys and values of the cached latents. y may have room
// beside each head's n columns, which is not written: k_b writes the first 512 of mla_decode's 576, kv_b the first 128
// of mla_prefill's 192.
struct Fp8GemmBatchedArgs {
  Tensor x;         // [m, heads * k] or [m, k] e4m3, rows may be strided
  Tensor x_scales;  // [columns of x / 128, scale_row_stride(m)] f32
  Tensor w;         // [heads, n, k] e4m3
  Tensor w_scales;  // [heads, ceil(n / 128), k / 128] f32
  Tensor y;         // [m, heads, >= n] bf16
};
absl::Status fp8_gemm_batched(cudaStream_t stream, const Fp8GemmBatchedArgs& args);

}  // namespace moesaic::cuda
