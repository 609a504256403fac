// Norm, residual and quantisation against double precision and the CPU's bytes.
#include "kernels/cuda/fused/rms_norm.h"

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"
#include "kernels/cuda/fused/quantize.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

class Quantize : public test::CudaTest {};

TEST_F(Quantize, BytesOfTheCpu) {
  Rng rng(1);
  std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 128},   {3, 7168},  {5, 1536},
                                                     {130, 384}, {2, 16384}, {1027, 640}};
  for (const int64_t m : token_counts(kNormTokens)) shapes.emplace_back(m, kHidden);
  for (const auto& [m, k] : shapes) {
    SCOPED_TRACE(testing::Message() << m << " x " << k);
    std::vector<float> values = test::bf16_values(rng, m * k);
    for (float& v : values) {
      if (rng.below(50) == 0) v *= 1e-6f;
      if (rng.below(50) == 0) v *= 300.0f;
      v = bf16_to_f32(f32_to_bf16(v));
    }
    std::fill_n(values.begin(), 128, 0.0f);  // the floor of amax
    const DeviceTensor x = test::upload(DType::kBF16, {m, k}, test::to_bf16(values));
    test::Quantized got(m, k);
    ASSERT_TRUE(quantize_fp8(stream(), {.x = x, .q = got.q, .scales = got.scales}).ok());
    const test::CpuQuantized want(values, m, k);
    EXPECT_EQ(test::download<uint8_t>(got.q), want.q);
    const std::vector<float> scales = test::download<float>(got.scales);
    for (int64_t g = 0; g < k / kScaleGroup; ++g) {
      for (int64_t row = 0; row < m; ++row) {
        ASSERT_EQ(scales[g * scale_row_stride(m) + row], want.scales[row * (k / kScaleGroup) + g]) << row << " " << g;
      }
      for (int64_t row = m; row < scale_row_stride(m); ++row) {
        ASSERT_TRUE(std::isnan(scales[g * scale_row_stride(m) + row])) << "padding is not written";
      }
    }
  }
}

// MLA's queries: the part of each head that k_b multiplies, scales as fp8_gemm_batched reads them.
TEST_F(Quantize, PartsOfHeads) {
  Rng rng(4);
  struct Case {
    int64_t m, heads, channels, width;
  };
  std::vector<Case> cases = {{1, 1, 128, 128}, {5, 3, 256, 264}, {9, 20, 128, 192}};
  for (const int64_t m : token_counts(kRopeTokens)) cases.push_back({m, kHeads, kQueryDim - kRope, kQueryDim});
  for (const auto& [m, heads, channels, width] : cases) {
    SCOPED_TRACE(testing::Message() << m << " x " << heads << " x " << channels << " of " << width);
    std::vector<float> values = test::bf16_values(rng, m * heads * channels), wide(m * heads * width, test::kNan);
    for (int64_t head = 0; head < m * heads; ++head) {
      std::copy_n(values.begin() + head * channels, channels, wide.begin() + head * width);
    }
    const int64_t k = heads * channels;
    const DeviceTensor x = test::upload(DType::kBF16, {m, heads, width}, test::to_bf16(wide));
    test::Quantized got(m, k);
    ASSERT_TRUE(quantize_fp8(stream(), {.x = x, .q = got.q, .scales = got.scales}).ok());
    const test::CpuQuantized want(values, m, k);
    EXPECT_EQ(test::download<uint8_t>(got.q), want.q);
    const std::vector<float> scales = test::download<float>(got.scales);
    for (int64_t i = 0; i < m * k / kScaleGroup; ++i) {
      const int64_t row = i / (k / kScaleGroup), g = i % (k / kScaleGroup);
      ASSERT_EQ(scales[g * scale_row_stride(m) + row], want.scales[i]) << row << " " << g;
    }
  }
}

TEST_F(Quantize, NanAndInfinityStayInTheirGroup) {
  std::vector<float> values(2 * 256, 1.0f);
  values[5] = test::kNan;
  values[300] = 3e38f;
  const DeviceTensor x = test::upload(DType::kBF16, {2, 256}, test::to_bf16(values));
  test::Quantized got(2, 256);
  ASSERT_TRUE(quantize_fp8(stream(), {.x = x, .q = got.q, .scales = got.scales}).ok());
  const std::vector<uint8_t> q = test::download<uint8_t>(got.q);
  EXPECT_EQ(q[5], 0x7f);
  EXPECT_EQ(q[128], 0x7e);
  EXPECT_EQ(q[300], 0x7e);
  EXPECT_EQ(q[299], 0);
}

