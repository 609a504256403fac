#include "kernels/cpu/linear_jobs.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace moesaic {

void linear_panels(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
#if defined(__x86_64__)
  switch (active_isa()) {
    case Isa::kAmx:
      return linear_panels_amx(args, panel_begin, panel_end);
    case Isa::kAvx512:
      return linear_panels_avx512(args, panel_begin, panel_end);
    case Isa::kAvx2:
      return linear_panels_avx2(args, panel_begin, panel_end);
    case Isa::kPlain:
      break;
  }
#endif
  linear_panels_plain(args, panel_begin, panel_end);
}

void linear(Stream& stream, const LinearArgs& args) {
  const PackedWeight& weight = *args.weight;
  MOESAIC_CHECK(args.x.rank() == 2 && args.y.rank() == 2);
  MOESAIC_CHECK_EQ(args.x.dim(1), weight.k());
  MOESAIC_CHECK_EQ(args.y.dim(0), args.x.dim(0));
  MOESAIC_CHECK_EQ(args.y.dim(1), weight.n());
  if (args.bias.defined()) MOESAIC_CHECK_EQ(args.bias.num_elements(), weight.n());
  const LinearPanels job{.weight = &weight,
                         .x = args.x.f32(),
                         .x_stride = args.x.row_stride(),
                         .m = args.x.dim(0),
                         .y = args.y.f32(),
                         .y_stride = args.y.row_stride(),
                         .bias = args.bias.defined() ? args.bias.f32() : nullptr,
                         .math = stream.linear_math()};
  run_linear_jobs(stream.pool(), 1, [&](int64_t) { return job; });
}

void head_linear(Stream& stream, const HeadLinearArgs& args) {
  const int64_t num_tokens = args.x.dim(0), num_heads = static_cast<int64_t>(args.weights.size());
  MOESAIC_CHECK(args.x.rank() == 3 && args.y.rank() == 3);
  MOESAIC_CHECK(args.x.is_contiguous() && args.y.is_contiguous());
  MOESAIC_CHECK_EQ(args.x.dim(1), num_heads);
  MOESAIC_CHECK_EQ(args.y.dim(1), num_heads);
  MOESAIC_CHECK_EQ(args.y.dim(0), num_tokens);
  const int64_t x_head = args.x.dim(2), y_head = args.y.dim(2);
  for (const PackedWeight& weight : args.weights) {
    MOESAIC_CHECK_LE(weight.k(), x_head);
    MOESAIC_CHECK_LE(weight.n(), y_head);
  }
  run_linear_jobs(stream.pool(), num_heads, [&](int64_t head) {
    return LinearPanels{.weight = &args.weights[head],
                        .x = args.x.f32() + head * x_head,
                        .x_stride = num_heads * x_head,
                        .m = num_tokens,
                        .y = args.y.f32() + head * y_head,
                        .y_stride = num_heads * y_head,
                        .bias = nullptr,
                        .math = stream.linear_math()};
  });
}

}  // namespace moesaic
