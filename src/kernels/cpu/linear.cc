#include "kernels/cpu/linear_kernels.h"
#include "kernels/ops.h"

namespace moesaic {

void linear_panels(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
  linear_panels_plain(args, panel_begin, panel_end);
}

void linear(Stream& stream, const LinearArgs& args) {
  const PackedWeight& weight = *args.weight;
  const int64_t m = args.x.dim(0);
  MOESAIC_CHECK(args.x.rank() == 2 && args.y.rank() == 2);
  MOESAIC_CHECK_EQ(args.x.dim(1), weight.k());
  MOESAIC_CHECK_EQ(args.y.dim(0), m);
  MOESAIC_CHECK_EQ(args.y.dim(1), weight.n());
  if (args.bias.defined()) MOESAIC_CHECK_EQ(args.bias.num_elements(), weight.n());
  if (m == 0) return;
  const LinearPanels job{.weight = &weight,
                         .x = args.x.f32(),
                         .x_stride = args.x.row_stride(),
                         .m = m,
                         .y = args.y.f32(),
                         .y_stride = args.y.row_stride(),
                         .bias = args.bias.defined() ? args.bias.f32() : nullptr};
  stream.pool().parallel_for(weight.num_panels(), 1,
                             [&](int64_t begin, int64_t end) { linear_panels(job, begin, end); });
}

void head_linear(Stream& stream, const HeadLinearArgs& args) {
  const int64_t num_tokens = args.x.dim(0), num_heads = static_cast<int64_t>(args.weights.size());
  MOESAIC_CHECK(args.x.rank() == 3 && args.y.rank() == 3);
  MOESAIC_CHECK(args.x.is_contiguous() && args.y.is_contiguous());
  MOESAIC_CHECK_EQ(args.x.dim(1), num_heads);
  MOESAIC_CHECK_EQ(args.y.dim(1), num_heads);
  MOESAIC_CHECK_EQ(args.y.dim(0), num_tokens);
  if (num_tokens == 0) return;
  const int64_t x_head = args.x.dim(2), y_head = args.y.dim(2);
  stream.pool().parallel_for(num_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const PackedWeight& weight = args.weights[head];
      MOESAIC_CHECK_LE(weight.k(), x_head);
      MOESAIC_CHECK_LE(weight.n(), y_head);
      linear_panels({.weight = &weight,
                     .x = args.x.f32() + head * x_head,
                     .x_stride = num_heads * x_head,
                     .m = num_tokens,
                     .y = args.y.f32() + head * y_head,
                     .y_stride = num_heads * y_head,
                     .bias = nullptr},
                    0, weight.num_panels());
    }
  });
}

}  // namespace moesaic
