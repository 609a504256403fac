// bf16 linears against double precision: every tile, edges in all sizes, strided rows, the sizes that are timed.
#include "kernels/cuda/gemm/bf16_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/gemm/gemm_shapes.h"
#include "kernels/cuda/gemm/gemm_test_util.h"
#include "kernels/cuda/refusal_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

class Bf16Gemm : public test::CudaTest {
 protected:
  // x and y are columns of matrices that are `beside` wider on both sides; what lies there is NaN and stays so.
  void check(const Bf16GemmCase& c, int64_t beside) {
    const auto& [m, n, k, f32] = c;
    SCOPED_TRACE(testing::Message() << "m " << m << " n " << n << " k " << k << (f32 ? " f32" : " bf16") << " beside "
                                    << beside);
    const int64_t x_width = k + 2 * beside, y_width = n + 2 * beside;
    const DeviceTensor x = values_.on_device(DType::kBF16, {m + 1, x_width});
    const DeviceTensor w = weights_.on_device(DType::kBF16, {n, k});
    const DeviceTensor y = test::poisoned(f32 ? DType::kF32 : DType::kBF16, {m + 1, y_width});
    if (beside > 0) {
      for (const int64_t at : {int64_t{0}, beside + k}) {
        MOESAIC_CUDA_CHECK(cudaMemset2D(x.tensor.data<uint16_t>() + at, x_width * 2, 0xff, beside * 2, m));
      }
    }
    MOESAIC_CUDA_CHECK(cudaMemset(x.tensor.row<uint16_t>(m), 0xff, x_width * 2));
    const absl::Status status = bf16_gemm(
        stream(),
        {.x = x.tensor.rows(0, m).cols(beside, beside + k), .w = w, .y = y.tensor.rows(0, m).cols(beside, beside + n)});
    ASSERT_TRUE(status.ok()) << status.message();
    std::vector<float> got;
    if (f32) {
      got = test::download<float>(y);
    } else {
      got = test::widen_bf16(test::download<uint16_t>(y));
    }
    for (int64_t row = 0; row <= m; ++row) {
      for (int64_t i = 0; i < y_width; ++i) {
        const bool inside = row < m && i >= beside && i < beside + n;
        ASSERT_EQ(std::isfinite(got[row * y_width + i]), inside) << "row " << row << " column " << i - beside;
      }
    }
    for (int64_t i = 0; i < std::min<int64_t>(m, 12); ++i) {
      const int64_t row = i == 0 ? m - 1 : m <= 12 ? i - 1 : static_cast<int64_t>(rng_.below(m));
      expect_row(c, got.data() + row * y_width + beside, row * x_width + beside);
    }
  }

  // A row of results; x_begin is where its inputs are in values_.
  void expect_row(const Bf16GemmCase& c, const float* y, int64_t x_begin) {
    for (int sample = 0; sample < 16; ++sample) {
      const int64_t column = sample == 0 ? 0 : sample == 1 ? c.n - 1 : static_cast<int64_t>(rng_.below(c.n));
      double want = 0.0, magnitude = 0.0;
      for (int64_t i = 0; i < c.k; ++i) {
        const double product =
            double{bf16_to_f32(values_.at(x_begin + i))} * bf16_to_f32(weights_.at(column * c.k + i));
        want += product, magnitude += std::fabs(product);
      }
      // Sums in f32: an error of about sqrt(k) 2^-24 of the magnitudes' sum at most; the result's own rounding.
      EXPECT_NEAR(y[column], want, magnitude * 0x1p-19 + (c.f32 ? 0.0 : std::fabs(want) * 0x1p-8))
          << "column " << column;
    }
  }

  Rng rng_{20261130};
  test::Periodic<uint16_t> values_{test::to_bf16(test::gaussians(rng_, test::kPeriod))};
  test::Periodic<uint16_t> weights_{test::to_bf16(test::gaussians(rng_, test::kPeriod))};
};

TEST_F(Bf16Gemm, EveryTileAndItsEdges) {
  for (const int64_t m : {1, 7, 16, 17, 32, 64, 65, 128, 129, 300}) {
    for (const bool f32 : {false, true}) {
      check({m, 256, 7168, f32}, 0);
      check({m, 1000, 72, f32}, 8);
      check({m, 8, 520, f32}, 64);
      check({m, 17000, 256, f32}, 0);
    }
  }
}

TEST_F(Bf16Gemm, FullSizeOfTheBenchmark) {
  for (const Bf16GemmCase& c : bf16_gemm_cases()) check(c, 0);
}

TEST_F(Bf16Gemm, SameBitsEveryTimeAndInGraphs) {
  const int64_t m = 100, n = 256, k = 7168;  // a split
  const DeviceTensor x = values_.on_device(DType::kBF16, {m, k}), w = weights_.on_device(DType::kBF16, {n, k});
  const DeviceTensor y = test::poisoned(DType::kF32, {m, n});
  const auto launch = [&] { ASSERT_TRUE(bf16_gemm(stream(), {.x = x, .w = w, .y = y}).ok()); };
  launch();
  const std::vector<float> first = test::download<float>(y);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  MOESAIC_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
  launch();
  MOESAIC_CUDA_CHECK(cudaStreamEndCapture(stream(), &graph));
  MOESAIC_CUDA_CHECK(cudaGraphInstantiate(&replay, graph, 0));
  for (int run = 0; run < 5; ++run) {
    MOESAIC_CUDA_CHECK(cudaMemset(y.tensor.raw(), 0xff, y.tensor.num_bytes()));
    MOESAIC_CUDA_CHECK(cudaDeviceSynchronize());
    MOESAIC_CUDA_CHECK(cudaGraphLaunch(replay, stream()));
    EXPECT_EQ(test::download<float>(y), first) << "run " << run;
  }
  MOESAIC_CUDA_CHECK(cudaGraphExecDestroy(replay));
  MOESAIC_CUDA_CHECK(cudaGraphDestroy(graph));
}

TEST(Bf16GemmRefusals, NameTheLimit) {
  using Args = Bf16GemmArgs;
  const auto make = [](int64_t m, int64_t n, int64_t k, DType dtype) {
    return Args{.x = test::nowhere(DType::kBF16, {m, k}),
                .w = test::nowhere(DType::kBF16, {n, k}),
                .y = test::nowhere(dtype, {m, n})};
  };
  const test::ArgsRules<Args> rules(
      "bf16_gemm", bf16_gemm, [&] { return make(6, 24, 72, DType::kF32); },
      {{.name = "x", .member = &Args::x, .rows_strided = true},
       {.name = "w", .member = &Args::w},
       {.name = "y", .member = &Args::y, .rows_strided = true, .other_dtypes = {DType::kBF16}}});
  rules.expect_refusals(
      {{[&](Args& args) { args = make(6, 24, 70, DType::kF32); }, "bf16_gemm: k 70, made for multiples of 8"},
       {[&](Args& args) { args = make(6, 20, 72, DType::kF32); }, "bf16_gemm: n 20, made for multiples of 8"},
       {[&](Args& args) { args = make(6, 24, 0, DType::kF32); }, "bf16_gemm: k 0, made for multiples of 8"},
       {[&](Args& args) { args = make(1 << 20, 1 << 20, 8, DType::kF32); }, "bf16_gemm: made for at most 2^27 tiles"}});
  EXPECT_TRUE(bf16_gemm(nullptr, make(0, 24, 72, DType::kBF16)).ok());
}

}  // namespace
}  // namespace moesaic::cuda
