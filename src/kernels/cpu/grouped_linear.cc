#include "kernels/cpu/linear_jobs.h"
#include "kernels/ops.h"

namespace moesaic {

void grouped_linear(Stream& stream, const GroupedLinearArgs& args) {
  const int64_t num_groups = static_cast<int64_t>(args.weights.size());
  MOESAIC_CHECK(args.x.rank() == 2 && args.y.rank() == 2);
  MOESAIC_CHECK_EQ(static_cast<int64_t>(args.group_begin.size()), num_groups);
  MOESAIC_CHECK_EQ(static_cast<int64_t>(args.group_rows.size()), num_groups);
  const std::span<const int32_t> y_begin = args.y_begin.empty() ? args.group_begin : args.y_begin;
  MOESAIC_CHECK_EQ(static_cast<int64_t>(y_begin.size()), num_groups);
  for (int64_t g = 0; g < num_groups; ++g) {
    MOESAIC_CHECK_GE(args.group_rows[g], 0);
    if (args.group_rows[g] == 0) continue;
    MOESAIC_CHECK(args.group_begin[g] >= 0 && y_begin[g] >= 0);
    MOESAIC_CHECK_LE(int64_t{args.group_begin[g]} + args.group_rows[g], args.x.dim(0));
    MOESAIC_CHECK_LE(int64_t{y_begin[g]} + args.group_rows[g], args.y.dim(0));
    MOESAIC_CHECK_EQ(args.x.dim(1), args.weights[g].k());
    MOESAIC_CHECK_EQ(args.y.dim(1), args.weights[g].n());
  }
  const float* x = args.x.f32();
  float* y = args.y.f32();
  const int64_t x_stride = args.x.row_stride(), y_stride = args.y.row_stride();
  run_linear_jobs(stream.pool(), num_groups, [&](int64_t g) {
    const int64_t rows = args.group_rows[g];
    const int64_t x_row = rows == 0 ? 0 : args.group_begin[g], y_row = rows == 0 ? 0 : y_begin[g];
    return LinearPanels{.weight = &args.weights[g],
                        .x = x + x_row * x_stride,
                        .x_stride = x_stride,
                        .m = rows,
                        .y = y + y_row * y_stride,
                        .y_stride = y_stride,
                        .bias = nullptr,
                        .math = stream.linear_math()};
  });
}

}  // namespace moesaic