struct NormCase {
  int64_t m, n;
  bool residual, bf16_out, quantize;
};

class RmsNorm : public test::CudaTest, public testing::WithParamInterface<NormCase> {};

TEST_P(RmsNorm, MatchesDouble) {
  const NormCase c = GetParam();
  Rng rng(2);
  const int64_t stride = c.n + 64;  // rows of x are strided
  const std::vector<float> x = test::bf16_values(rng, c.m * stride, 2.0f), weight = test::bf16_values(rng, c.n);
  const std::vector<float> residual = test::bf16_values(rng, c.m * c.n, 3.0f);
  const float eps = 1e-6f;
  const DeviceTensor dx = test::upload(DType::kBF16, {c.m, stride}, test::to_bf16(x));
  const DeviceTensor dr = test::upload(DType::kBF16, {c.m, c.n}, test::to_bf16(residual));
  const DeviceTensor dw = test::upload(DType::kBF16, {c.n}, test::to_bf16(weight));
  const DeviceTensor y = test::poisoned(DType::kBF16, {c.m, c.n});
  test::Quantized q(c.m, c.quantize ? c.n : 128);
  ASSERT_TRUE(rms_norm(stream(), {.x = Tensor::strided(dx.tensor.raw(), DType::kBF16, c.m, c.n, stride),
                                  .residual = c.residual ? dr.tensor : Tensor(),
                                  .weight = dw,
                                  .eps = eps,
                                  .y = c.bf16_out ? y.tensor : Tensor(),
                                  .q = c.quantize ? q.q.tensor : Tensor(),
                                  .scales = c.quantize ? q.scales.tensor : Tensor()})
                  .ok());
  std::vector<float> want(c.m * c.n), sums = residual;
  for (int64_t row = 0; row < c.m; ++row) {
    double squares = 0.0;
    for (int64_t i = 0; i < c.n; ++i) {
      float& h = sums[row * c.n + i];
      h = c.residual ? bf16_to_f32(f32_to_bf16(x[row * stride + i] + h)) : x[row * stride + i];
      squares += double{h} * h;
    }
    const double factor = 1.0 / std::sqrt(squares / static_cast<double>(c.n) + eps);
    for (int64_t i = 0; i < c.n; ++i) {
      want[row * c.n + i] = static_cast<float>(sums[row * c.n + i] * factor * weight[i]);
    }
  }
  if (c.residual) {
    EXPECT_EQ(test::download<uint16_t>(dr), test::to_bf16(sums));
  }
  if (c.bf16_out) {
    const std::vector<float> got = test::widen_bf16(test::download<uint16_t>(y));
    for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], std::fabs(want[i]) * 0x1.02p-8 + 1e-30) << i;
  }
  if (!c.quantize) return;
  // The sum of squares differs in its last bits: so may a scale, and a code at the border of two.
  const test::CpuQuantized expected(want, c.m, c.n);
  const std::vector<uint8_t> codes = test::download<uint8_t>(q.q);
  const std::vector<float> scales = test::download<float>(q.scales);
  int64_t different = 0;
  for (int64_t row = 0; row < c.m; ++row) {
    for (int64_t i = 0; i < c.n; ++i) {
      const float scale = scales[i / kScaleGroup * scale_row_stride(c.m) + row];
      const float want_scale = expected.scales[row * (c.n / kScaleGroup) + i / kScaleGroup];
      ASSERT_NEAR(scale, want_scale, want_scale * 1e-6f);
      const uint8_t got = codes[row * c.n + i], code = expected.q[row * c.n + i];
      different += got != code;
      ASSERT_LE(std::abs(got - code), 1) << row << " " << i;
    }
  }
  EXPECT_LE(different, c.m * c.n / 1000 + 1);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RmsNorm,
                         testing::Values(NormCase{1, 7168, false, true, false}, NormCase{5, 7168, true, false, true},
                                         NormCase{3, 7168, true, true, true}, NormCase{9, 1536, false, false, true},
                                         NormCase{17, 512, false, true, false}, NormCase{2, 8, true, true, false},
                                         NormCase{4, 2056, false, true, false}, NormCase{2, 16384, true, false, true},
                                         NormCase{7, 128, false, true, true}, NormCase{0, 7168, true, true, true},
                                         NormCase{1030, 7168, false, false, true},
                                         NormCase{1024, 1536, false, false, true},
                                         NormCase{1025, 384, false, false, true}));

