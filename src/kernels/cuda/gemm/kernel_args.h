// What the two GEMM kernels are given besides their tensor maps. A kernel sees groups of rows that go through one
// weight matrix each; a plain GEMM is one group.
#pragma once

#include <cstdint>

namespace moesaic::cuda {

enum class Grouping {
  kDense,       // one group, or as many as there are weights, each with all `rows`
  kContiguous,  // one matrix of rows; every 128 of them have one weight, named by the first one's id
  kMasked,      // each group has room for `rows`, of which the first group_rows[g] count
};

// What the two blocks of a cluster share, each loading one half for both.
enum class Share {
  kWeights,  // they have the same columns and neighbouring rows
  kRows,     // they have the same rows and neighbouring columns
};

struct KernelArgs {
  const float* w_scales;      // [groups, ceil(n / 128), k_groups]
  const int32_t* row_ids;     // contiguous: [rows] group of a row, < 0 = none
  const int32_t* group_rows;  // masked: [groups]
  void* y;                    // bf16, row r of group g at g * y_group_stride + r * y_row_stride
  int64_t y_group_stride;
  int64_t y_row_stride;
  int rows;
  int n;
  int k_groups;  // k / 128
  int groups;
};

}  // namespace moesaic::cuda
