// Every shape that the benchmark times, at its size: padding full of NaN, sampled rows against the definition.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/gemm/fp8_gemm.h"
#include "kernels/cuda/gemm/gemm_shapes.h"
#include "kernels/cuda/gemm/gemm_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;
using test::Periodic;

class Fp8GemmFullSize : public test::CudaTest {
 protected:
  // Rows of group g that count; the rest of its room is NaN.
  static int64_t live_rows(const GemmCase& c, int64_t g) {
    if (c.grouping == Grouping::kDense) return c.rows;
    return c.rows - 1 - g % 5 * 9;
  }
  static int64_t room(const GemmCase& c) { return c.grouping == Grouping::kMasked ? kMaskedRoom : c.rows; }

  // x [matrices, rows of a matrix, k] and its scales, NaN where rows do not count.
  struct Operands {
    DeviceTensor x, scales;
  };
  Operands operands(const GemmCase& c) const {
    const bool masked = c.grouping == Grouping::kMasked, contiguous = c.grouping == Grouping::kContiguous;
    const int64_t matrices = masked ? c.groups : 1, rows = contiguous ? c.rows * c.groups : room(c);
    const int64_t k = c.x_columns(), k_groups = k / kScaleGroup, stride = scale_row_stride(rows);
    Operands result{values_.on_device(DType::kE4M3, {matrices, rows, k}),
                    scales_.on_device(DType::kF32, {matrices, k_groups, stride})};
    for (int64_t g = 0; g < c.groups && c.grouping != Grouping::kDense; ++g) {
      const int64_t live = live_rows(c, g), dead = room(c) - live, first = g * room(c) + live;
      MOESAIC_CUDA_CHECK(cudaMemset(result.x.tensor.data<uint8_t>() + first * k, 0xff, dead * k));
      float* scales = result.scales.tensor.f32() + (masked ? g * k_groups * stride + live : first);
      MOESAIC_CUDA_CHECK(cudaMemset2D(scales, stride * 4, 0xff, dead * 4, k_groups));
    }
    return result;
  }

  absl::Status launch(const GemmCase& c, const Operands& in, const Tensor& w, const Tensor& w_scales,
                      const DeviceTensor& y) {
    const auto as = [](const Tensor& t, Shape shape) { return Tensor(t.raw(), t.dtype(), shape); };
    const Tensor &x = in.x.tensor, &scales = in.scales.tensor;
    const int64_t k_groups = scales.dim(1), stride = scales.dim(2);
    if (c.grouping == Grouping::kMasked) {
      std::vector<int32_t> counts(c.groups);
      for (int64_t g = 0; g < c.groups; ++g) counts[g] = static_cast<int32_t>(live_rows(c, g));
      ids_ = test::upload(DType::kI32, {c.groups}, counts);
      return fp8_gemm_masked(stream(), {.x = x,
                                        .x_scales = scales,
                                        .w = w,
                                        .w_scales = w_scales,
                                        .group_rows = ids_,
                                        .y = as(y, {c.groups, room(c), c.n}),
                                        .expected_rows = c.rows});
    }
    const Tensor x_rows = as(x, {x.dim(1), x.dim(2)}), x_scales = as(scales, {k_groups, stride});
    if (c.grouping == Grouping::kContiguous) {
      std::vector<int32_t> ids(c.rows * c.groups);
      for (int64_t r = 0; r < c.rows * c.groups; ++r) {
        ids[r] = r % c.rows < live_rows(c, r / c.rows) ? static_cast<int32_t>(r / c.rows) : -1;
      }
      ids_ = test::upload(DType::kI32, {c.rows * c.groups}, ids);
      return fp8_gemm_contiguous(
          stream(), {.x = x_rows, .x_scales = x_scales, .w = w, .w_scales = w_scales, .row_ids = ids_, .y = y});
    }
    if (c.batched()) {
      return fp8_gemm_batched(
          stream(),
          {.x = x_rows, .x_scales = x_scales, .w = w, .w_scales = w_scales, .y = as(y, {c.rows, c.groups, c.n})});
    }
    return fp8_gemm(stream(), {.x = x_rows,
                               .x_scales = x_scales,
                               .w = as(w, {c.n, c.k}),
                               .w_scales = as(w_scales, {w_scales.dim(1), w_scales.dim(2)}),
                               .y = y});
  }

