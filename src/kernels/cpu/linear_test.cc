#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr uint64_t kSeed = 20240607;
const float kNaN = std::bit_cast<float>(0x7fc00001u);

// A whole matrix with its scales, from which shards are packed; `value` is what a plain loop multiplies with.
struct Matrix {
  Matrix(DType dtype, int64_t rows, int64_t cols, Rng& rng) : dtype(dtype), rows(rows), cols(cols) {
    data = Buffer(rows * cols * dtype_bytes(dtype));
    scale_cols = (cols + 127) / 128;
    scales.resize((rows + 127) / 128 * scale_cols);
    for (float& s : scales) s = 0.001f + 0.01f * static_cast<float>(rng.uniform());
    for (int64_t i = 0; i < rows * cols; ++i) {
      const float v = static_cast<float>(rng.uniform() * 2 - 1);
      if (dtype == DType::kF32) static_cast<float*>(data.data())[i] = v;
      if (dtype == DType::kBF16) static_cast<uint16_t*>(data.data())[i] = f32_to_bf16(v);
      // Every code, subnormals and both zeros included, but NaN.
      const uint8_t code = static_cast<uint8_t>(rng.below(256));
      if (dtype == DType::kE4M3) static_cast<uint8_t*>(data.data())[i] = (code & 0x7f) == 0x7f ? 0x31 : code;
    }
  }

  double value(int64_t row, int64_t col) const {
    const int64_t i = row * cols + col;
    if (dtype == DType::kF32) return static_cast<const float*>(data.data())[i];
    if (dtype == DType::kBF16) return bf16_to_f32(static_cast<const uint16_t*>(data.data())[i]);
    return double{e4m3_to_f32(static_cast<const uint8_t*>(data.data())[i])} *
           scales[row / 128 * scale_cols + col / 128];
  }

  PackedWeight::Source source(int64_t row_begin, int64_t row_end, int64_t col_begin, int64_t col_end,
                              bool transpose = false) {
    PackedWeight::Source source;
    source.weight = Tensor(data.data(), dtype, {rows, cols}).rows(row_begin, row_end).cols(col_begin, col_end);
    if (dtype == DType::kE4M3) {
      source.scale_inv = Tensor(scales.data(), DType::kF32, {(rows + 127) / 128, scale_cols});
    }
    source.row_offset = row_begin;
    source.col_offset = col_begin;
    source.transpose = transpose;
    return source;
  }

  DType dtype;
  int64_t rows, cols, scale_cols;
  Buffer data;
  std::vector<float> scales;
};

std::vector<float> random_floats(int64_t count, Rng& rng) {
  std::vector<float> values(count);
  for (float& v : values) v = static_cast<float>(rng.uniform() * 2 - 1);
  return values;
}

bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, count * sizeof(float)) == 0;
}

// What every row must equal bit for bit: the definition; for AMX, which sums in another order, each row alone.
void expected_panels(const LinearPanels& args) {
  if (active_isa() != Isa::kAmx) return linear_panels_plain(args, 0, args.weight->num_panels());
  LinearPanels row = args;
  row.m = 1;
  for (int64_t i = 0; i < args.m; ++i, row.x += row.x_stride, row.y += row.y_stride) {
    linear_panels(row, 0, args.weight->num_panels());
  }
}

struct ForcedIsa {
  explicit ForcedIsa(Isa isa) : before(active_isa()) { force_isa(isa); }
  ~ForcedIsa() { force_isa(before); }
  Isa before;
};

class LinearTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!isa_supported(GetParam())) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
    forced_ = std::make_unique<ForcedIsa>(GetParam());
  }
  std::unique_ptr<ForcedIsa> forced_;
  Rng rng_{kSeed};
};

