#include "kernels/cuda/gemm/bf16_gemm.h"

#include <gtest/gtest.h>

#include "kernels/cuda/refusal_test_util.h"
#include "kernels/cuda/test_util.h"

namespace moesaic::cuda {
namespace {

using test::ArgsRules;
using test::DeviceTensor;
using test::nowhere;

class Bf16Gemm : public test::CudaTest {
 protected:
  // Some elements of every row (at most 40 rows) against the definition; all others written; nothing behind y.
  void check(int64_t m, int64_t n, int64_t k, DType y_dtype) {
    SCOPED_TRACE(str_cat("m ", m, " n ", n, " k ", k, " ", dtype_name(y_dtype)));
    Rng rng(m * 1000 + n + k);
    const std::vector<uint16_t> x = test::to_bf16(test::gaussians(rng, m * k));
    const std::vector<uint16_t> w = test::to_bf16(test::gaussians(rng, n * k));
    const DeviceTensor x_device = test::upload(DType::kBF16, {m, k}, x),
                       w_device = test::upload(DType::kBF16, {n, k}, w);
    const std::vector<float> got = run(x_device, w_device, m, n, y_dtype);
    for (int64_t i = 0; i < std::min<int64_t>(m, 40); ++i) {
      const int64_t row = m <= 40 ? i : i == 0 ? m - 1 : static_cast<int64_t>(rng.below(m));
      for (int sample = 0; sample < 24; ++sample) {
        const int64_t column = sample == 0 ? 0 : sample == 1 ? n - 1 : static_cast<int64_t>(rng.below(n));
        double want = 0.0, size = 0.0;
        for (int64_t j = 0; j < k; ++j) {
          const double product = double{bf16_to_f32(x[row * k + j])} * bf16_to_f32(w[column * k + j]);
          want += product;
          size += std::fabs(product);
        }
        // The tensor cores' sums of 16 products keep 2^-22 and more of the largest; k / 16 additions in f32 follow.
        const double error = size * 0x1p-19 + (y_dtype == DType::kBF16 ? std::fabs(want) * 0x1p-8 : 0.0);
        EXPECT_NEAR(got[row * n + column], want, error) << "row " << row << " column " << column;
      }
    }
    for (int64_t i = 0; i < m * n; ++i) ASSERT_TRUE(std::isfinite(got[i])) << "element " << i << " was not written";
  }

