// Residual add and SiLU(gate) * up.
#include <algorithm>

#include "kernels/cpu/quantize_rows.h"
#include "kernels/cpu/vector_ops.h"
#include "kernels/ops.h"

namespace moesaic {

void add_inplace(Stream& stream, const Tensor& y, const Tensor& x) {
  MOESAIC_CHECK_EQ(y.shape(), x.shape());
  if (y.num_elements() == 0) return;
  MOESAIC_CHECK(y.is_contiguous() && x.is_contiguous());
  float* to = y.f32();
  const float* from = x.f32();
  stream.pool().parallel_for(y.num_elements(), 16384, [&](int64_t begin, int64_t end) {
    vector_ops().add(to + begin, from + begin, end - begin);
  });
}

void silu_mul(Stream& stream, const SiluMulArgs& args) {
  const int64_t m = args.gate_up.dim(0), n = args.y.dim(1);
  MOESAIC_CHECK_EQ(args.gate_up.dim(1), 2 * n);
  MOESAIC_CHECK_EQ(args.y.dim(0), m);
  MOESAIC_CHECK_EQ(args.group_begin.size(), args.group_rows.size());
  if (m == 0) return;
  args.gate_up.f32(), args.y.f32();
  const int32_t all_begin = 0, all_rows = static_cast<int32_t>(m);
  const bool grouped = !args.group_begin.empty();
  const std::span<const int32_t> begins = grouped ? args.group_begin : std::span(&all_begin, 1);
  const std::span<const int32_t> rows = grouped ? args.group_rows : std::span(&all_rows, 1);
  int64_t num_rows = 0;
  for (size_t g = 0; g < rows.size(); ++g) {
    MOESAIC_CHECK(rows[g] >= 0 && (rows[g] == 0 || (begins[g] >= 0 && begins[g] + int64_t{rows[g]} <= m)));
    num_rows += rows[g];
  }
  const VectorOps& ops = vector_ops();
  // A share is at least some 4 k elements, or waking the pool costs more than it gains.
  stream.pool().parallel_for(
      num_rows, std::max<int64_t>(1, 4096 / std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
        int64_t first = 0;  // of the group, counted over the rows of all groups
        for (size_t g = 0; g < rows.size() && first < end; first += rows[g++]) {
          for (int64_t i = std::max(begin - first, int64_t{0}); i < std::min<int64_t>(end - first, rows[g]); ++i) {
            const float* gate = args.gate_up.row<float>(begins[g] + i);
            float* y = args.y.row<float>(begins[g] + i);
            ops.silu_mul(gate, gate + n, n, y);
            if (args.fp8) round_trip_fp8_row(y, n, y);
          }
        }
      });
}

}  // namespace moesaic
