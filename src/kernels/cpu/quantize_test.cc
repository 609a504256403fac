#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr uint64_t kSeed = 41;

class QuantizeTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
    before_ = active_isa();
    force_isa(GetParam());
  }
  void TearDown() override { force_isa(before_); }
  Isa before_ = active_isa();
  ThreadPool pool_{2};
  Stream stream_{pool_};
};

INSTANTIATE_TEST_SUITE_P(Isas, QuantizeTest, testing::Values(Isa::kPlain, Isa::kAvx2, Isa::kAvx512),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

// Values over the whole range of magnitudes, among them exact halves between codes.
std::vector<float> wild_floats(int64_t count, Rng& rng) {
  std::vector<float> values(count);
  for (float& v : values) {
    const double u = rng.uniform() * 2 - 1;
    switch (rng.below(5)) {
      case 0:
        v = static_cast<float>(u);
        break;
      case 1:
        v = static_cast<float>(std::ldexp(u, static_cast<int>(rng.below(60)) - 40));
        break;
      case 2:
        v = static_cast<float>(std::round(u * 64) / 64);
        break;
      case 3:
        v = 0.0f;
        break;
      default:
        v = static_cast<float>(u * 448);
        break;
    }
  }
  return values;
}

TEST_P(QuantizeTest, EqualsTheDefinitionBitForBit) {
  Rng rng(kSeed);
  for (const int64_t k : {1, 7, 8, 100, 128, 130, 256, 384, 1000}) {
    for (const int64_t m : {0, 1, 3, 70}) {
      SCOPED_TRACE(str_cat("k ", k, " m ", m, " seed ", kSeed));
      const int64_t groups = (k + 127) / 128;
      std::vector<float> x = wild_floats(m * k + 1, rng), scales(m * groups + 1), y(m * k + 1), z(m * k + 1);
      std::vector<uint8_t> q(m * k + 1);
      const Tensor tx(x.data(), DType::kF32, {m, k}), tq(q.data(), DType::kE4M3, {m, k});
      const Tensor ts(scales.data(), DType::kF32, {m, groups}), ty(y.data(), DType::kF32, {m, k});
      quantize_fp8(stream_, {.x = tx, .q = tq, .scales = ts});
      for (int64_t i = 0; i < m * k; ++i) {
        const int64_t row = i / k, group = i % k / 128, begin = row * k + group * 128;
        float amax = 1e-4f;
        for (int64_t j = begin; j < std::min(begin + 128, (row + 1) * k); ++j) amax = std::max(amax, std::fabs(x[j]));
        ASSERT_EQ(scales[row * groups + group], amax / 448.0f);
        ASSERT_EQ(q[i], f32_to_e4m3(x[i] / (amax / 448.0f))) << x[i] << " of amax " << amax;
      }
      dequantize_fp8(stream_, tq, ts, ty);
      for (int64_t i = 0; i < m * k; ++i) {
        ASSERT_EQ(y[i], e4m3_to_f32(q[i]) * scales[i / k * groups + i % k / 128]);
      }
      round_trip_fp8(stream_, tx, Tensor(z.data(), DType::kF32, {m, k}));
      ASSERT_EQ(std::memcmp(z.data(), y.data(), m * k * sizeof(float)), 0);
      round_trip_fp8(stream_, tx, tx);
      ASSERT_EQ(std::memcmp(x.data(), y.data(), m * k * sizeof(float)), 0) << "in place";
    }
  }
}

TEST_P(QuantizeTest, NaNBecomesNaNAndSparesItsGroup) {
  std::vector<float> x(256, 1.0f), y(256);
  x[3] = NAN;
  round_trip_fp8(stream_, Tensor(x.data(), DType::kF32, {1, 256}), Tensor(y.data(), DType::kF32, {1, 256}));
  for (int i = 0; i < 256; ++i) {
    if (i == 3) {
      EXPECT_TRUE(std::isnan(y[i]));
    } else {
      EXPECT_EQ(y[i], 1.0f) << i;
    }
  }
}

TEST_P(QuantizeTest, RowsMayBeStrided) {
  std::vector<float> x(3 * 140), y(3 * 150, -1.0f), expected(130);
  for (size_t i = 0; i < x.size(); ++i) x[i] = 0.01f * i;
  round_trip_fp8(stream_, Tensor::strided(x.data(), DType::kF32, 3, 130, 140),
                 Tensor::strided(y.data(), DType::kF32, 3, 130, 150));
  for (int row = 0; row < 3; ++row) {
    round_trip_fp8(stream_, Tensor(&x[row * 140], DType::kF32, {1, 130}),
                   Tensor(expected.data(), DType::kF32, {1, 130}));
    EXPECT_EQ(std::memcmp(&y[row * 150], expected.data(), 130 * sizeof(float)), 0);
    for (int c = 130; c < 150; ++c) EXPECT_EQ(y[row * 150 + c], -1.0f);
  }
}

}  // namespace
}  // namespace moesaic
