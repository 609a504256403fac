#include "kernels/packed_weight.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t packed_n(const PackedWeight::Source& source) {
  return source.weight.dim(source.transpose ? 1 : 0);
}

int64_t packed_k(const PackedWeight::Source& source) {
  return source.weight.dim(source.transpose ? 0 : 1);
}

// Offset of the packed k axis in the whole matrix.
int64_t k_offset(const PackedWeight::Source& source) {
  return source.transpose ? source.row_offset : source.col_offset;
}

int64_t first_group_end_of(const PackedWeight::Source& source) {
  if (source.weight.dtype() != DType::kE4M3) return packed_k(source);
  const int64_t into_group = k_offset(source) % PackedWeight::kScaleGroup;
  return std::min(packed_k(source), PackedWeight::kScaleGroup - into_group);
}

absl::Status check_source(const PackedWeight::Source& source) {
  const Tensor& weight = source.weight;
  const DType dtype = weight.dtype();
  if (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kE4M3) {
    return absl::InvalidArgumentError(
        str_cat("a linear weight must be f32, bf16 or e4m3, this one is ", dtype_name(dtype)));
  }
  if (weight.rank() != 2 || weight.dim(0) < 1 || weight.dim(1) < 1) {
    return absl::InvalidArgumentError(str_cat(
        "a linear weight must be a matrix with rows and columns, this one has shape ", weight.shape().to_string()));
  }
  if (source.row_offset < 0 || source.col_offset < 0) {
    return absl::InvalidArgumentError(str_cat("offsets of a weight shard must not be negative, found row ",
                                              source.row_offset, ", column ", source.col_offset));
  }
  if (dtype != DType::kE4M3) return absl::OkStatus();
  const Tensor& scales = source.scale_inv;
  if (!scales.defined() || scales.dtype() != DType::kF32 || scales.rank() != 2) {
    return absl::InvalidArgumentError("an e4m3 weight needs weight_scale_inv, a matrix of f32");
  }
  const int64_t rows = ceil_div(source.row_offset + weight.dim(0), PackedWeight::kScaleGroup);
  const int64_t cols = ceil_div(source.col_offset + weight.dim(1), PackedWeight::kScaleGroup);
  if (scales.dim(0) < rows || scales.dim(1) < cols) {
    return absl::InvalidArgumentError(
        str_cat("weight_scale_inv must have at least [", rows, ", ", cols,
                "] entries, one per 128x128 block of the weight (the last may be partial),", " but has ",
                scales.shape().to_string()));
  }
  return absl::OkStatus();
}

// dst[k][slot] = source row (or column) by row; all rows lie in one panel or several.
template <typename T>
void copy_rows(const PackedWeight::Source& source, int64_t row_begin, DType dtype, T* data) {
  const int64_t n = packed_n(source), k = packed_k(source), stride = source.weight.row_stride();
  const T* from = source.weight.data<T>();
  const int64_t row_step = source.transpose ? 1 : stride, k_step = source.transpose ? stride : 1;
  constexpr int64_t kCols = PackedWeight::kPanelCols;
  for (int64_t row = 0; row < n; ++row) {
    const int64_t at = row_begin + row;
    T* to = data + at / kCols * k * kCols + PackedWeight::slot(dtype, at % kCols);
    const T* line = from + row * row_step;
    for (int64_t i = 0; i < k; ++i) to[i * kCols] = line[i * k_step];
  }
}