INSTANTIATE_TEST_SUITE_P(Isas, LinearTest, testing::Values(Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAmx),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

struct Shape2 {
  int64_t n, k;
};
const Shape2 kShapes[] = {{1, 1},    {1, 130}, {3, 127},  {8, 128},   {31, 129},  {32, 64},  {33, 256},
                          {64, 300}, {70, 40}, {96, 257}, {130, 385}, {192, 256}, {576, 256}};
const int64_t kRows[] = {0, 1, 2, 3, 5, 8, 12, 13, 63, 64, 65, 128, 131};

// Against a double loop over the unpacked matrix; error bound of a sequential f32 sum.
void expect_near_reference(const Matrix& matrix, const PackedWeight::Source& source, const float* x, const float* bias,
                           const float* y, int64_t n, int64_t k) {
  for (int64_t c = 0; c < n; ++c) {
    double sum = bias == nullptr ? 0 : bias[c], magnitude = std::fabs(sum);
    for (int64_t i = 0; i < k; ++i) {
      const int64_t row = source.row_offset + (source.transpose ? i : c);
      const int64_t col = source.col_offset + (source.transpose ? c : i);
      const double term = matrix.value(row, col) * x[i];
      sum += term;
      magnitude += std::fabs(term);
    }
    ASSERT_NEAR(y[c], sum, (magnitude + 1e-30) * 1e-5) << "column " << c;
  }
}

TEST_P(LinearTest, EqualsReferenceForAllShapesAndRowCounts) {
  ThreadPool pool(2);
  Stream stream(pool);
  for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32}) {
    for (const auto& [n, k] : kShapes) {
      Matrix matrix(dtype, n, k, rng_);
      const PackedWeight::Source source = matrix.source(0, n, 0, k);
      const auto weight = PackedWeight::pack(source);
      ASSERT_TRUE(weight.ok()) << weight.status();
      std::vector<float> bias = random_floats(n, rng_);
      const int64_t x_stride = k + 3, y_stride = n + 5, max_m = 131;
      std::vector<float> x = random_floats(max_m * x_stride, rng_);
      std::vector<float> expected(max_m * n);
      expected_panels({&*weight, x.data(), x_stride, max_m, expected.data(), n, bias.data()});
      for (const int64_t row : {0, 130}) {
        expect_near_reference(matrix, source, &x[row * x_stride], bias.data(), &expected[row * n], n, k);
      }
      for (const int64_t m : kRows) {
        if (GetParam() == Isa::kPlain && m > 13) continue;  // it works row by row
        SCOPED_TRACE(str_cat(dtype_name(dtype), " n ", n, " k ", k, " m ", m, " seed ", kSeed));
        std::vector<float> y(max_m * y_stride, kNaN);
        linear(stream, {.x = Tensor::strided(x.data(), DType::kF32, m, k, x_stride),
                        .weight = &*weight,
                        .bias = Tensor(bias.data(), DType::kF32, {n}),
                        .y = Tensor::strided(y.data(), DType::kF32, m, n, y_stride)});
        for (int64_t i = 0; i < m; ++i) {
          ASSERT_TRUE(same_bits(&y[i * y_stride], &expected[i * n], n)) << "row " << i;
          for (int64_t c = n; c < y_stride; ++c) ASSERT_TRUE(std::isnan(y[i * y_stride + c])) << "wrote past a row";
        }
        for (int64_t i = m * y_stride; i < max_m * y_stride; ++i) ASSERT_TRUE(std::isnan(y[i])) << "wrote past m";
      }
    }
  }
}

