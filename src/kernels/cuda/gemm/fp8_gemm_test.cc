#include "kernels/cuda/gemm/fp8_gemm.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/gemm/gemm_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;
using test::expect_row;
using test::is_poison;
using test::Rows;
using test::Weights;

class Fp8Gemm : public test::CudaTest {};

void check_dense(cudaStream_t stream, int64_t m, int64_t n, int64_t k, const GemmConfig* config, uint64_t seed) {
  SCOPED_TRACE(str_cat("m ", m, " n ", n, " k ", k, " seed ", seed));
  Rng rng(seed);
  const Weights w(rng, 1, n, k);
  const Rows rows(rng, 1, m, k, std::vector<bool>(m, true));
  const DeviceTensor x = test::upload(DType::kE4M3, {m, k}, rows.values);
  const DeviceTensor scales = test::upload(DType::kF32, {k / 128, rows.stride}, rows.scales);
  const DeviceTensor y = test::poisoned(DType::kBF16, {m + 1, n});
  const Tensor y_rows = y.tensor.rows(0, m);
  if (config == nullptr) {
    const absl::Status status =
        fp8_gemm(stream, {.x = x, .x_scales = scales, .w = w.one(), .w_scales = w.one_scales(), .y = y_rows});
    ASSERT_TRUE(status.ok()) << status.message();
  } else {
    const GemmProblem problem = {.grouping = Grouping::kDense,
                                 .rows = m,
                                 .n = n,
                                 .k = k,
                                 .groups = 1,
                                 .x = x.tensor.raw(),
                                 .x_row_stride = k,
                                 .x_group_stride = m * k,
                                 .x_scales = scales.tensor.f32(),
                                 .w = w.one().raw(),
                                 .w_scales = w.one_scales().f32(),
                                 .y = y.tensor.raw(),
                                 .y_row_stride = n,
                                 .y_group_stride = 0};
    const absl::Status status = launch_gemm(stream, problem, *config, 132);
    ASSERT_TRUE(status.ok()) << status.message();
  }
  const std::vector<uint16_t> got = test::download<uint16_t>(y);
  for (int64_t i = 0; i < std::min<int64_t>(m, 40); ++i) {
    const int64_t row = m <= 40 ? i : i == 0 ? m - 1 : static_cast<int64_t>(rng.below(m));
    expect_row(got, row, rows.values.data() + row * k, rows.scales.data() + row, rows.stride, w, 0, rng);
  }
  for (int64_t row = 0; row < m; ++row) {
    for (int64_t c = 0; c < n; ++c) ASSERT_NE(got[row * n + c], 0xffff) << "row " << row << " column " << c;
  }
  EXPECT_TRUE(is_poison(got, m, n)) << "written behind the last row";
}

TEST_F(Fp8Gemm, DenseShapes) {
  uint64_t seed = 1;
  for (int64_t m : {1, 3, 8, 16, 17, 64, 100, 128, 129, 300}) {
    check_dense(stream(), m, 2112, 1536, nullptr, seed++);
    check_dense(stream(), m, 512, 128, nullptr, seed++);
    check_dense(stream(), m, 200, 7168, nullptr, seed++);
  }
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2112, 7168}, {24576, 1536}, {32768, 512}, {4096, 7168}}) {
    check_dense(stream(), 64, n, k, nullptr, seed++);
    check_dense(stream(), 700, n, k, nullptr, seed++);
  }
}

// Every configuration that the choice may name, not only those that it names for the shapes above.
TEST_F(Fp8Gemm, FewRowsConfigs) {
  uint64_t seed = 100;
  for (int tokens : {8, 16, 32, 64, 128}) {
    for (const auto& [columns, parts] : {std::pair<int, int>{32, 2}, {64, 2}, {64, 1}, {128, 1}}) {
      if (parts == 2 && tokens != 64) continue;
      for (int split : {1, 2, 3, 7, 8}) {
        const GemmConfig config = {
            .kernel = GemmKernel::kFewRows, .tokens = tokens, .columns = columns, .split = split, .parts = parts};
        SCOPED_TRACE(str_cat("tokens ", tokens, " columns ", columns, " split ", split, " parts ", parts));
        check_dense(stream(), tokens + tokens / 2 + 1, 840, 2176, &config, seed++);
        check_dense(stream(), tokens - 3, 648, 4096, &config, seed++);
      }
    }
  }
}