  // y has one row more, poisoned, that must stay so.
  std::vector<float> run(const Tensor& x, const Tensor& w, int64_t m, int64_t n, DType y_dtype) {
    const DeviceTensor y = test::poisoned(y_dtype, {m + 1, n});
    const absl::Status status = bf16_gemm(stream(), {.x = x, .w = w, .y = y.tensor.rows(0, m)});
    EXPECT_TRUE(status.ok()) << status.message();
    std::vector<float> values =
        y_dtype == DType::kF32 ? test::download<float>(y) : test::widen_bf16(test::download<uint16_t>(y));
    for (int64_t c = 0; c < n; ++c) EXPECT_TRUE(std::isnan(values[m * n + c])) << "written behind the last row";
    values.resize(m * n);
    return values;
  }
};

TEST_F(Bf16Gemm, Shapes) {
  for (const DType y_dtype : {DType::kF32, DType::kBF16}) {
    for (const int64_t m : {1, 16, 17, 33, 64, 100, 128, 129, 300}) {
      check(m, 256, 7168, y_dtype);  // the router: few tiles, split
      check(m, 200, 64, y_dtype);
      check(m, 2112, 576, y_dtype);
      check(m, 16960, 192, y_dtype);  // the head's shape: more tiles than SMs
    }
  }
}

TEST_F(Bf16Gemm, StridedRows) {
  Rng rng(7);
  const int64_t m = 37, n = 136, k = 320;
  const std::vector<uint16_t> values = test::to_bf16(test::gaussians(rng, m * (k + 24)));
  std::vector<uint16_t> packed;
  for (int64_t r = 0; r < m; ++r) {
    packed.insert(packed.end(), values.begin() + r * (k + 24), values.begin() + r * (k + 24) + k);
  }
  const DeviceTensor wide = test::upload(DType::kBF16, {m, k + 24}, values),
                     x = test::upload(DType::kBF16, {m, k}, packed);
  const DeviceTensor w = test::upload(DType::kBF16, {n, k}, test::to_bf16(test::gaussians(rng, n * k)));
  const DeviceTensor y = test::poisoned(DType::kF32, {m, n + 8});
  const Tensor x_strided = Tensor::strided(wide.tensor.raw(), DType::kBF16, m, k, k + 24);
  const Tensor y_strided = Tensor::strided(y.tensor.raw(), DType::kF32, m, n, n + 8);
  ASSERT_TRUE(bf16_gemm(stream(), {.x = x_strided, .w = w, .y = y_strided}).ok());
  const std::vector<float> got = test::download<float>(y), want = run(x, w, m, n, DType::kF32);
  for (int64_t r = 0; r < m; ++r) {
    for (int64_t c = 0; c < n; ++c) ASSERT_EQ(got[r * (n + 8) + c], want[r * n + c]) << "row " << r << " column " << c;
    for (int64_t c = n; c < n + 8; ++c) ASSERT_TRUE(std::isnan(got[r * (n + 8) + c])) << "written beside row " << r;
  }
}

// NaN in a row of x stays there; the same bits in every run.
TEST_F(Bf16Gemm, RowsDoNotMeet) {
  Rng rng(8);
  const int64_t m = 70, n = 256, k = 7168;
  std::vector<uint16_t> x = test::to_bf16(test::gaussians(rng, m * k));
  const DeviceTensor w = test::upload(DType::kBF16, {n, k}, test::to_bf16(test::gaussians(rng, n * k)));
  const std::vector<float> clean = run(test::upload(DType::kBF16, {m, k}, x), w, m, n, DType::kF32);
  EXPECT_EQ(clean, run(test::upload(DType::kBF16, {m, k}, x), w, m, n, DType::kF32));
  x[11 * k + 5] = 0x7fc0;
  const std::vector<float> got = run(test::upload(DType::kBF16, {m, k}, x), w, m, n, DType::kF32);
  for (int64_t i = 0; i < m * n; ++i) {
    if (i / n == 11) {
      ASSERT_TRUE(std::isnan(got[i]));
    } else {
      ASSERT_EQ(got[i], clean[i]) << "row " << i / n << " column " << i % n;
    }
  }
}

TEST(Bf16GemmRefusals, EveryArgument) {
  using Args = Bf16GemmArgs;
  const auto make = [](int64_t m, int64_t n, int64_t k) {
    return Args{
        .x = nowhere(DType::kBF16, {m, k}), .w = nowhere(DType::kBF16, {n, k}), .y = nowhere(DType::kBF16, {m, n})};
  };
  const ArgsRules<Args> rules("bf16_gemm", bf16_gemm, [&] { return make(6, 136, 320); },
                              {{.name = "x", .member = &Args::x, .rows_strided = true},
                               {.name = "w", .member = &Args::w},
                               {.name = "y", .member = &Args::y, .rows_strided = true, .other_dtypes = {DType::kF32}}});
  rules.expect_refusals(
      {{[&](Args& args) { args = make(6, 136, 96); }, "bf16_gemm: k 96, made for multiples of 64"},
       {[&](Args& args) { args = make(6, 100, 320); }, "bf16_gemm: n 100, made for multiples of 8"},
       {[&](Args& args) { args = make(1 << 28, 1 << 24, 64); }, "bf16_gemm: made for at most 2^31 tiles"},
       {[&](Args& args) {
          args.y = nowhere(DType::kE4M3, {6, 136});
        },
        "bf16_gemm: expected y bf16 [6, 136], got e4m3 [6, 136]"}});
  EXPECT_TRUE(bf16_gemm(nullptr, make(0, 136, 320)).ok()) << "no rows are no work";
}

}  // namespace
}  // namespace moesaic::cuda