  // What row `row` of the matrix of group g gives in `column`.
  double want(const GemmCase& c, const Operands& in, int64_t g, int64_t row, int64_t column) const {
    const int64_t rows = in.x.tensor.dim(1), k = in.x.tensor.dim(2), k_groups = c.k / kScaleGroup;
    const int64_t stride = in.scales.tensor.dim(2), n_blocks = (c.n + kScaleGroup - 1) / kScaleGroup;
    const int64_t matrix = c.grouping == Grouping::kMasked ? g : 0, head = c.batched() && !c.one_x ? g : 0;
    const int64_t in_matrix = c.grouping == Grouping::kContiguous ? g * c.rows + row : row;
    double total = 0.0;
    for (int64_t i = 0; i < k_groups; ++i) {
      double sum = 0.0;
      for (int64_t at = i * kScaleGroup; at < (i + 1) * kScaleGroup; ++at) {
        sum += double{e4m3_to_f32(values_.at((matrix * rows + in_matrix) * k + head * c.k + at))} *
               e4m3_to_f32(weights_.at((g * c.n + column) * c.k + at));
      }
      total += sum * scales_.at((matrix * (k / kScaleGroup) + head * k_groups + i) * stride + in_matrix) *
               scales_.at((g * n_blocks + column / kScaleGroup) * k_groups + i);
    }
    return total;
  }

  // One row of results, `y` its first column.
  void expect_row(const GemmCase& c, const Operands& in, const std::vector<uint16_t>& y, int64_t g, int64_t row) {
    SCOPED_TRACE(testing::Message() << "row " << row << " of group " << g);
    std::vector<float> got;
    std::vector<double> wanted;
    for (int i = 0; i < 16; ++i) {
      const int64_t column = i == 0 ? 0 : i == 1 ? c.n - 1 : static_cast<int64_t>(rng_.below(c.n));
      wanted.push_back(want(c, in, g, row, column));
      got.push_back(bf16_to_f32(y[column]));
    }
    test::expect_rounded(got, wanted);
    for (int64_t i = 0; i < c.n; ++i) ASSERT_TRUE(std::isfinite(bf16_to_f32(y[i]))) << "column " << i;
  }

  void check(const GemmCase& c) {
    const int64_t n_blocks = (c.n + kScaleGroup - 1) / kScaleGroup;
    const Operands in = operands(c);
    const DeviceTensor w = weights_.on_device(DType::kE4M3, {c.groups, c.n, c.k});
    const DeviceTensor w_scales = scales_.on_device(DType::kF32, {c.groups, n_blocks, c.k / kScaleGroup});
    const bool batched = c.batched();
    const int64_t matrices = batched ? 1 : c.groups;
    const DeviceTensor y = test::poisoned(DType::kBF16, {matrices * room(c), batched ? c.groups * c.n : c.n});
    const absl::Status status = launch(c, in, w, w_scales, y);
    ASSERT_TRUE(status.ok()) << status.message();
    const auto row_of = [&](int64_t g, int64_t row) {
      const Tensor place(y.tensor.data<uint16_t>() + (batched ? row * c.groups + g : g * room(c) + row) * c.n,
                         DType::kBF16, {c.n});
      return test::download<uint16_t>(place);
    };
    const int64_t step = std::max<int64_t>(1, c.groups / 8);  // of many heads some
    for (int64_t g = 0; g < c.groups; g += step) {
      const int64_t live = live_rows(c, g);
      for (int i = 0; i < std::min<int64_t>(12, live); ++i) {
        const int64_t row = i == 0 ? live - 1 : live <= 12 ? i - 1 : static_cast<int64_t>(rng_.below(live));
        expect_row(c, in, row_of(g, row), g, row);
      }
      for (int64_t row = live; row < room(c); row += row < live + 70 ? 1 : 333) {
        ASSERT_TRUE(test::is_poison(row_of(g, row), 0, c.n)) << "row " << row << " of group " << g << " is padding";
      }
    }
  }

  Rng rng_{20261130};
  Periodic<uint8_t> values_{test::random_e4m3(rng_, test::kPeriod)};
  Periodic<uint8_t> weights_{test::random_e4m3(rng_, test::kPeriod)};
  Periodic<float> scales_{test::random_scales(rng_, test::kPeriod)};
  DeviceTensor ids_;
};

TEST_F(Fp8GemmFullSize, TheBenchmarksShapes) {
  for (const GemmCase& c : gemm_cases()) {
    SCOPED_TRACE(testing::Message() << "grouping " << static_cast<int>(c.grouping) << ", " << c.groups << " x "
                                    << c.rows << " rows, n " << c.n << " k " << c.k << (c.one_x ? ", one x" : ""));
    check(c);
  }
}

}  // namespace
}  // namespace moesaic::cuda