TEST_F(Fp8Gemm, ManyRowsConfigs) {
  uint64_t seed = 1000;
  for (int64_t m : {1, 65, 128, 257, 1100}) {
    for (const auto& [columns, share] : {std::pair<int, Share>{256, Share::kWeights},
                                         {192, Share::kWeights},
                                         {256, Share::kRows},
                                         {192, Share::kRows}}) {
      const GemmConfig config = {.kernel = GemmKernel::kManyRows, .tile_columns = columns, .share = share};
      SCOPED_TRACE(str_cat("columns ", columns, share == Share::kRows ? " sharing rows" : " sharing weights"));
      check_dense(stream(), m, 2112, 640, &config, seed++);
      check_dense(stream(), m, 72, 4864, &config, seed++);
      check_dense(stream(), m, 1000, 256, &config, seed++);
    }
  }
}

// x and y are columns of wider matrices, as q_b reads and q_a + kv_a writes: what lies beside is neither read nor
// written.
TEST_F(Fp8Gemm, StridedRows) {
  uint64_t seed = 40;
  for (const int64_t m : {1, 5, 64, 100, 128, 300}) {
    SCOPED_TRACE(str_cat("m ", m, " seed ", seed));
    Rng rng(seed++);
    const int64_t n = 1000, k = 512, x_width = k + 128, y_width = n + 24, left = 16;
    const Weights w(rng, 1, n, k);
    const Rows rows(rng, 1, m, k, std::vector<bool>(m, true));
    std::vector<uint8_t> wide(m * x_width, 0x7f);
    for (int64_t r = 0; r < m; ++r) std::copy_n(rows.values.begin() + r * k, k, wide.begin() + r * x_width + left);
    const DeviceTensor x = test::upload(DType::kE4M3, {m, x_width}, wide);
    const DeviceTensor scales = test::upload(DType::kF32, {k / 128, rows.stride}, rows.scales);
    const DeviceTensor y = test::poisoned(DType::kBF16, {m, y_width});
    const absl::Status status = fp8_gemm(stream(), {.x = x.tensor.cols(left, left + k),
                                                    .x_scales = scales,
                                                    .w = w.one(),
                                                    .w_scales = w.one_scales(),
                                                    .y = y.tensor.cols(left, left + n)});
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<uint16_t> got = test::download<uint16_t>(y);
    std::vector<uint16_t> dense;
    for (int64_t r = 0; r < m; ++r) {
      const auto row = got.begin() + r * y_width;
      ASSERT_EQ(std::count(row, row + left, 0xffff), left) << "left of row " << r;
      ASSERT_EQ(std::count(row + left + n, row + y_width, 0xffff), y_width - n - left) << "right of row " << r;
      dense.insert(dense.end(), row + left, row + left + n);
    }
    for (int64_t r = 0; r < m; r += 1 + m / 20) {
      expect_row(dense, r, rows.values.data() + r * k, rows.scales.data() + r, rows.stride, w, 0, rng);
    }
  }
}

TEST_F(Fp8Gemm, SameBitsEveryTime) {
  Rng rng(7);
  const int64_t m = 64, n = 2112, k = 7168;
  const Weights w(rng, 1, n, k);
  const Rows rows(rng, 1, m, k, std::vector<bool>(m, true));
  const DeviceTensor x = test::upload(DType::kE4M3, {m, k}, rows.values);
  const DeviceTensor scales = test::upload(DType::kF32, {k / 128, rows.stride}, rows.scales);
  std::vector<uint16_t> first;
  for (int run = 0; run < 10; ++run) {
    const DeviceTensor y = test::poisoned(DType::kBF16, {m, n});
    ASSERT_TRUE(
        fp8_gemm(stream(), {.x = x, .x_scales = scales, .w = w.one(), .w_scales = w.one_scales(), .y = y}).ok());
    const std::vector<uint16_t> got = test::download<uint16_t>(y);
    if (run == 0) first = got;
    ASSERT_EQ(got, first) << "run " << run;
  }
}

