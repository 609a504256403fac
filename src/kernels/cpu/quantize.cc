#include <algorithm>

#include "kernels/cpu/quantize_rows.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr int64_t kGroup = 128;
// Elements below which a second thread does not pay: some 8 us of work.
constexpr int64_t kMinParallelElements = 16 * 1024;

struct GroupFunctions {
  decltype(&quantize_group_plain) quantize;
  decltype(&dequantize_group_plain) dequantize;
  decltype(&round_trip_group_plain) round_trip;
};

GroupFunctions group_functions() {
#if defined(__x86_64__)
  if (active_isa() != Isa::kPlain) return {quantize_group_avx2, dequantize_group_avx2, round_trip_group_avx2};
#endif
  return {quantize_group_plain, dequantize_group_plain, round_trip_group_plain};
}

// body(row) for each row, on one thread or several.
template <typename Body>
void for_rows(Stream& stream, int64_t num_rows, int64_t k, const Body& body) {
  const auto run = [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row);
  };
  if (num_rows * k < kMinParallelElements) return run(0, num_rows);
  stream.pool().parallel_for(num_rows, 1, run);
}

void check_groups(const Tensor& x, const Tensor& q, const Tensor& scales) {
  MOESAIC_CHECK(x.rank() == 2 && q.rank() == 2 && scales.rank() == 2);
  MOESAIC_CHECK_EQ(x.dtype(), DType::kF32);
  MOESAIC_CHECK_EQ(q.dtype(), DType::kE4M3);
  MOESAIC_CHECK_EQ(scales.dtype(), DType::kF32);
  MOESAIC_CHECK_EQ(x.shape(), q.shape());
  MOESAIC_CHECK_EQ(scales.dim(0), x.dim(0));
  MOESAIC_CHECK_EQ(scales.dim(1), (x.dim(1) + kGroup - 1) / kGroup);
}

}  // namespace

void quantize_fp8_row(const float* x, int64_t k, uint8_t* q, float* scales) {
  const auto group = group_functions().quantize;
  for (int64_t i = 0; i < k; i += kGroup) scales[i / kGroup] = group(x + i, std::min(kGroup, k - i), q + i);
}

void dequantize_fp8_row(const uint8_t* q, const float* scales, int64_t k, float* y) {
  const auto group = group_functions().dequantize;
  for (int64_t i = 0; i < k; i += kGroup) group(q + i, scales[i / kGroup], std::min(kGroup, k - i), y + i);
}

void round_trip_fp8_row(const float* x, int64_t k, float* y) {
  const auto group = group_functions().round_trip;
  for (int64_t i = 0; i < k; i += kGroup) group(x + i, std::min(kGroup, k - i), y + i);
}

void quantize_fp8(Stream& stream, const QuantizeArgs& args) {
  check_groups(args.x, args.q, args.scales);
  for_rows(stream, args.x.dim(0), args.x.dim(1), [&](int64_t row) {
    quantize_fp8_row(args.x.row<float>(row), args.x.dim(1), args.q.row<uint8_t>(row), args.scales.row<float>(row));
  });
}

void dequantize_fp8(Stream& stream, const Tensor& q, const Tensor& scales, const Tensor& y) {
  check_groups(y, q, scales);
  for_rows(stream, y.dim(0), y.dim(1), [&](int64_t row) {
    dequantize_fp8_row(q.row<uint8_t>(row), scales.row<float>(row), y.dim(1), y.row<float>(row));
  });
}

void round_trip_fp8(Stream& stream, const Tensor& x, const Tensor& y) {
  MOESAIC_CHECK_EQ(x.rank(), 2);
  MOESAIC_CHECK_EQ(x.dtype(), DType::kF32);
  MOESAIC_CHECK_EQ(y.dtype(), DType::kF32);
  MOESAIC_CHECK_EQ(x.shape(), y.shape());
  for_rows(stream, x.dim(0), x.dim(1),
           [&](int64_t row) { round_trip_fp8_row(x.row<float>(row), x.dim(1), y.row<float>(row)); });
}

}  // namespace moesaic
