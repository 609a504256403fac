#include "kernels/cuda/gemm/gemm_bench.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/gemm/fp8_gemm.h"
#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/scales.h"

namespace moesaic::cuda {
namespace {

struct Case {
  Grouping grouping;
  int64_t rows;  // of each group
  int64_t n;
  int64_t k;
  int64_t groups;
};

constexpr int64_t kMaxRows = 4096;

std::vector<Case> cases() {
  std::vector<Case> all;
  for (int64_t m : {1, 16, 64, 128, 256, 4096}) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{2112, 7168},
                               {576, 7168},
                               {1536, 7168},
                               {24576, 1536},
                               {32768, 512},
                               {7168, 16384},
                               {4096, 7168},
                               {7168, 2048}}) {
      all.push_back({Grouping::kDense, m, n, k, 1});
    }
  }
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{4096, 7168}, {7168, 2048}}) {
    all.push_back({Grouping::kContiguous, 8192, n, k, 4});
    all.push_back({Grouping::kContiguous, 4096, n, k, 8});
    all.push_back({Grouping::kMasked, 1024, n, k, 2});
    all.push_back({Grouping::kMasked, 256, n, k, 4});
    all.push_back({Grouping::kMasked, 64, n, k, 32});
  }
  for (int64_t m : {1, 64, 128}) {
    all.push_back({Grouping::kDense, m, 512, 128, 128});
    all.push_back({Grouping::kDense, m, 128, 512, 128});
  }
  return all;
}

const char* op_name(const Case& c) {
  if (c.grouping == Grouping::kContiguous) return "gemm_contiguous";
  if (c.grouping == Grouping::kMasked) return "gemm_masked";
  return c.groups > 1 ? "gemm_batched" : "gemm_dense";
}

GemmProblem make_problem(KernelBench& bench, const Case& c) {
  const bool masked = c.grouping == Grouping::kMasked, contiguous = c.grouping == Grouping::kContiguous;
  const bool batched = c.grouping == Grouping::kDense && c.groups > 1;
  GemmProblem p = {};
  p.grouping = c.grouping;
  p.rows = masked ? kMaxRows : contiguous ? c.rows * c.groups : c.rows;
  p.n = c.n;
  p.k = c.k;
  p.groups = c.groups;
  const int64_t x_groups = contiguous ? 1 : c.groups;
  p.x = bench.alloc_random(DType::kE4M3, {x_groups * p.rows, c.k}, 400.0f).raw();
  p.x_row_stride = batched ? c.k * c.groups : c.k;
  p.x_group_stride = batched ? c.k : p.rows * c.k;
  p.x_scales = bench.alloc_random(DType::kF32, {num_scales(x_groups, p.rows, c.k)}, 0.005f).f32();
  p.w = bench.alloc_random(DType::kE4M3, {c.groups * c.n, c.k}, 400.0f).raw();
  p.w_scales = bench.alloc_random(DType::kF32, {c.groups * ((c.n + 127) / 128) * (c.k / 128)}, 0.005f).f32();
  p.y = bench.alloc(DType::kBF16, {x_groups * p.rows, c.n}).raw();
  p.y_row_stride = batched ? c.n * c.groups : c.n;
  p.y_group_stride = batched ? c.n : p.rows * c.n;
  if (masked) p.group_rows = bench.alloc_i32(std::vector<int32_t>(c.groups, static_cast<int32_t>(c.rows))).i32();
  if (contiguous) {
    std::vector<int32_t> ids(p.rows);
    for (int64_t r = 0; r < p.rows; ++r) ids[r] = static_cast<int32_t>(r / c.rows);
    p.row_ids = bench.alloc_i32(ids).i32();
  }
  return p;
}

std::string describe(const GemmConfig& c) {
  if (c.kernel == GemmKernel::kManyRows) {
    return str_cat("many ", c.tile_columns, c.share == Share::kWeights ? " weights" : " rows");
  }
  return str_cat("few t", c.tokens, " c", c.columns, " split", c.split, " parts", c.parts);
}

GemmConfig chosen(const KernelBench& bench, const Case& c) {
  return choose_gemm_config({.grouping = c.grouping,
                             .rows = c.grouping == Grouping::kContiguous ? c.rows * c.groups : c.rows,
                             .n = c.n,
                             .k = c.k,
                             .groups = c.groups,
                             .num_sms = bench.device().num_sms});
}

std::vector<GemmConfig> candidates(const Case& c) {
  std::vector<GemmConfig> all;
  if (c.rows >= 128) {
    all.push_back({.kernel = GemmKernel::kManyRows, .tile_columns = 256, .share = Share::kWeights});
    if (c.grouping != Grouping::kContiguous) {
      all.push_back({.kernel = GemmKernel::kManyRows, .tile_columns = 192, .share = Share::kWeights});
    }
    if (c.grouping == Grouping::kDense) {
      all.push_back({.kernel = GemmKernel::kManyRows, .tile_columns = 256, .share = Share::kRows});
      all.push_back({.kernel = GemmKernel::kManyRows, .tile_columns = 192, .share = Share::kRows});
    }
  }
  if (c.grouping == Grouping::kContiguous || c.rows > 256) return all;
  int most = 8;
  while (most < std::min<int64_t>(c.rows, 128)) most *= 2;
  for (const auto& [columns, parts] : {std::pair<int, int>{32, 2}, {64, 2}, {64, 1}, {128, 1}}) {
    for (int tokens = most; tokens >= std::max(8, most / (c.rows > 16 ? 4 : 1)); tokens /= 2) {
      if (parts == 2 && (tokens != 64 || c.grouping != Grouping::kDense)) continue;
      for (int split = 1; split <= 8; ++split) {
        const int64_t tiles = (c.n + columns - 1) / columns * ((c.rows + tokens - 1) / tokens) * c.groups;
        if (split * parts > c.k / 128) continue;
        if (split > 1 && (c.grouping != Grouping::kDense || c.groups > 1)) continue;
        if (tiles * split < 64 && split < 8) continue;
        if (split > 1 && tiles * split > 400) continue;
        all.push_back(
            {.kernel = GemmKernel::kFewRows, .tokens = tokens, .columns = columns, .split = split, .parts = parts});
      }
    }
  }
  return all;
}

absl::Status bench_cases(KernelBench& bench, bool sweep) {
  for (const Case& c : cases()) {
    const GemmProblem problem = make_problem(bench, c);
    const double rows = static_cast<double>(c.rows) * c.groups;
    const double bytes = rows * c.k + static_cast<double>(c.groups) * c.n * c.k + 2.0 * rows * c.n;
    const GemmConfig choice = chosen(bench, c);
    std::vector<GemmConfig> configs = {choice};
    if (sweep) configs = candidates(c);
    for (const GemmConfig& config : configs) {
      absl::Status status;
      bench.measure(
          {.op = op_name(c), .m = c.rows, .n = c.n, .k = c.k, .groups = c.groups, .dtype = "e4m3"},
          {.bytes = bytes, .flops = 2.0 * rows * c.n * c.k, .variant = sweep ? describe(config) : ""},
          [&](cudaStream_t stream) { status.Update(launch_gemm(stream, problem, config, bench.device().num_sms)); });
      MOESAIC_RETURN_IF_ERROR(status);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status bench_gemm(KernelBench& bench) {
  return bench_cases(bench, /*sweep=*/false);
}

absl::Status sweep_gemm(KernelBench& bench) {
  return bench_cases(bench, /*sweep=*/true);
}

}  // namespace moesaic::cuda
