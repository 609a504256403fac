// What the FP8 GEMMs refuse, without a GPU: every tensor wrong in turn, every limit by its message.
#include "kernels/cuda/gemm/fp8_gemm.h"
#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/refusal_test_util.h"
#include "kernels/cuda/scales.h"

namespace moesaic::cuda {
namespace {

using test::ArgsRules;
using test::nowhere;

constexpr int64_t kRows = 6, kN = 136, kK = 384, kGroups = 3;
constexpr int64_t kNBlocks = 2, kKGroups = 3;

Fp8GemmArgs dense(int64_t m = kRows, int64_t n = kN, int64_t k = kK) {
  return {.x = nowhere(DType::kE4M3, {m, k}),
          .x_scales = nowhere(DType::kF32, {(k + 127) / 128, scale_row_stride(m)}),
          .w = nowhere(DType::kE4M3, {n, k}),
          .w_scales = nowhere(DType::kF32, {(n + 127) / 128, (k + 127) / 128}),
          .y = nowhere(DType::kBF16, {m, n})};
}

TEST(Fp8GemmRefusals, Dense) {
  using Args = Fp8GemmArgs;
  const ArgsRules<Args> rules("fp8_gemm", fp8_gemm, [] { return dense(); },
                              {{.name = "x", .member = &Args::x, .rows_strided = true},
                               {.name = "x_scales", .member = &Args::x_scales},
                               {.name = "w", .member = &Args::w},
                               {.name = "w_scales", .member = &Args::w_scales},
                               {.name = "y", .member = &Args::y, .rows_strided = true}});
  rules.expect_refusals(
      {{[](Args& args) { args = dense(kRows, kN, 192); }, "fp8_gemm: k 192, made for multiples of 128"},
       {[](Args& args) { args = dense(kRows, kN, 0); }, "fp8_gemm: k 0, made for multiples of 128"},
       {[](Args& args) { args = dense(kRows, 100, kK); }, "fp8_gemm: n 100, made for multiples of 8"},
       {[](Args& args) { args = dense(kRows, 0, kK); }, "fp8_gemm: n 0, made for multiples of 8"},
       {[](Args& args) { args = dense(int64_t{1} << 31, kN, kK); },
        "fp8_gemm: rows 2147483648, made for 0 to 2147483647"},
       {[](Args& args) { args = dense(1 << 24, 1 << 24, kK); }, "fp8_gemm: made for at most 2^31 tiles"},
       {[](Args& args) {
          args.x_scales = nowhere(DType::kF32, {kRows, kKGroups});
        },
        "fp8_gemm: expected x_scales f32 [3, 8], got f32 [6, 3]"},
       {[](Args& args) { args.y = Tensor::strided(args.y.raw(), DType::kBF16, kRows, kN, kN + 4); },
        "fp8_gemm: y: rows are not 16-byte aligned"}});
  EXPECT_TRUE(fp8_gemm(nullptr, dense(0)).ok()) << "no rows are no work";
}

TEST(Fp8GemmRefusals, Contiguous) {
  using Args = Fp8GemmContiguousArgs;
  const auto make = [](int64_t rows, int64_t groups) {
    return Args{.x = nowhere(DType::kE4M3, {rows, kK}),
                .x_scales = nowhere(DType::kF32, {kKGroups, scale_row_stride(rows)}),
                .w = nowhere(DType::kE4M3, {groups, kN, kK}),
                .w_scales = nowhere(DType::kF32, {groups, kNBlocks, kKGroups}),
                .row_ids = nowhere(DType::kI32, {rows}),
                .y = nowhere(DType::kBF16, {rows, kN})};
  };
  const ArgsRules<Args> rules("fp8_gemm_contiguous", fp8_gemm_contiguous, [&] { return make(256, kGroups); },
                              {{.name = "x", .member = &Args::x, .rows_strided = true},
                               {.name = "x_scales", .member = &Args::x_scales},
                               {.name = "w", .member = &Args::w},
                               {.name = "w_scales", .member = &Args::w_scales},
                               {.name = "row_ids", .member = &Args::row_ids},
                               {.name = "y", .member = &Args::y, .rows_strided = true}});
  rules.expect_refusals(
      {{[&](Args& args) { args = make(256, 0); }, "fp8_gemm_contiguous: groups 0, made for 1 to 2147483647"}});
  EXPECT_TRUE(fp8_gemm_contiguous(nullptr, make(0, kGroups)).ok());
}

TEST(Fp8GemmRefusals, Masked) {
  using Args = Fp8GemmMaskedArgs;
  const auto make = [](int64_t max_rows) {
    return Args{.x = nowhere(DType::kE4M3, {kGroups, max_rows, kK}),
                .x_scales = nowhere(DType::kF32, {kGroups, kKGroups, scale_row_stride(max_rows)}),
                .w = nowhere(DType::kE4M3, {kGroups, kN, kK}),
                .w_scales = nowhere(DType::kF32, {kGroups, kNBlocks, kKGroups}),
                .group_rows = nowhere(DType::kI32, {kGroups}),
                .y = nowhere(DType::kBF16, {kGroups, max_rows, kN}),
                .expected_rows = 5};
  };
  const ArgsRules<Args> rules("fp8_gemm_masked", fp8_gemm_masked, [&] { return make(kRows); },
                              {{.name = "x", .member = &Args::x},
                               {.name = "x_scales", .member = &Args::x_scales},
                               {.name = "w", .member = &Args::w},
                               {.name = "w_scales", .member = &Args::w_scales},
                               {.name = "group_rows", .member = &Args::group_rows},
                               {.name = "y", .member = &Args::y}});
  rules.expect_refusals({});
  EXPECT_TRUE(fp8_gemm_masked(nullptr, make(0)).ok());
}

TEST(Fp8GemmRefusals, Batched) {
  using Args = Fp8GemmBatchedArgs;
  const auto make = [](int64_t m) {
    return Args{.x = nowhere(DType::kE4M3, {m, kGroups * kK}),
                .x_scales = nowhere(DType::kF32, {kGroups * kKGroups, scale_row_stride(m)}),
                .w = nowhere(DType::kE4M3, {kGroups, kN, kK}),
                .w_scales = nowhere(DType::kF32, {kGroups, kNBlocks, kKGroups}),
                .y = nowhere(DType::kBF16, {m, kGroups, kN})};
  };
  const ArgsRules<Args> rules("fp8_gemm_batched", fp8_gemm_batched, [&] { return make(kRows); },
                              {{.name = "x", .member = &Args::x, .rows_strided = true},
                               {.name = "x_scales", .member = &Args::x_scales},
                               {.name = "w", .member = &Args::w},
                               {.name = "w_scales", .member = &Args::w_scales},
                               {.name = "y", .member = &Args::y}});
  rules.expect_refusals({{[](Args& args) {
                            args.y = nowhere(DType::kBF16, {kRows, kGroups, kN - 8});
                          },
                          "fp8_gemm_batched: made for heads of y at least n wide, divisible by 8"}});
  EXPECT_TRUE(fp8_gemm_batched(nullptr, make(0)).ok());
  const auto one_x = [&](int64_t m) {
    Args args = make(m);
    args.x = nowhere(DType::kE4M3, {m, kK});
    args.x_scales = nowhere(DType::kF32, {kKGroups, scale_row_stride(m)});
    return args;
  };
  const ArgsRules<Args> of_one(
      "fp8_gemm_batched", fp8_gemm_batched, [&] { return one_x(kRows); },
      {{.name = "x", .member = &Args::x, .rows_strided = true}, {.name = "x_scales", .member = &Args::x_scales}});
  of_one.expect_refusals({});
  EXPECT_TRUE(fp8_gemm_batched(nullptr, one_x(0)).ok());
}

// Configurations that were not compiled: choose_gemm_config never names one (gemm_config_test.cc).
TEST(Fp8GemmRefusals, ConfigsThatDoNotExist) {
  const GemmProblem problem = {.grouping = Grouping::kDense, .rows = 5, .n = 64, .k = 256, .groups = 1};
  const auto message = [&](const GemmConfig& config) {
    return std::string(launch_gemm(nullptr, problem, config, 132).message());
  };
  EXPECT_EQ(message({.kernel = GemmKernel::kFewRows, .tokens = 12, .columns = 64, .split = 1}),
            "few_rows_kernel: no code for 12 rows a tile; there is 8, 16, 32, 64, 128");
  EXPECT_EQ(message({.kernel = GemmKernel::kFewRows, .tokens = 8, .columns = 96, .split = 1}),
            "few_rows_kernel: no code for 8 rows by 96 columns in 1 parts; there is 64 and 128 columns in one, and 32 "
            "and 64 in "
            "two for 64 rows, dense");
  EXPECT_EQ(message({.kernel = GemmKernel::kFewRows, .tokens = 8, .columns = 64, .split = 3}),
            "few_rows_kernel: split of 3, expected 1 to 2 for k 256 and 64 columns");
  EXPECT_EQ(message({.kernel = GemmKernel::kManyRows, .tile_columns = 128}),
            "many_rows_kernel: no code for 128 columns a tile, shared weights, in this grouping");
}

}  // namespace
}  // namespace moesaic::cuda