// Groups of random sizes, also none, each padded to 128; some tiles are all padding.
// The last tile has `last` rows; padding has ids that name no group.
void check_contiguous(cudaStream_t stream, std::vector<int64_t> sizes, int64_t n, int64_t k, uint64_t seed,
                      int64_t last = 128) {
  SCOPED_TRACE(str_cat("n ", n, " k ", k, " seed ", seed, " last ", last));
  Rng rng(seed);
  std::vector<int32_t> ids;
  for (size_t g = 0; g < sizes.size(); ++g) {
    ids.insert(ids.end(), sizes[g], static_cast<int32_t>(g));
    ids.resize((ids.size() + 127) / 128 * 128, -1);
    if (rng.below(3) == 0) ids.insert(ids.end(), 128, -1);
  }
  ids.resize(ids.size() - 128 + last);
  const int64_t m = static_cast<int64_t>(ids.size());
  std::vector<bool> live(m);
  for (int64_t r = 0; r < m; ++r) live[r] = ids[r] >= 0;
  const int32_t none[] = {-1, std::numeric_limits<int32_t>::min(), static_cast<int32_t>(sizes.size()),
                          std::numeric_limits<int32_t>::max()};
  for (int64_t r = 0; r < m; ++r) {
    if (!live[r]) ids[r] = none[rng.below(4)];
  }
  const Weights w(rng, static_cast<int64_t>(sizes.size()), n, k);
  const Rows rows(rng, 1, m, k, live);
  const DeviceTensor x = test::upload(DType::kE4M3, {m, k}, rows.values);
  const DeviceTensor scales = test::upload(DType::kF32, {k / 128, rows.stride}, rows.scales);
  const DeviceTensor row_ids = test::upload(DType::kI32, {m}, ids);
  const DeviceTensor y = test::poisoned(DType::kBF16, {m, n});
  const absl::Status status = fp8_gemm_contiguous(stream, {.x = x,
                                                           .x_scales = scales,
                                                           .w = w.values_on_device,
                                                           .w_scales = w.scales_on_device,
                                                           .row_ids = row_ids,
                                                           .y = y});
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<uint16_t> got = test::download<uint16_t>(y);
  for (int64_t r = 0; r < m; ++r) {
    if (!live[r]) {
      ASSERT_TRUE(is_poison(got, r, n)) << "padding row " << r << " was written";
    } else if (r % 128 < 2 || r % 128 == 64 || rng.below(16) == 0) {
      expect_row(got, r, rows.values.data() + r * k, rows.scales.data() + r, rows.stride, w, ids[r], rng);
    }
  }
}

TEST_F(Fp8Gemm, ContiguousGroups) {
  check_contiguous(stream(), {128, 256, 384}, 512, 512, 1);
  check_contiguous(stream(), {1, 0, 63, 64, 65, 127, 128, 129, 0, 300}, 4096, 256, 2);
  check_contiguous(stream(), {0, 0, 7}, 2112, 1280, 3);
  for (const int64_t last : {1, 63, 65, 100}) check_contiguous(stream(), {200, 0, 300}, 520, 384, 4, last);
  for (uint64_t seed = 10; seed < 16; ++seed) {
    Rng rng(seed);
    std::vector<int64_t> sizes(1 + rng.below(12));
    for (int64_t& size : sizes) size = rng.below(4) == 0 ? 0 : static_cast<int64_t>(rng.below(400));
    if (std::accumulate(sizes.begin(), sizes.end(), int64_t{0}) == 0) sizes[0] = 5;
    check_contiguous(stream(), sizes, 8 * (1 + rng.below(200)), 128 * (1 + rng.below(8)), seed);
  }
}