absl::Status check_no_nan(const Tensor& weight) {
  for (int64_t row = 0; row < weight.dim(0); ++row) {
    const uint8_t* line = weight.row<uint8_t>(row);
    bool found = false;
    for (int64_t i = 0; i < weight.dim(1); ++i) found |= (line[i] & 0x7f) == 0x7f;
    if (found) return absl::DataLossError(str_cat("e4m3 weight has a NaN in row ", row, "; the checkpoint is damaged"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PackedWeight> PackedWeight::pack(const Source& source) {
  return pack_rows(&source, 1);
}

absl::StatusOr<PackedWeight> PackedWeight::pack_rows(const Source* sources, int num_sources) {
  PackedWeight packed;
  MOESAIC_RETURN_IF_ERROR(packed.reserve(sources, num_sources, [](int64_t num_bytes) { return Buffer(num_bytes); }));
  int64_t row_begin = 0;
  for (int i = 0; i < num_sources; ++i) {
    MOESAIC_RETURN_IF_ERROR(packed.fill(sources[i], row_begin));
    row_begin += packed_n(sources[i]);
  }
  return packed;
}

absl::StatusOr<PackedWeight> PackedWeight::measure_rows(const Source* sources, int num_sources) {
  PackedWeight measured;
  MOESAIC_RETURN_IF_ERROR(measured.reserve(sources, num_sources, Buffer::size_only));
  return measured;
}

absl::Status PackedWeight::reserve(const Source* sources, int num_sources, Buffer (*make_buffer)(int64_t num_bytes)) {
  MOESAIC_CHECK_GE(num_sources, 1);
  for (int i = 0; i < num_sources; ++i) {
    MOESAIC_RETURN_IF_ERROR(check_source(sources[i]));
    if (sources[i].weight.dtype() != sources[0].weight.dtype() || packed_k(sources[i]) != packed_k(sources[0])) {
      return absl::InvalidArgumentError(str_cat("matrices packed together must agree in dtype and input size, found ",
                                                dtype_name(sources[0].weight.dtype()), " with ", packed_k(sources[0]),
                                                " and ", dtype_name(sources[i].weight.dtype()), " with ",
                                                packed_k(sources[i])));
    }
    if (first_group_end_of(sources[i]) != first_group_end_of(sources[0])) {
      return absl::InvalidArgumentError(
          str_cat("e4m3 shards packed together must start at the same place of a scale group, found offsets ",
                  k_offset(sources[0]), " and ", k_offset(sources[i])));
    }
    n_ += packed_n(sources[i]);
  }
  dtype_ = sources[0].weight.dtype();
  k_ = packed_k(sources[0]);
  first_group_end_ = first_group_end_of(sources[0]);
  data_ = make_buffer(num_panels() * kPanelCols * k_ * dtype_bytes(dtype_));
  panels_ = static_cast<const std::byte*>(data_.data());
  if (dtype_ != DType::kE4M3) return absl::OkStatus();
  scale_stride_ = ceil_div(n_, kScaleCols) * kScaleCols;
  scales_ = make_buffer(num_groups() * scale_stride_ * int64_t{sizeof(float)});
  first_scales_ = static_cast<const float*>(scales_.data());
  return absl::OkStatus();
}

PackedWeight PackedWeight::rows(int64_t begin, int64_t end) const {
  MOESAIC_CHECK(0 <= begin && begin <= end && end <= n_);
  MOESAIC_CHECK(begin % kScaleCols == 0 && (end % kScaleCols == 0 || end == n_));
  PackedWeight part;
  part.dtype_ = dtype_;
  part.n_ = end - begin;
  part.k_ = k_;
  part.first_group_end_ = first_group_end_;
  part.scale_stride_ = scale_stride_;
  part.panels_ = static_cast<const std::byte*>(panel(begin / kPanelCols));
  part.first_scales_ = first_scales_ == nullptr ? nullptr : first_scales_ + begin;
  return part;
}

absl::Status PackedWeight::fill(const Source& source, int64_t row_begin) {
  switch (dtype_) {
    case DType::kF32:
      copy_rows(source, row_begin, dtype_, static_cast<float*>(data_.data()));
      return absl::OkStatus();
    case DType::kBF16:
      copy_rows(source, row_begin, dtype_, static_cast<uint16_t*>(data_.data()));
      return absl::OkStatus();
    default:
      break;
  }
  MOESAIC_RETURN_IF_ERROR(check_no_nan(source.weight));
  copy_rows(source, row_begin, dtype_, static_cast<uint8_t*>(data_.data()));
  float* scales = static_cast<float*>(scales_.data());
  const int64_t n_offset = source.transpose ? source.col_offset : source.row_offset;
  for (int64_t group = 0; group < num_groups(); ++group) {
    const int64_t k_block = k_offset(source) / kScaleGroup + group;
    for (int64_t row = 0; row < packed_n(source); ++row) {
      const int64_t n_block = (n_offset + row) / kScaleGroup;
      const float scale = source.transpose ? source.scale_inv.row<float>(k_block)[n_block]
                                           : source.scale_inv.row<float>(n_block)[k_block];
      const float folded = scale / kDecodeFactor;
      if (!std::isfinite(folded)) {
        return absl::DataLossError(str_cat("weight_scale_inv holds ", scale, ", expected a finite value below 2^72"));
      }
      scales[group * scale_stride_ + row_begin + row] = folded;
    }
  }
  return absl::OkStatus();
}

int64_t PackedWeight::num_groups() const {
  return 1 + ceil_div(k_ - first_group_end_, kScaleGroup);
}

int64_t PackedWeight::slot(DType dtype, int64_t col) {
  const int64_t vec = col / 8, lane = col % 8;
  switch (dtype) {
    case DType::kE4M3:  // of each 32-bit word the even bytes, then the odd bytes
      return lane * 4 + vec % 2 * 2 + vec / 2;
    case DType::kBF16:  // 32-bit words of each 32 bytes: low halves, then high halves
      return vec / 2 * 16 + lane * 2 + vec % 2;
    default:
      return col;
  }
}

const void* PackedWeight::panel(int64_t p) const {
  return panels_ + p * k_ * kPanelCols * dtype_bytes(dtype_);
}

const float* PackedWeight::group_scales(int64_t group) const {
  return first_scales_ + group * scale_stride_;
}

float PackedWeight::at(int64_t row, int64_t col) const {
  const int64_t index = col * kPanelCols + slot(dtype_, row % kPanelCols);
  const void* from = panel(row / kPanelCols);
  if (dtype_ == DType::kF32) return static_cast<const float*>(from)[index];
  if (dtype_ == DType::kBF16) return bf16_to_f32(static_cast<const uint16_t*>(from)[index]);
  const int64_t group = col < first_group_end_ ? 0 : 1 + (col - first_group_end_) / kScaleGroup;
  return e4m3_to_f32(static_cast<const uint8_t*>(from)[index]) * (group_scales(group)[row] * kDecodeFactor);
}

}  // namespace moesaic
