#include "kernels/cpu/linear_kernels.h"
#include "kernels/ops.h"

namespace moesaic {

void grouped_linear(Stream& stream, const GroupedLinearArgs& args) {
  const int64_t num_groups = static_cast<int64_t>(args.weights.size());
  MOESAIC_CHECK(args.x.rank() == 2 && args.y.rank() == 2);
  MOESAIC_CHECK_EQ(args.x.dim(0), args.y.dim(0));
  MOESAIC_CHECK_EQ(static_cast<int64_t>(args.group_begin.size()), num_groups);
  MOESAIC_CHECK_EQ(static_cast<int64_t>(args.group_rows.size()), num_groups);
  for (int64_t g = 0; g < num_groups; ++g) {
    const int64_t begin = args.group_begin[g], rows = args.group_rows[g];
    MOESAIC_CHECK_GE(rows, 0);
    if (rows == 0) continue;
    const PackedWeight& weight = args.weights[g];
    MOESAIC_CHECK(begin >= 0 && begin + rows <= args.x.dim(0));
    MOESAIC_CHECK_EQ(args.x.dim(1), weight.k());
    MOESAIC_CHECK_EQ(args.y.dim(1), weight.n());
    const LinearPanels job{.weight = &weight,
                           .x = args.x.f32() + begin * args.x.row_stride(),
                           .x_stride = args.x.row_stride(),
                           .m = rows,
                           .y = args.y.f32() + begin * args.y.row_stride(),
                           .y_stride = args.y.row_stride(),
                           .bias = nullptr};
    stream.pool().parallel_for(weight.num_panels(), 1, [&](int64_t from, int64_t to) { linear_panels(job, from, to); });
  }
}

}  // namespace moesaic
