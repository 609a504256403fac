#include <algorithm>
#include <cmath>

#include "kernels/cpu/linear_kernels.h"

namespace moesaic {
namespace {

constexpr int64_t kCols = PackedWeight::kPanelCols;

// One row of the panel (one k) to f32, columns in order; e4m3 times kDecodeFactor.
void decode_row(DType dtype, const void* row, float* out) {
  for (int64_t col = 0; col < kCols; ++col) {
    const int64_t slot = PackedWeight::slot(dtype, col);
    switch (dtype) {
      case DType::kE4M3:
        out[col] = e4m3_to_f32(static_cast<const uint8_t*>(row)[slot]) * PackedWeight::kDecodeFactor;
        break;
      case DType::kBF16:
        out[col] = bf16_to_f32(static_cast<const uint16_t*>(row)[slot]);
        break;
      default:
        out[col] = static_cast<const float*>(row)[slot];
        break;
    }
  }
}

void panel_row(const LinearPanels& args, int64_t panel, int64_t i) {
  const PackedWeight& weight = *args.weight;
  const DType dtype = weight.dtype();
  const float* x = args.x + i * args.x_stride;
  const char* data = static_cast<const char*>(weight.panel(panel));
  float total[kCols] = {}, acc[kCols] = {}, w[kCols];
  int64_t begin = 0, end = weight.first_group_end();
  for (int64_t group = 0; begin < weight.k(); ++group) {
    for (int64_t k = begin; k < end; ++k) {
      decode_row(dtype, data + k * kCols * dtype_bytes(dtype), w);
      for (int64_t col = 0; col < kCols; ++col) acc[col] = std::fma(x[k], w[col], acc[col]);
    }
    for (int64_t col = 0; col < kCols; ++col) {
      if (dtype == DType::kE4M3) {
        total[col] = std::fma(acc[col], weight.group_scales(group)[panel * kCols + col], total[col]);
        acc[col] = 0.0f;
      } else {
        total[col] = acc[col];
      }
    }
    begin = end;
    end = std::min(end + PackedWeight::kScaleGroup, weight.k());
  }
  const int64_t num_cols = std::min(kCols, weight.n() - panel * kCols);
  float* y = args.y + i * args.y_stride + panel * kCols;
  for (int64_t col = 0; col < num_cols; ++col) {
    y[col] = args.bias == nullptr ? total[col] : total[col] + args.bias[panel * kCols + col];
  }
}

}  // namespace

void linear_panels_plain(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
  for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (int64_t i = 0; i < args.m; ++i) panel_row(args, panel, i);
  }
}

}  // namespace moesaic