TEST_P(LinearTest, ShardsAndTransposesFindTheirScales) {
  ThreadPool pool(1);
  Stream stream(pool);
  struct Cut {
    int64_t row_begin, row_end, col_begin, col_end;
  };
  const Cut cuts[] = {{0, 300, 0, 333}, {128, 300, 128, 333}, {64, 192, 0, 333}, {0, 300, 100, 333},
                      {5, 6, 250, 333}, {37, 250, 127, 129},  {200, 300, 10, 20}};
  for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32}) {
    Matrix matrix(dtype, 300, 333, rng_);
    for (const Cut& cut : cuts) {
      for (const bool transpose : {false, true}) {
        SCOPED_TRACE(
            str_cat(dtype_name(dtype), " rows ", cut.row_begin, " cols ", cut.col_begin, transpose ? " T" : ""));
        const auto source = matrix.source(cut.row_begin, cut.row_end, cut.col_begin, cut.col_end, transpose);
        const auto weight = PackedWeight::pack(source);
        ASSERT_TRUE(weight.ok()) << weight.status();
        const int64_t n = weight->n(), k = weight->k();
        ASSERT_EQ(n, transpose ? cut.col_end - cut.col_begin : cut.row_end - cut.row_begin);
        ASSERT_FLOAT_EQ(weight->at(n - 1, k - 1), matrix.value(cut.row_end - 1, cut.col_end - 1));
        for (const int64_t m : {1, 3, 20}) {
          std::vector<float> x = random_floats(m * k, rng_), y(m * n);
          linear(stream, {.x = Tensor(x.data(), DType::kF32, {m, k}),
                          .weight = &*weight,
                          .y = Tensor(y.data(), DType::kF32, {m, n})});
          for (int64_t i = 0; i < m; ++i) expect_near_reference(matrix, source, &x[i * k], nullptr, &y[i * n], n, k);
        }
      }
    }
  }
}

TEST_P(LinearTest, RowBitsDependOnNothingElse) {
  const int64_t n = 200, k = 300, m = GetParam() == Isa::kPlain ? 14 : 300;
  for (const DType dtype : {DType::kE4M3, DType::kBF16}) {
    Matrix matrix(dtype, n, k, rng_);
    const auto weight = PackedWeight::pack(matrix.source(0, n, 0, k));
    ASSERT_TRUE(weight.ok());
    std::vector<float> x = random_floats(m * k, rng_), first(m * n);
    for (const int threads : {1, 2, 3}) {
      ThreadPool pool(threads);
      Stream stream(pool);
      std::vector<float> whole(m * n), y(m * n);
      linear(stream, {.x = Tensor(x.data(), DType::kF32, {m, k}),
                      .weight = &*weight,
                      .y = Tensor(whole.data(), DType::kF32, {m, n})});
      if (threads == 1) first = whole;
      EXPECT_TRUE(same_bits(whole.data(), first.data(), m * n)) << threads << " threads";
      for (const int64_t piece : {1, 2, 3, 4, 7, 12, 13, 129}) {
        for (int64_t row = 0; row < m; row += piece) {
          const int64_t rows = std::min(piece, m - row);
          linear(stream, {.x = Tensor(&x[row * k], DType::kF32, {rows, k}),
                          .weight = &*weight,
                          .y = Tensor(&y[row * n], DType::kF32, {rows, n})});
        }
        EXPECT_TRUE(same_bits(y.data(), first.data(), m * n)) << "pieces of " << piece << ", " << threads << " threads";
      }
    }
  }
}

// Three bf16 terms hold all 24 bits of an activation: AMX is as near to the exact sum as the definition is. Two are
// within 2^-17 of it.
TEST(LinearAmx, IsAsExactAsItsMath) {
  if (!isa_supported(Isa::kAmx)) GTEST_SKIP() << "this CPU has no amx";
  Rng rng(kSeed);
  const int64_t n = 64, k = 512;
  for (const int64_t m : {3, 7, 20}) {
    for (const DType dtype : {DType::kE4M3, DType::kBF16}) {
      Matrix matrix(dtype, n, k, rng);
      const auto weight = PackedWeight::pack(matrix.source(0, n, 0, k));
      ASSERT_TRUE(weight.ok());
      const std::vector<float> x = random_floats(m * k, rng);
      std::vector<float> y(m * n), short_y(m * n), defined(m * n);
      LinearPanels args{&*weight, x.data(), k, m, y.data(), n, nullptr};
      linear_panels_amx(args, 0, weight->num_panels());
      args.y = defined.data();
      linear_panels_plain(args, 0, weight->num_panels());
      args.y = short_y.data();
      args.math = LinearMath::kShort;
      linear_panels_amx(args, 0, weight->num_panels());
      double error = 0, defined_error = 0;
      for (int64_t i = 0; i < m * n; ++i) {
        double exact = 0, magnitude = 0;
        for (int64_t c = 0; c < k; ++c) {
          const double product = double{matrix.value(i % n, c)} * x[i / n * k + c];
          exact += product;
          magnitude += std::fabs(product);
        }
        error += std::fabs(y[i] - exact);
        defined_error += std::fabs(defined[i] - exact);
        EXPECT_LE(std::fabs(short_y[i] - exact), 0x1.0p-17 * magnitude) << dtype_name(dtype);
      }
      EXPECT_LE(error, 1.1 * defined_error) << dtype_name(dtype);
    }
  }
}

