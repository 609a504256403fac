#include "kernels/cuda/gemm/gemm_bench.h"

#include <algorithm>
#include <vector>

#include "kernels/cuda/gemm/bf16_gemm.h"
#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/gemm/gemm_shapes.h"
#include "kernels/cuda/scales.h"

namespace moesaic::cuda {
namespace {

const char* op_name(const GemmCase& c) {
  if (c.grouping == Grouping::kContiguous) return "gemm_contiguous";
  if (c.grouping == Grouping::kMasked) return "gemm_masked";
  return c.batched() ? "gemm_batched" : "gemm_dense";
}

GemmProblem make_problem(KernelBench& bench, const GemmCase& c) {
  const bool masked = c.grouping == Grouping::kMasked, contiguous = c.grouping == Grouping::kContiguous;
  GemmProblem p = {};
  p.grouping = c.grouping;
  p.rows = masked ? kMaskedRoom : contiguous ? c.rows * c.groups : c.rows;
  p.n = c.n;
  p.k = c.k;
  p.groups = c.groups;
  const int64_t x_groups = contiguous ? 1 : c.groups;
  p.x = bench.alloc_random(DType::kE4M3, {x_groups * p.rows, c.k}, 400.0f).raw();
  p.x_row_stride = c.x_columns();
  p.x_group_stride = c.one_x ? 0 : c.batched() ? c.k : p.rows * c.k;
  p.x_scales = bench.alloc_random(DType::kF32, {num_scales(x_groups, p.rows, c.k)}, 0.005f).f32();
  p.w = bench.alloc_random(DType::kE4M3, {c.groups * c.n, c.k}, 400.0f).raw();
  p.w_scales = bench.alloc_random(DType::kF32, {c.groups * ((c.n + 127) / 128) * (c.k / 128)}, 0.005f).f32();
  p.y = bench.alloc(DType::kBF16, {x_groups * p.rows, c.n}).raw();
  p.y_row_stride = c.batched() ? c.n * c.groups : c.n;
  p.y_group_stride = c.batched() ? c.n : p.rows * c.n;
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
  return str_cat("few t", c.tokens, " c", c.columns, " split", c.split);
}

GemmConfig chosen(const KernelBench& bench, const GemmCase& c) {
  return choose_gemm_config({.grouping = c.grouping,
                             .rows = c.grouping == Grouping::kContiguous ? c.rows * c.groups : c.rows,
                             .n = c.n,
                             .k = c.k,
                             .groups = c.groups,
                             .num_sms = bench.device().num_sms});
}

std::vector<GemmConfig> candidates(const GemmCase& c) {
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
  for (int columns : {32, 64, 128}) {
    for (int tokens = most; tokens >= std::max(8, most / (c.rows > 16 ? 4 : 1)); tokens /= 2) {
      if (columns == 32 && (tokens != 64 || c.grouping != Grouping::kDense)) continue;
      for (int split = 1; split <= 8; ++split) {
        const int64_t tiles = (c.n + columns - 1) / columns * ((c.rows + tokens - 1) / tokens) * c.groups;
        if (split > c.k / 128) continue;
        if (split > 1 && (c.grouping != Grouping::kDense || c.groups > 1)) continue;
        if (tiles * split < 64 && split < 8) continue;
        if (split > 1 && tiles * split > 400) continue;
        all.push_back({.kernel = GemmKernel::kFewRows, .tokens = tokens, .columns = columns, .split = split});
      }
    }
  }
  return all;
}

absl::Status bench_cases(KernelBench& bench, bool sweep) {
  for (const GemmCase& c : gemm_cases()) {
    const GemmProblem problem = make_problem(bench, c);
    const double rows = static_cast<double>(c.rows) * c.groups;
    const double bytes = (c.one_x ? c.rows : rows) * c.k + static_cast<double>(c.groups) * c.n * c.k + 2.0 * rows * c.n;
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

absl::Status bench_bf16(KernelBench& bench) {
  for (const Bf16GemmCase& c : bf16_gemm_cases()) {
    const Bf16GemmArgs args = {.x = bench.alloc_random(DType::kBF16, {c.m, c.k}),
                               .w = bench.alloc_random(DType::kBF16, {c.n, c.k}),
                               .y = bench.alloc(c.f32 ? DType::kF32 : DType::kBF16, {c.m, c.n})};
    const double m = 1.0 * c.m, n = 1.0 * c.n, k = 1.0 * c.k;
    absl::Status status;
    bench.measure({.op = "gemm_dense", .m = c.m, .n = c.n, .k = c.k, .groups = 1, .dtype = "bf16"},
                  {.bytes = 2.0 * (m * k + n * k) + (c.f32 ? 4.0 : 2.0) * m * n, .flops = 2.0 * m * n * k},
                  [&](cudaStream_t stream) { status.Update(bf16_gemm(stream, args)); });
    MOESAIC_RETURN_IF_ERROR(status);
    bench.release();
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status bench_gemm(KernelBench& bench) {
  MOESAIC_RETURN_IF_ERROR(bench_cases(bench, /*sweep=*/false));
  bench.release();
  return bench_bf16(bench);
}

absl::Status sweep_gemm(KernelBench& bench) {
  return bench_cases(bench, /*sweep=*/true);
}

}  // namespace moesaic::cuda
