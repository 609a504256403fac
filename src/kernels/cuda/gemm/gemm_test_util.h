// Random operands of the FP8 GEMMs on host and device, and results against their definition in double precision. For
// tests alone.
#pragma once

#include <algorithm>
#include <vector>

#include "kernels/cuda/scales.h"
#include "kernels/cuda/test_util.h"

namespace moesaic::cuda::test {

// e4m3 values of a normal distribution, without NaN.
inline std::vector<uint8_t> random_e4m3(Rng& rng, int64_t count) {
  std::vector<uint8_t> values(count);
  for (uint8_t& value : values) {
    const double sum = rng.uniform() + rng.uniform() + rng.uniform() + rng.uniform() - 2.0;
    value = f32_to_e4m3(static_cast<float>(sum * 200.0));
  }
  return values;
}

inline std::vector<float> random_scales(Rng& rng, int64_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(0.001 + 0.004 * rng.uniform());
  return values;
}

// Weight matrices [groups, n, k] with their scales; one() is the first as a plain matrix.
struct Weights {
  Weights(Rng& rng, int64_t groups, int64_t n, int64_t k)
      : n(n),
        k(k),
        n_blocks((n + 127) / 128),
        values(random_e4m3(rng, groups * n * k)),
        scales(random_scales(rng, groups * n_blocks * (k / 128))),
        values_on_device(upload(DType::kE4M3, {groups, n, k}, values)),
        scales_on_device(upload(DType::kF32, {groups, n_blocks, k / 128}, scales)) {}

  Tensor one() const { return values_on_device.buffer.tensor(DType::kE4M3, {n, k}); }
  Tensor one_scales() const { return scales_on_device.buffer.tensor(DType::kF32, {n_blocks, k / 128}); }

  int64_t n, k, n_blocks;
  std::vector<uint8_t> values;
  std::vector<float> scales;
  DeviceTensor values_on_device, scales_on_device;
};

// What row `x` (k e4m3 values, their scales `scale_step` apart) gives in column `column` of weight `group`.
inline double linear_at(const uint8_t* x, const float* x_scales, int64_t scale_step, const Weights& w, int64_t group,
                        int64_t column) {
  const uint8_t* row = w.values.data() + (group * w.n + column) * w.k;
  const float* scales = w.scales.data() + (group * w.n_blocks + column / 128) * (w.k / 128);
  double total = 0.0;
  for (int64_t g = 0; g < w.k / 128; ++g) {
    double sum = 0.0;
    for (int64_t i = g * 128; i < (g + 1) * 128; ++i) sum += double{e4m3_to_f32(x[i])} * e4m3_to_f32(row[i]);
    total += sum * x_scales[g * scale_step] * scales[g];
  }
  return total;
}

// Rounding to bf16 moves a value by 2^-9 to 2^-8 of it; the tensor cores' sums of 128 products are off by 1e-4 of
// what sums of this length are, seldom by 1e-3.
inline void expect_rounded(const std::vector<float>& got, const std::vector<double>& want) {
  double squares = 0.0;
  for (const double value : want) squares += value * value;
  const double typical = std::sqrt(squares / static_cast<double>(want.size()));
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_NEAR(got[i], want[i], std::fabs(want[i]) * 0x1p-8 + typical * 1.5e-3) << "sample " << i;
  }
}

// Compares some columns of one result row with the definition, and that the whole row was written.
inline void expect_row(const std::vector<uint16_t>& y, int64_t row, const uint8_t* x, const float* scales,
                       int64_t scale_step, const Weights& w, int64_t group, Rng& rng) {
  SCOPED_TRACE(testing::Message() << "row " << row << " of weight " << group);
  const uint16_t* values = y.data() + row * w.n;
  std::vector<float> got;
  std::vector<double> want;
  for (int i = 0; i < 24; ++i) {
    const int64_t column = i == 0 ? 0 : i == 1 ? w.n - 1 : static_cast<int64_t>(rng.below(w.n));
    want.push_back(linear_at(x, scales, scale_step, w, group, column));
    got.push_back(bf16_to_f32(values[column]));
  }
  expect_rounded(got, want);
  for (int64_t column = 0; column < w.n; ++column) {
    ASSERT_TRUE(std::isfinite(bf16_to_f32(values[column]))) << "column " << column;
  }
}

inline bool is_poison(const std::vector<uint16_t>& y, int64_t row, int64_t n) {
  return std::all_of(y.begin() + row * n, y.begin() + (row + 1) * n, [](uint16_t bits) { return bits == 0xffff; });
}

// x [rows, k] with NaN in everything that is not named by `live`, scales too.
struct Rows {
  Rows(Rng& rng, int64_t matrices, int64_t rows, int64_t k, const std::vector<bool>& live)
      : stride(scale_row_stride(rows)),
        values(random_e4m3(rng, matrices * rows * k)),
        scales(random_scales(rng, num_scales(matrices, rows, k))) {
    const int64_t k_groups = k / kScaleGroup;
    for (int64_t m = 0; m < matrices; ++m) {
      for (int64_t r = 0; r < stride; ++r) {
        if (r < rows && live[m * rows + r]) continue;
        if (r < rows) std::fill_n(values.begin() + (m * rows + r) * k, k, uint8_t{0x7f});
        for (int64_t g = 0; g < k_groups; ++g) scales[(m * k_groups + g) * stride + r] = kNan;
      }
    }
  }
  int64_t stride;
  std::vector<uint8_t> values;
  std::vector<float> scales;
};

}  // namespace moesaic::cuda::test