// A row has the same bits whatever rows are beside it, with either math.
TEST(LinearAmx, ShortMathDoesNotDependOnTheNumberOfRows) {
  if (!isa_supported(Isa::kAmx)) GTEST_SKIP() << "this CPU has no amx";
  Rng rng(kSeed);
  const int64_t n = 96, k = 300, rows = 70;
  Matrix matrix(DType::kE4M3, n, k, rng);
  const auto weight = PackedWeight::pack(matrix.source(0, n, 0, k));
  ASSERT_TRUE(weight.ok());
  const std::vector<float> x = random_floats(rows * k, rng);
  std::vector<float> all(rows * n), y(rows * n);
  LinearPanels args{&*weight, x.data(), k, rows, all.data(), n, nullptr, LinearMath::kShort};
  linear_panels_amx(args, 0, weight->num_panels());
  for (int64_t m = 1; m < rows; m += m < 18 ? 1 : 17) {
    args.m = m;
    args.y = y.data();
    linear_panels_amx(args, 0, weight->num_panels());
    EXPECT_TRUE(same_bits(y.data(), all.data(), m * n)) << m;
  }
}

// A NaN in one row reaches that row's outputs and no others.
TEST_P(LinearTest, NaNStaysInItsRow) {
  ThreadPool pool(2);
  Stream stream(pool);
  const int64_t n = 100, k = 140;
  Matrix matrix(DType::kE4M3, n, k, rng_);
  const auto weight = PackedWeight::pack(matrix.source(0, n, 0, k));
  ASSERT_TRUE(weight.ok());
  for (const int64_t m : {2, 6, 50}) {
    std::vector<float> x = random_floats(m * k, rng_), y(m * n);
    x[k + 139] = kNaN;
    linear(
        stream,
        {.x = Tensor(x.data(), DType::kF32, {m, k}), .weight = &*weight, .y = Tensor(y.data(), DType::kF32, {m, n})});
    for (int64_t i = 0; i < m * n; ++i) ASSERT_EQ(std::isnan(y[i]), i / n == 1) << i;
  }
}

TEST_P(LinearTest, HeadLinearReadsAndWritesThePartOfEachHead) {
  ThreadPool pool(2);
  Stream stream(pool);
  const int64_t heads = 5, n = 70, k = 130, x_head = 160, y_head = 72;
  Matrix matrix(DType::kE4M3, heads * k, n, rng_);
  std::vector<PackedWeight> weights;
  for (int64_t h = 0; h < heads; ++h) {
    auto weight = PackedWeight::pack(matrix.source(h * k, (h + 1) * k, 0, n, true));
    ASSERT_TRUE(weight.ok());
    weights.push_back(*std::move(weight));
  }
  for (const int64_t m : {0, 1, 4, 40}) {
    std::vector<float> x = random_floats(m * heads * x_head + 1, rng_), y(m * heads * y_head + 1, kNaN);
    for (int64_t i = 0; i < m * heads; ++i) {
      for (int64_t c = k; c < x_head; ++c) x[i * x_head + c] = kNaN;
    }
    head_linear(stream, {.x = Tensor(x.data(), DType::kF32, {m, heads, x_head}),
                         .weights = weights,
                         .y = Tensor(y.data(), DType::kF32, {m, heads, y_head})});
    for (int64_t i = 0; i < m * heads; ++i) {
      const auto source = matrix.source(i % heads * k, (i % heads + 1) * k, 0, n, true);
      expect_near_reference(matrix, source, &x[i * x_head], nullptr, &y[i * y_head], n, k);
      for (int64_t c = n; c < y_head; ++c) ASSERT_TRUE(std::isnan(y[i * y_head + c]));
    }
  }
}

