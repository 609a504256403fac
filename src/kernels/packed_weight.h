// PackedWeight: one weight matrix W [n, k] in the layout that the CPU kernels stream. Immutable after pack(); shared
// between threads. Rows (n) lie in panels of kPanelCols output columns; inside a panel, k runs slowest:
// data[panel][k][kPanelCols], where slot() says which of the 32 places a column takes. e4m3 keeps its bytes (never
// widened in memory) with one f32 scale per output column and scale group of 128 k: scales[group][n_padded]. bf16 and
// f32 have no scales. Columns past n are zero.
// Accumulation over k is sequential per output, by FMA, and restarts at each scale group (total = fma(acc, scale,
// total)), so a row of y has the same bits whatever the number of rows beside it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic {

class PackedWeight {
 public:
  static constexpr int64_t kPanelCols = 32;
  static constexpr int64_t kScaleGroup = 128;
  static constexpr int64_t kScaleCols = 64;  // unit of the scale rows: two panels

  struct Source {
    Tensor weight;           // [n, k] f32, bf16 or e4m3; any row stride
    Tensor scale_inv;        // e4m3: [ceil(n_full/128), ceil(k_full/128)] f32 of the whole matrix; else undefined
    int64_t row_offset = 0;  // where `weight` starts in the whole matrix, so that shards find their scales
    int64_t col_offset = 0;
    bool transpose = false;  // pack W^T: n and k change places (offsets keep naming the source's rows and columns)
  };

  PackedWeight() = default;
  // Errors: unsupported dtype, empty matrix, scale grid that does not cover the matrix, scale that is not finite, NaN
  // among e4m3 weights (the kernels decode without looking for it).
  static absl::StatusOr<PackedWeight> pack(const Source& source);
  // Rows of several matrices with one k, dtype and place of scale groups, one after the other (gate and up; q_a and
  // kv_a).
  static absl::StatusOr<PackedWeight> pack_rows(const Source* sources, int num_sources);
  // Of what pack_rows would give only shape and num_bytes(); the sources' data is not read.
  static absl::StatusOr<PackedWeight> measure_rows(const Source* sources, int num_sources);

  // Rows [begin, end) of this weight, borrowed; both are multiples of kScaleCols, or end is n.
  PackedWeight rows(int64_t begin, int64_t end) const;

  int64_t n() const { return n_; }
  int64_t k() const { return k_; }
  DType dtype() const { return dtype_; }
  bool defined() const { return n_ > 0; }
  int64_t num_panels() const { return (n_ + kPanelCols - 1) / kPanelCols; }
  int64_t num_bytes() const { return data_.num_bytes() + scales_.num_bytes(); }
  // k of the first scale group's end: 128 unless the shard starts inside a group. Groups end at
  // first_group_end, first_group_end + 128, ...; the last at k.
  int64_t first_group_end() const { return first_group_end_; }
  int64_t num_groups() const;
  // Where column `col` (0 .. kPanelCols - 1) lies in each row of a panel, in elements. Chosen so that SIMD decoding
  // yields columns in order without shuffles.
  static int64_t slot(DType dtype, int64_t col);
  const void* panel(int64_t p) const;
  // [n rounded up to kScaleCols] f32, times 1 / kDecodeFactor: the kernels decode a weight to its value *
  // kDecodeFactor.
  const float* group_scales(int64_t group) const;
  static constexpr float kDecodeFactor = 0x1.0p-56f;
  // The value of W[row, col] as multiplied: for tests and tools, slow.
  float at(int64_t row, int64_t col) const;

 private:
  // Shape and buffers of the stacked sources.
  absl::Status reserve(const Source* sources, int num_sources, Buffer (*make_buffer)(int64_t num_bytes));
  absl::Status fill(const Source& source, int64_t row_begin);

  DType dtype_ = DType::kF32;
  int64_t n_ = 0;
  int64_t k_ = 0;
  int64_t first_group_end_ = kScaleGroup;
  int64_t scale_stride_ = 0;
  const std::byte* panels_ = nullptr;  // in data_, or in that of the weight of which this is a part
  const float* first_scales_ = nullptr;
  Buffer data_;
  Buffer scales_;
};

}  // namespace moesaic