std::vector<NormCase> bench_cases() {
  std::vector<NormCase> cases;
  for (const int64_t m : token_counts(kNormTokens)) {
    cases.push_back({m, kHidden, false, true, false});
    cases.push_back({m, kHidden, false, false, true});
    cases.push_back({m, kHidden, true, false, true});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(FullSize, RmsNorm, testing::ValuesIn(bench_cases()));

// The halves of MTP's input: two norms write the columns of one matrix.
TEST_F(RmsNorm, WritesColumnsOfAWiderMatrix) {
  constexpr int64_t kRows = 5, kChannels = 264;
  Rng rng(6);
  const DeviceTensor x =
      test::upload(DType::kBF16, {kRows, kChannels}, test::to_bf16(test::gaussians(rng, kRows * kChannels)));
  const DeviceTensor weight = test::upload(DType::kBF16, {kChannels}, test::to_bf16(test::gaussians(rng, kChannels)));
  const DeviceTensor alone = test::poisoned(DType::kBF16, {kRows, kChannels});
  const DeviceTensor wide = test::poisoned(DType::kBF16, {kRows, 3 * kChannels});
  ASSERT_TRUE(rms_norm(stream(), {.x = x, .weight = weight, .eps = 1e-6f, .y = alone}).ok());
  const Tensor middle = wide.tensor.cols(kChannels, 2 * kChannels);
  ASSERT_TRUE(rms_norm(stream(), {.x = x, .weight = weight, .eps = 1e-6f, .y = middle}).ok());
  const std::vector<uint16_t> want = test::download<uint16_t>(alone), got = test::download<uint16_t>(wide);
  for (int64_t i = 0; i < kRows * 3 * kChannels; ++i) {
    const int64_t row = i / (3 * kChannels), at = i % (3 * kChannels) - kChannels;
    ASSERT_EQ(got[i], at >= 0 && at < kChannels ? want[row * kChannels + at] : 0xffff) << row << " " << at;
  }
}

TEST_F(RmsNorm, NanStaysInItsRow) {
  std::vector<float> x(3 * 256, 1.0f);
  x[256 + 7] = test::kNan;
  const DeviceTensor dx = test::upload(DType::kBF16, {3, 256}, test::to_bf16(x));
  const DeviceTensor weight = test::upload(DType::kBF16, {256}, test::to_bf16(std::vector<float>(256, 1.0f)));
  const DeviceTensor y = test::poisoned(DType::kBF16, {3, 256});
  ASSERT_TRUE(rms_norm(stream(), {.x = dx, .weight = weight, .eps = 0.0f, .y = y}).ok());
  const std::vector<float> got = test::widen_bf16(test::download<uint16_t>(y));
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(got[i], 1.0f);
    EXPECT_TRUE(std::isnan(got[256 + i]));
    EXPECT_EQ(got[512 + i], 1.0f);
  }
}

// Launches overlap; what one reads is still all that the one before wrote, and nothing is overwritten that is yet to be
// read: 16 links between two buffers give the bits of links with a wait after each.
TEST_F(RmsNorm, ChainsReadWhatTheLaunchBeforeWrote) {
  constexpr int64_t kRows = 2000, kChannels = 1024;
  constexpr int kLinks = 16;
  Rng rng(5);
  const std::vector<uint16_t> x = test::to_bf16(test::gaussians(rng, kRows * kChannels));
  std::vector<DeviceTensor> weights;
  for (int i = 0; i < kLinks; ++i) {
    weights.push_back(test::upload(DType::kBF16, {kChannels}, test::to_bf16(test::gaussians(rng, kChannels))));
  }
  const auto chain = [&](bool waits) {
    const DeviceTensor buffers[2] = {test::upload(DType::kBF16, {kRows, kChannels}, x),
                                     test::poisoned(DType::kBF16, {kRows, kChannels})};
    for (int i = 0; i < kLinks; ++i) {
      EXPECT_TRUE(
          rms_norm(stream(), {.x = buffers[i % 2], .weight = weights[i], .eps = 1e-6f, .y = buffers[1 - i % 2]}).ok());
      if (waits) MOESAIC_CUDA_CHECK(cudaStreamSynchronize(stream()));
    }
    test::Quantized out(kRows, kChannels);
    EXPECT_TRUE(quantize_fp8(stream(), {.x = buffers[0], .q = out.q, .scales = out.scales}).ok());
    return test::download<uint8_t>(out.q);
  };
  const std::vector<uint8_t> want = chain(true);
  for (int run = 0; run < 20; ++run) EXPECT_EQ(chain(false), want) << "run " << run;
}

}  // namespace
}  // namespace moesaic::cuda
