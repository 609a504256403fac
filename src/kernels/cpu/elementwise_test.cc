// rms_norm, add_inplace, silu_mul and embedding against double precision.
#include "kernels/cpu/op_test_util.h"

namespace moesaic {
namespace {

using test::Owned;

void expect_near_relative(float got, double want, double tolerance) {
  EXPECT_NEAR(got, want, tolerance * std::max(1.0, std::fabs(want)));
}

TEST(RmsNorm, MatchesDouble) {
  test::for_each_isa([] {
    Rng rng(1);
    ThreadPool pool(2);
    Stream stream(pool);
    for (const int64_t n : {1, 3, 8, 31, 64, 100, 256, 513, 7168}) {
      for (const int64_t m : {0, 1, 2, 5, 40}) {
        const Owned x = test::random_f32(rng, {m, n + 3}), weight = test::random_f32(rng, {n});
        const Owned y = test::filled_f32({m, n}, test::kNan);
        const Tensor view = x.tensor.cols(2, n + 2);
        rms_norm(stream, {.x = view, .weight = weight, .eps = 1e-6f, .y = y});
        for (int64_t i = 0; i < m; ++i) {
          double sum = 0;
          for (int64_t j = 0; j < n; ++j) sum += double{view.row<float>(i)[j]} * view.row<float>(i)[j];
          const double scale = 1 / std::sqrt(sum / n + 1e-6);
          for (int64_t j = 0; j < n; ++j) {
            expect_near_relative(y.f32()[i * n + j], view.row<float>(i)[j] * scale * weight.f32()[j], 1e-6);
          }
        }
        rms_norm(stream, {.x = view, .weight = weight, .eps = 1e-6f, .y = view});  // in place
        for (int64_t i = 0; i < m; ++i) {
          EXPECT_EQ(0, std::memcmp(view.row<float>(i), y.tensor.row<float>(i), n * sizeof(float)));
        }
      }
    }
  });
}

TEST(RmsNorm, ZeroRowGivesZeros) {
  ThreadPool pool(1);
  Stream stream(pool);
  const Owned x = test::filled_f32({1, 64}, 0.0f), w = test::filled_f32({64}, 1.0f),
              y = test::filled_f32({1, 64}, 9.0f);
  rms_norm(stream, {.x = x, .weight = w, .eps = 1e-6f, .y = y});
  for (const float v : test::values(y)) EXPECT_EQ(v, 0.0f);
}

TEST(AddInplace, EqualsScalarSum) {
  Rng rng(2);
  ThreadPool pool(3);
  Stream stream(pool);
  for (const int64_t m : {0, 1, 7, 300}) {
    const Owned y = test::random_f32(rng, {m, 131}), x = test::random_f32(rng, {m, 131});
    std::vector<float> want = test::values(y);
    for (size_t i = 0; i < want.size(); ++i) want[i] += x.f32()[i];
    add_inplace(stream, y, x);
    EXPECT_EQ(test::values(y), want);
  }
}

double silu(double x) {
  return x / (1 + std::exp(-x));
}

TEST(SiluMul, MatchesDoubleOverTheWholeRange) {
  test::for_each_isa([] {
    ThreadPool pool(2);
    Stream stream(pool);
    const int64_t n = 40001;
    const Owned x(DType::kF32, {1, 2 * n}), y(DType::kF32, {1, n});
    for (int64_t i = 0; i < n; ++i) {
      x.f32()[i] = static_cast<float>(-100.0 + 200.0 * i / (n - 1));
      x.f32()[n + i] = 1.0f;
    }
    silu_mul(stream, {.gate_up = x, .y = y});
    double worst = 0;
    for (int64_t i = 0; i < n; ++i) {
      const double want = silu(x.f32()[i]);
      worst = std::max(worst, std::fabs(y.f32()[i] - want) / std::max(std::fabs(want), 1e-29));
    }
    EXPECT_LT(worst, 4e-7);
  });
}

TEST(SiluMul, ExtremesAndNan) {
  test::for_each_isa([] {
    ThreadPool pool(1);
    Stream stream(pool);
    const Owned x(DType::kF32, {1, 32}), y(DType::kF32, {1, 16});
    std::fill_n(x.f32() + 16, 16, 2.0f);
    const float gates[] = {-1e30f, 1e30f, 0.0f, -0.0f, test::kNan, 200.0f, -200.0f, 88.5f};
    std::copy(std::begin(gates), std::end(gates), x.f32());
    silu_mul(stream, {.gate_up = x, .y = y});
    EXPECT_EQ(y.f32()[0], 0.0f);
    EXPECT_EQ(y.f32()[1], 2e30f);
    EXPECT_EQ(y.f32()[2], 0.0f);
    EXPECT_EQ(y.f32()[3], 0.0f);
    EXPECT_TRUE(std::isnan(y.f32()[4]));
    EXPECT_EQ(y.f32()[5], 400.0f);
    EXPECT_NEAR(y.f32()[6], 0.0f, 1e-37f);
    EXPECT_EQ(y.f32()[7], 177.0f);
  });
}

class SiluGroups : public testing::TestWithParam<int> {};

TEST_P(SiluGroups, OnlyNamedRowsAreReadAndWritten) {
  test::for_each_isa([] {
    Rng rng(3);
    ThreadPool pool(GetParam());
    Stream stream(pool);
    const int64_t n = 200;
    const std::vector<int32_t> begin = {0, 8, 16, 24, 32}, rows = {3, 0, 8, 1, 7};
    const Owned x = test::random_f32(rng, {40, 2 * n}, 3.0f);
    const Owned y = test::filled_f32({40, n}, -77.0f), alone = test::filled_f32({40, n}, 0.0f);
    for (int64_t r = 0; r < 40; ++r) {
      if (r % 8 >= rows[r / 8]) std::fill_n(x.tensor.row<float>(r), 2 * n, test::kNan);
    }
    for (const bool fp8 : {false, true}) {
      silu_mul(stream, {.gate_up = x, .y = y, .group_begin = begin, .group_rows = rows, .fp8 = fp8});
      for (int64_t r = 0; r < 40; ++r) {
        if (r % 8 >= rows[r / 8]) {
          for (int64_t i = 0; i < n; ++i) ASSERT_EQ(y.tensor.row<float>(r)[i], -77.0f);
          continue;
        }
        const Tensor one = alone.tensor.rows(r, r + 1);
        silu_mul(stream, {.gate_up = x.tensor.rows(r, r + 1), .y = one});
        if (fp8) round_trip_fp8(stream, one, one);
        EXPECT_TRUE(test::same_bits(one, y.tensor.rows(r, r + 1))) << r;
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Threads, SiluGroups, testing::Values(1, 2, 3));

TEST(Embedding, CopiesRowsOfBothTypes) {
  Rng rng(4);
  ThreadPool pool(2);
  Stream stream(pool);
  const Owned table = test::random_f32(rng, {50, 37});
  const Owned half(DType::kBF16, {50, 37});
  for (int64_t i = 0; i < 50 * 37; ++i) half.tensor.data<uint16_t>()[i] = f32_to_bf16(table.f32()[i]);
  std::vector<int32_t> ids;
  for (int i = 0; i < 70; ++i) ids.push_back(static_cast<int32_t>(rng.below(50)));
  const Owned y(DType::kF32, {70, 37}), z(DType::kF32, {70, 37});
  embedding(stream, table, ids, y);
  embedding(stream, half, ids, z);
  for (int64_t t = 0; t < 70; ++t) {
    for (int64_t i = 0; i < 37; ++i) {
      EXPECT_EQ(y.f32()[t * 37 + i], table.f32()[ids[t] * 37 + i]);
      EXPECT_EQ(z.f32()[t * 37 + i], bf16_to_f32(f32_to_bf16(table.f32()[ids[t] * 37 + i])));
    }
  }
  embedding(stream, table, {}, y.tensor.rows(0, 0));
}

}  // namespace
}  // namespace moesaic
