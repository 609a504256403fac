// The inner part of linear, without threads: some panels of one weight applied to some rows. Any thread; used by the
// operations of this folder that do their own splitting.
#pragma once

#include <cstdint>

#include "kernels/packed_weight.h"
#include "tensor/stream.h"

namespace moesaic {

// y[i, c] = x[i, :] . W[c, :] + bias[c] for i < m and the columns c of panels [panel_begin, panel_end); y and bias
// point at column 0 of the weight. Rows are x_stride and y_stride floats apart.
struct LinearPanels {
  const PackedWeight* weight;
  const float* x;
  int64_t x_stride;
  int64_t m;
  float* y;
  int64_t y_stride;
  const float* bias;  // or null
  LinearMath math = LinearMath::kExact;
};
void linear_panels(const LinearPanels& args, int64_t panel_begin, int64_t panel_end);

// Rows that one thread takes through a panel at a time: their activations stay in the second-level cache.
inline constexpr int64_t kRowChunk = 128;

// The definition, in plain C++; what the other paths must equal bit for bit.
void linear_panels_plain(const LinearPanels& args, int64_t panel_begin, int64_t panel_end);
// Only where isa_supported().
void linear_panels_avx2(const LinearPanels& args, int64_t panel_begin, int64_t panel_end);
void linear_panels_avx512(const LinearPanels& args, int64_t panel_begin, int64_t panel_end);
// Sums in another order than the definition: equal to rounding; less exact with LinearMath::kShort.
void linear_panels_amx(const LinearPanels& args, int64_t panel_begin, int64_t panel_end);

}  // namespace moesaic