void check_masked(cudaStream_t stream, const std::vector<int32_t>& counts, int64_t max_rows, int64_t n, int64_t k,
                  int64_t expected, uint64_t seed) {
  SCOPED_TRACE(str_cat("max_rows ", max_rows, " n ", n, " k ", k, " expected ", expected, " seed ", seed));
  Rng rng(seed);
  const int64_t groups = static_cast<int64_t>(counts.size());
  std::vector<bool> live(groups * max_rows);
  for (int64_t i = 0; i < groups * max_rows; ++i) live[i] = i % max_rows < counts[i / max_rows];  // at most the room
  const Weights w(rng, groups, n, k);
  const Rows rows(rng, groups, max_rows, k, live);
  const DeviceTensor x = test::upload(DType::kE4M3, {groups, max_rows, k}, rows.values);
  const DeviceTensor scales = test::upload(DType::kF32, {groups, k / 128, rows.stride}, rows.scales);
  const DeviceTensor group_rows = test::upload(DType::kI32, {groups}, counts);
  const DeviceTensor y = test::poisoned(DType::kBF16, {groups, max_rows, n});
  const absl::Status status = fp8_gemm_masked(stream, {.x = x,
                                                       .x_scales = scales,
                                                       .w = w.values_on_device,
                                                       .w_scales = w.scales_on_device,
                                                       .group_rows = group_rows,
                                                       .y = y,
                                                       .expected_rows = expected});
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<uint16_t> got = test::download<uint16_t>(y);
  for (int64_t i = 0; i < groups * max_rows; ++i) {
    const int64_t g = i / max_rows, r = i % max_rows;
    if (!live[i]) {
      ASSERT_TRUE(is_poison(got, i, n)) << "row " << r << " of group " << g << " was written";
    } else if (r < 2 || r % 64 == 63 || r + 1 == counts[g] || rng.below(16) == 0) {
      expect_row(got, i, rows.values.data() + i * k, rows.scales.data() + g * (k / 128) * rows.stride + r, rows.stride,
                 w, g, rng);
    }
  }
}

TEST_F(Fp8Gemm, MaskedGroups) {
  uint64_t seed = 1;
  for (int64_t expected : {1, 16, 64, 128, 200, 1000}) {
    check_masked(stream(), {0, 1, 7, 63, 64, 65, 128, 0, 129, 300}, 300, 640, 384, expected, seed++);
    check_masked(stream(), {0, 0, 0}, 64, 512, 256, expected, seed++);
    check_masked(stream(), {130, 1, 0, 257}, 301, 2112, 1280, expected, seed++);
    // Counts that no sender should give are taken between nothing and the room.
    check_masked(stream(), {-1, 65, 70, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max(), 3},
                 65, 520, 256, expected, seed++);
  }
}

// With one_x kv_b: all heads have the same rows.
void check_batched(cudaStream_t stream, int64_t m, int64_t n, int64_t k, bool one_x, uint64_t seed) {
  SCOPED_TRACE(str_cat("m ", m, " n ", n, " k ", k, one_x ? " one x" : "", " seed ", seed));
  Rng rng(seed);
  const int64_t heads = 20, k_groups = k / 128, x_heads = one_x ? 1 : heads;
  const Weights w(rng, heads, n, k);
  const Rows rows(rng, 1, m, x_heads * k, std::vector<bool>(m, true));
  const DeviceTensor x = test::upload(DType::kE4M3, {m, x_heads * k}, rows.values);
  const DeviceTensor scales = test::upload(DType::kF32, {x_heads * k_groups, rows.stride}, rows.scales);
  const int64_t width = n + (m % 3) * 64;  // k_b: 576 for 512
  const DeviceTensor y = test::poisoned(DType::kBF16, {m, heads, width});
  const absl::Status status = fp8_gemm_batched(
      stream, {.x = x, .x_scales = scales, .w = w.values_on_device, .w_scales = w.scales_on_device, .y = y});
  ASSERT_TRUE(status.ok()) << status.message();
  const std::vector<uint16_t> all = test::download<uint16_t>(y);
  std::vector<uint16_t> got;
  for (int64_t head = 0; head < m * heads; ++head) {
    const auto begin = all.begin() + head * width;
    got.insert(got.end(), begin, begin + n);
    ASSERT_EQ(std::count(begin + n, begin + width, 0xffff), width - n) << "beside head " << head;
  }
  for (int64_t t = 0; t < m; ++t) {
    for (int64_t h = 0; h < heads; ++h) {
      if (m > 200 && rng.below(16) != 0) continue;
      const int64_t x_head = one_x ? 0 : h;
      expect_row(got, t * heads + h, rows.values.data() + (t * x_heads + x_head) * k,
                 rows.scales.data() + x_head * k_groups * rows.stride + t, rows.stride, w, h, rng);
    }
  }
}

TEST_F(Fp8Gemm, BatchedHeads) {
  uint64_t seed = 1;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{512, 128}, {128, 512}}) {
    for (const int64_t m : {1, 16, 70, 128, 200, 700}) {
      for (const bool one_x : {false, true}) check_batched(stream(), m, n, k, one_x, seed++);
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
