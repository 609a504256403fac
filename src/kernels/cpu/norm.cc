// RMSNorm, row by row.
#include <algorithm>

#include "kernels/cpu/vector_ops.h"
#include "kernels/ops.h"

namespace moesaic {

void rms_norm(Stream& stream, const RmsNormArgs& args) {
  const int64_t m = args.x.dim(0), n = args.x.dim(1);
  MOESAIC_CHECK_EQ(args.y.dim(0), m);
  MOESAIC_CHECK_EQ(args.y.dim(1), n);
  MOESAIC_CHECK_EQ(args.weight.num_elements(), n);
  if (m == 0) return;
  args.x.f32(), args.y.f32();
  const float* weight = args.weight.f32();
  const VectorOps& ops = vector_ops();
  // A share is at least some 16 k elements, or waking the pool costs more than it gains.
  stream.pool().parallel_for(m, std::max<int64_t>(1, 16384 / std::max<int64_t>(n, 1)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ops.rms_norm(args.x.row<float>(i), weight, args.eps, n, args.y.row<float>(i));
    }
  });
}

}  // namespace moesaic
