// MeasuredKernels: measured times of kernels (`moesaic bench kernels --out`). Where a table has rows of the same
// operation, KernelCost's formula is scaled by measured / predicted of the nearest of them, so that a measured shape
// costs what was measured. Immutable; any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cost/hardware.h"
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
  explicit MeasuredKernels(std::vector<MeasuredKernel> rows, std::string device = "")
      : rows_(std::move(rows)), device_(std::move(device)) {}
  // A JSON array of rows, or an object with the array "rows" and the text "device". Errors name the row and the field.
  static absl::StatusOr<std::shared_ptr<const MeasuredKernels>> parse(std::string_view json, const std::string& source);

  const std::vector<MeasuredKernel>& rows() const { return rows_; }
  // An error that names both where the table says what it was measured on, `hardware` is a known name, and that is
  // none of the device's words: "NVIDIA H200" is h200.
  absl::Status check_device(const HardwareSpec& hardware, const std::string& source) const;
  // Rows of one GEMM's n, k and dtype, whatever m and groups; of one attention's heads and dtype.
  std::vector<const MeasuredKernel*> gemms(bool grouped, int64_t n, int64_t k, Precision precision) const;
  std::vector<const MeasuredKernel*> attentions(std::string_view op, int64_t heads, bool fp8) const;

 private:
  std::vector<MeasuredKernel> rows_;
  std::string device_;  // empty: not said
};

}  // namespace moesaic
