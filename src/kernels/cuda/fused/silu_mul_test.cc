// SiLU and quantisation: every layout, groups of 0 and odd sizes, padding full of NaN.
#include "kernels/cuda/fused/silu_mul.h"

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

enum class Layout { kAll, kContiguous, kMasked };

struct SiluCase {
  Layout layout;
  int64_t n;
  int64_t max_rows;  // of a group
  std::vector<int32_t> group_rows;
};

class SiluMul : public test::CudaTest, public testing::WithParamInterface<SiluCase> {};

// Where the rows of group g begin, and how many rows there are in all.
std::vector<int32_t> begins(const SiluCase& c, int64_t* total) {
  std::vector<int32_t> result;
  int64_t next = 0;
  for (const int32_t rows : c.group_rows) {
    result.push_back(static_cast<int32_t>(next));
    next += c.layout == Layout::kMasked ? c.max_rows : c.layout == Layout::kAll ? rows : (rows + 127) / 128 * 128;
  }
  *total = next;
  return result;
}

TEST_P(SiluMul, MatchesDoubleAndLeavesPaddingAlone) {
  const SiluCase& c = GetParam();
  Rng rng(3);
  int64_t rows = 0;
  const std::vector<int32_t> begin = begins(c, &rows);
  std::vector<uint16_t> gate_up(rows * 2 * c.n, 0xffff);  // NaN
  std::vector<bool> is_token(rows);
  const int64_t groups = static_cast<int64_t>(begin.size());
  const bool masked = c.layout == Layout::kMasked;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t count = masked ? std::clamp<int64_t>(c.group_rows[g], 0, c.max_rows) : c.group_rows[g];
    const std::vector<uint16_t> values = test::to_bf16(test::gaussians(rng, count * 2 * c.n, 3.0f));
    std::copy(values.begin(), values.end(), gate_up.begin() + begin[g] * 2 * c.n);
    std::fill_n(is_token.begin() + begin[g], count, true);
  }
  const int64_t scale_rows = masked ? c.max_rows : rows, stride = scale_row_stride(scale_rows);
  const DeviceTensor in = test::upload(DType::kBF16, {rows, 2 * c.n}, gate_up);
  const DeviceTensor group_begin = test::upload(DType::kI32, {groups}, begin);
  const DeviceTensor group_rows = test::upload(DType::kI32, {groups}, c.group_rows);
  const DeviceTensor q = test::poisoned(DType::kE4M3, {rows, c.n});
  const Shape scale_shape = masked ? Shape{groups, c.n / kScaleGroup, stride} : Shape{c.n / kScaleGroup, stride};
  const DeviceTensor scales = test::poisoned(DType::kF32, scale_shape);
  const absl::Status status =
      silu_mul_quantize(stream(), {.gate_up = in,
                                   .group_begin = c.layout == Layout::kContiguous ? group_begin.tensor : Tensor(),
                                   .group_rows = c.layout == Layout::kAll ? Tensor() : group_rows.tensor,
                                   .q = q,
                                   .scales = scales});
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<uint8_t> codes = test::download<uint8_t>(q);
  const std::vector<float> got_scales = test::download<float>(scales);
  int64_t different = 0, tokens = 0, written = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const auto row_codes = codes.begin() + row * c.n;
    const int64_t in_group = masked ? row % c.max_rows : row, block = masked ? row / c.max_rows : 0;
    const auto scale_at = [&](int64_t i) {
      return got_scales[(block * (c.n / kScaleGroup) + i / kScaleGroup) * stride + in_group];
    };
    if (!is_token[row]) {
      ASSERT_EQ(std::count(row_codes, row_codes + c.n, 0xff), c.n) << "row " << row << " is padding";
      for (int64_t i = 0; i < c.n; i += kScaleGroup) ASSERT_TRUE(std::isnan(scale_at(i))) << "row " << row;
      continue;
    }
    ++tokens;
    std::vector<float> want(c.n);
    for (int64_t i = 0; i < c.n; ++i) {
      const double gate = bf16_to_f32(gate_up[row * 2 * c.n + i]), up = bf16_to_f32(gate_up[row * 2 * c.n + c.n + i]);
      want[i] = static_cast<float>(gate / (1.0 + std::exp(-gate)) * up);
    }
    const test::CpuQuantized expected(want, 1, c.n);
    for (int64_t i = 0; i < c.n; ++i) {
      if (i % kScaleGroup == 0) {
        const float want_scale = expected.scales[i / kScaleGroup];
        ASSERT_NEAR(scale_at(i), want_scale, want_scale * 2e-6f);
      }
      const int off = std::abs(row_codes[i] - expected.q[i]);
      if (off > 1) FAIL() << "row " << row << " channel " << i << ": " << off << " codes off";
      different += off;
    }
  }
  for (const float scale : got_scales) written += !std::isnan(scale);
  EXPECT_EQ(written, tokens * (c.n / kScaleGroup));
  EXPECT_LE(different, tokens * c.n / 500 + 1);
}

