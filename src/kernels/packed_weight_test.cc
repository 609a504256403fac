#include "kernels/packed_weight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace moesaic {
namespace {

using testing::HasSubstr;

struct E4M3Matrix {
  E4M3Matrix(int64_t rows, int64_t cols)
      : rows(rows), cols(cols), data(rows * cols), scales((rows + 127) / 128 * ((cols + 127) / 128), 1.0f) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = i * 37 % 127;
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = 1.0f + i;
  }
  PackedWeight::Source source() {
    PackedWeight::Source source;
    source.weight = Tensor(data.data(), DType::kE4M3, {rows, cols});
    source.scale_inv = Tensor(scales.data(), DType::kF32, {(rows + 127) / 128, (cols + 127) / 128});
    return source;
  }
  int64_t rows, cols;
  std::vector<uint8_t> data;
  std::vector<float> scales;
};

std::string message(const absl::StatusOr<PackedWeight>& packed) {
  return std::string(packed.status().message());
}

TEST(PackedWeight, SlotsAreAPermutation) {
  for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32}) {
    std::set<int64_t> slots;
    for (int64_t col = 0; col < 32; ++col) slots.insert(PackedWeight::slot(dtype, col));
    EXPECT_EQ(slots.size(), 32u);
    EXPECT_EQ(*slots.begin(), 0);
    EXPECT_EQ(*slots.rbegin(), 31);
  }
}

TEST(PackedWeight, RaggedBlocksDequantise) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{300, 256}, {576, 256}, {192, 256}, {1, 130}}) {
    E4M3Matrix matrix(rows, cols);
    const auto packed = PackedWeight::pack(matrix.source());
    ASSERT_TRUE(packed.ok()) << packed.status();
    const int64_t blocks = (cols + 127) / 128;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        ASSERT_EQ(packed->at(r, c), e4m3_to_f32(matrix.data[r * cols + c]) * matrix.scales[r / 128 * blocks + c / 128]);
      }
    }
  }
}

TEST(PackedWeight, PackRowsStacksMatrices) {
  E4M3Matrix a(40, 200), b(7, 200);
  const PackedWeight::Source sources[] = {a.source(), b.source()};
  const auto packed = PackedWeight::pack_rows(sources, 2);
  ASSERT_TRUE(packed.ok()) << packed.status();
  ASSERT_EQ(packed->n(), 47);
  EXPECT_EQ(packed->at(39, 199), e4m3_to_f32(a.data[39 * 200 + 199]) * a.scales[1]);
  EXPECT_EQ(packed->at(40, 0), e4m3_to_f32(b.data[0]) * b.scales[0]);
  EXPECT_EQ(packed->at(46, 130), e4m3_to_f32(b.data[6 * 200 + 130]) * b.scales[1]);
  // One byte a weight, panels rounded up to 32 columns, and the scales.
  EXPECT_EQ(packed->num_bytes(), 64 * 200 + 2 * 64 * 4);
}

TEST(PackedWeight, RefusesWhatItCannotMultiply) {
  E4M3Matrix matrix(130, 130);
  auto source = matrix.source();
  matrix.data[129 * 130 + 5] = 0xff;
  EXPECT_THAT(message(PackedWeight::pack(source)), HasSubstr("NaN in row 129"));
  matrix.data[129 * 130 + 5] = 0;
  matrix.scales[3] = INFINITY;
  EXPECT_THAT(message(PackedWeight::pack(source)), HasSubstr("weight_scale_inv holds inf"));
  matrix.scales[3] = 1;
  EXPECT_TRUE(PackedWeight::pack(source).ok());

  source.scale_inv = Tensor(matrix.scales.data(), DType::kF32, {2, 1});
  EXPECT_THAT(message(PackedWeight::pack(source)), HasSubstr("at least [2, 2]"));
  source = matrix.source();
  source.row_offset = 127;
  EXPECT_THAT(message(PackedWeight::pack(source)), HasSubstr("at least [3, 2]"));
  source.scale_inv = Tensor();
  EXPECT_THAT(message(PackedWeight::pack(source)), HasSubstr("needs weight_scale_inv"));
  source = matrix.source();
  source.weight = Tensor(matrix.data.data(), DType::kU8, {130, 130});
  EXPECT_THAT(message(PackedWeight::pack(source)), HasSubstr("must be f32, bf16 or e4m3"));
  source.weight = Tensor(matrix.data.data(), DType::kE4M3, {0, 130});
  EXPECT_THAT(message(PackedWeight::pack(source)), HasSubstr("shape [0, 130]"));
}

TEST(PackedWeight, RefusesToStackWhatDoesNotFit) {
  E4M3Matrix a(40, 200), b(40, 201), c(40, 200);
  PackedWeight::Source sources[] = {a.source(), b.source()};
  EXPECT_THAT(message(PackedWeight::pack_rows(sources, 2)), HasSubstr("agree in dtype and input size"));
  sources[1] = c.source();
  sources[1].col_offset = 40;
  EXPECT_THAT(message(PackedWeight::pack_rows(sources, 2)), HasSubstr("same place of a scale group"));
}

}  // namespace
}  // namespace moesaic
