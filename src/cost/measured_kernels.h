// MeasuredKernels: measured times of kernels (`moesaic bench kernels --out`). Where a table has rows of the same
// operation, KernelCost's formula is scaled by measured / predicted of the nearest of them, so that a measured shape
// costs what was measured. Immutable; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cost/kernel_shapes.h"

namespace moesaic {

struct MeasuredKernel {
  std::string op;  // "gemm_dense", "gemm_contiguous", "gemm_masked", "mla_decode" or "mla_prefill"
  double m = 0;    // rows of each group
  int64_t n = 0, k = 0;
  double groups = 1;
  double batch = 0, q_len = 1, kv_len = 0;
  int64_t heads = 0;
  std::string dtype;  // "fp8" or "bf16"
  double us = 0;
};

class MeasuredKernels {
 public:
  explicit MeasuredKernels(std::vector<MeasuredKernel> rows) : rows_(std::move(rows)) {}
  // A JSON array of rows, or an object with the array "rows". Errors name the row and the field.
  static absl::StatusOr<std::shared_ptr<const MeasuredKernels>> parse(std::string_view json, const std::string& source);

  const std::vector<MeasuredKernel>& rows() const { return rows_; }
  // Rows of one GEMM's n, k and dtype, whatever m and groups; of one attention's heads and dtype.
  std::vector<const MeasuredKernel*> gemms(bool grouped, int64_t n, int64_t k, Precision precision) const;
  std::vector<const MeasuredKernel*> attentions(std::string_view op, int64_t heads, bool fp8) const;

 private:
  std::vector<MeasuredKernel> rows_;
};

}  // namespace moesaic