INSTANTIATE_TEST_SUITE_P(Layouts, SiluMul,
                         testing::Values(SiluCase{Layout::kAll, 2048, 0, {37}}, SiluCase{Layout::kAll, 128, 0, {3}},
                                         SiluCase{Layout::kContiguous, 256, 0, {0, 1, 7, 63, 64, 65, 128, 0, 300}},
                                         SiluCase{Layout::kMasked, 384, 130, {0, 1, 7, 63, 64, 65, 128, 130, 0}},
                                         SiluCase{Layout::kMasked, 2176, 3, {0, 0, 3}},
                                         SiluCase{Layout::kMasked, 128, 5, {-7, 1 << 30, 2, INT32_MIN, INT32_MAX, 6}},
                                         SiluCase{Layout::kMasked, 128, 8, {0, 0, 0}},
                                         SiluCase{Layout::kContiguous, 128, 0, std::vector<int32_t>(300, 2)},
                                         SiluCase{Layout::kMasked, 128, 40, std::vector<int32_t>(300, 11)}));

std::vector<SiluCase> bench_cases() {
  std::vector<SiluCase> cases;
  for (const int64_t tokens : token_counts(kSiluTokens)) {
    const auto share = static_cast<int32_t>(tokens / kMaskedGroups);
    cases.push_back({Layout::kAll, kInter, 0, {static_cast<int32_t>(tokens)}});
    cases.push_back({Layout::kMasked, kInter, 4 * share, std::vector<int32_t>(kMaskedGroups, share)});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(FullSize, SiluMul, testing::ValuesIn(bench_cases()));

// As the CPU's: 0 and not -infinity times 0; NaN stays NaN.
TEST_F(SiluMul, MinusInfinityIsZero) {
  constexpr int64_t kN = 128;
  std::vector<float> values(2 * kN, 1.0f);
  const std::vector<float> gates = {-test::kInf, -3e38f, -100.0f, -0.0f, 3e38f, test::kNan};
  std::copy(gates.begin(), gates.end(), values.begin());
  values[kN] = -2.0f, values[kN + 4] = 1e-36f;
  const DeviceTensor in = test::upload(DType::kBF16, {1, 2 * kN}, test::to_bf16(values));
  test::Quantized out(1, kN);
  ASSERT_TRUE(silu_mul_quantize(stream(), {.gate_up = in, .q = out.q, .scales = out.scales}).ok());
  const std::vector<float> got = test::widen_e4m3(test::download<uint8_t>(out.q));
  std::vector<float> cpu_values = test::widen_bf16(test::to_bf16(values)), cpu_y(kN);
  test::CpuStream cpu;
  moesaic::silu_mul(cpu.stream,
                    {.gate_up = test::f32_view(cpu_values, {1, 2 * kN}), .y = test::f32_view(cpu_y, {1, kN})});
  const std::vector<float> want = test::widen_e4m3(test::CpuQuantized(cpu_y, 1, kN).q);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(got[i], want[i]) << "gate " << gates[i];
  EXPECT_EQ(got[0], 0.0f);
  EXPECT_EQ(got[4], 448.0f);
  EXPECT_TRUE(std::isnan(got[5]));
}

}  // namespace
}  // namespace moesaic::cuda
