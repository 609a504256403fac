// The GEMMs of this folder in one form: pointers and strides, checked. Every public operation makes one; each kernel's
// launcher reads it.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "base/status.h"
#include "kernels/cuda/gemm/gemm_config.h"

namespace moesaic::cuda {

struct GemmProblem {
  Grouping grouping;
  int64_t rows;                     // dense: of each group; contiguous: all; masked: room in each group
  int64_t n;                        // a multiple of 8
  int64_t k;                        // a multiple of 128
  int64_t groups;                   // weight matrices
  const void* x = nullptr;          // e4m3; row r of group g at g * x_group_stride + r * x_row_stride
  int64_t x_row_stride;             // multiples of 16
  int64_t x_group_stride;           // 0: all groups have the same rows, with the same scales
  const float* x_scales = nullptr;  // as scales.h says, for matrices of `rows` rows
  const void* w = nullptr;          // [groups, n, k] e4m3
  const float* w_scales = nullptr;  // [groups, ceil(n / 128), k / 128]
  void* y = nullptr;  // bf16; row r of group g at g * y_group_stride + r * y_row_stride; 16-byte aligned rows
  int64_t y_row_stride;
  int64_t y_group_stride;
  const int32_t* row_ids = nullptr;     // contiguous: [rows]
  const int32_t* group_rows = nullptr;  // masked: [groups]
};

// Launches what `config` names. Errors: a configuration that was not compiled; TMA refuses a tensor.
absl::Status launch_gemm(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms);
absl::Status launch_many_rows(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms);
absl::Status launch_few_rows(cudaStream_t stream, const GemmProblem& problem, const GemmConfig& config, int num_sms);

// The maps that both launchers need, with the boxes of their tiles.
struct GemmMaps {
  CUtensorMap x;       // boxes of 128 of k by `x_box` rows
  CUtensorMap scales;  // one k group of `scale_box` rows
  CUtensorMap w;       // 128 of k by `w_box` columns
};
absl::StatusOr<GemmMaps> make_gemm_maps(const GemmProblem& problem, int x_box, int scale_box, int w_box);
// Of y, for boxes of 64 rows by 64 columns in 128-byte swizzle.
absl::StatusOr<CUtensorMap> make_y_map(const GemmProblem& problem);
KernelArgs kernel_args(const GemmProblem& problem);

}  // namespace moesaic::cuda