// Rows between the groups hold NaN and must be neither read nor written.
TEST_P(LinearTest, GroupedLinearTouchesOnlyTheRowsOfItsGroups) {
  const int64_t n = 96, k = 160;
  const std::vector<int32_t> patterns[] = {
      {0, 1, 7, 63, 64, 65, 128}, {1, 1, 1, 1, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 1}};
  Matrix matrix(DType::kE4M3, 7 * n, k, rng_);
  std::vector<PackedWeight> weights;
  for (int64_t g = 0; g < 7; ++g) {
    auto weight = PackedWeight::pack(matrix.source(g * n, (g + 1) * n, 0, k));
    ASSERT_TRUE(weight.ok());
    weights.push_back(*std::move(weight));
  }
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    Stream stream(pool);
    for (const bool masked : {false, true}) {
      for (const auto& group_rows : patterns) {
        std::vector<int32_t> group_begin;
        int32_t num_rows = 0;
        for (const int32_t rows : group_rows) {
          group_begin.push_back(num_rows);
          num_rows += masked ? 128 : (rows + 127) / 128 * 128;
        }
        std::vector<float> x(num_rows * k, kNaN), y(num_rows * n, kNaN), expected(n);
        for (size_t g = 0; g < group_rows.size(); ++g) {
          const auto values = random_floats(group_rows[g] * k, rng_);
          std::copy(values.begin(), values.end(), x.begin() + group_begin[g] * k);
        }
        grouped_linear(stream, {.x = Tensor(x.data(), DType::kF32, {num_rows, k}),
                                .weights = weights,
                                .group_begin = group_begin,
                                .group_rows = group_rows,
                                .y = Tensor(y.data(), DType::kF32, {num_rows, n})});
        for (int64_t g = 0; g < 7; ++g) {
          const int32_t end = g == 6 ? num_rows : group_begin[g + 1];
          for (int64_t row = group_begin[g]; row < end; ++row) {
            if (row < group_begin[g] + group_rows[g]) {
              expected_panels({&weights[g], &x[row * k], k, 1, expected.data(), n, nullptr});
              ASSERT_TRUE(same_bits(&y[row * n], expected.data(), n)) << "group " << g << " row " << row;
              ASSERT_FALSE(std::isnan(expected[0]));
            } else {
              for (int64_t c = 0; c < n; ++c) ASSERT_TRUE(std::isnan(y[row * n + c])) << "wrote a padding row";
            }
          }
        }
      }
    }
  }
}

// Activations and weights at the ends of the documented range give the same bits on every path of a kind.
TEST_P(LinearTest, ExtremeMagnitudesKeepTheirBits) {
  const int64_t n = 64, k = 256;
  Matrix matrix(DType::kE4M3, n, k, rng_);
  const auto weight = PackedWeight::pack(matrix.source(0, n, 0, k));
  ASSERT_TRUE(weight.ok());
  for (const float factor : {0x1.0p-100f, 0x1.0p-60f, 1.0f, 0x1.0p60f}) {
    std::vector<float> x = random_floats(20 * k, rng_), expected(20 * n), y(20 * n);
    for (float& v : x) v *= factor;
    expected_panels({&*weight, x.data(), k, 20, expected.data(), n, nullptr});
    linear_panels({&*weight, x.data(), k, 20, y.data(), n, nullptr}, 0, weight->num_panels());
    EXPECT_TRUE(same_bits(y.data(), expected.data(), 20 * n)) << factor;
    for (int64_t i = 0; i < 20; ++i) {
      linear_panels({&*weight, &x[i * k], k, 1, &y[i * n], n, nullptr}, 0, weight->num_panels());
    }
    EXPECT_TRUE(same_bits(y.data(), expected.data(), 20 * n)) << factor << " row by row";
  }
}

}  // namespace
}  // namespace moesaic
