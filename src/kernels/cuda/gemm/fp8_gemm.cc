#include "kernels/cuda/gemm/fp8_gemm.h"

#include <algorithm>
#include <limits>
#include <string_view>

#include "kernels/cuda/gemm/gemm_problem.h"
#include "kernels/cuda/scales.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

struct NamedTensor {
  std::string_view name;
  const Tensor& tensor;
  DType dtype;
  Shape shape;
};

absl::Status check_tensor(std::string_view operation, const NamedTensor& named) {
  const Tensor& tensor = named.tensor;
  if (tensor.dtype() != named.dtype || tensor.shape() != named.shape) {
    return absl::InvalidArgumentError(str_cat(operation, ": ", named.name, " is ", dtype_name(tensor.dtype()), " ",
                                              tensor.shape().to_string(), ", expected ", dtype_name(named.dtype), " ",
                                              named.shape.to_string()));
  }
  if (reinterpret_cast<uintptr_t>(tensor.raw()) % 16 != 0) {
    return absl::InvalidArgumentError(str_cat(operation, ": ", named.name, " is not 16-byte aligned"));
  }
  return absl::OkStatus();
}

absl::Status check_rows(std::string_view operation, std::string_view name, const Tensor& tensor) {
  const int64_t bytes = tensor.row_stride() * dtype_bytes(tensor.dtype());
  if (bytes % 16 == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      str_cat(operation, ": rows of ", name, " are ", bytes, " bytes apart, expected a multiple of 16"));
}

absl::Status check_sizes(std::string_view operation, int64_t rows, int64_t n, int64_t k, int64_t groups) {
  if (k < kScaleGroup || k % kScaleGroup != 0) {
    return absl::InvalidArgumentError(str_cat(operation, ": k is ", k, ", expected a multiple of ", kScaleGroup));
  }
  if (n < 8 || n % 8 != 0) {
    return absl::InvalidArgumentError(str_cat(operation, ": n is ", n, ", expected a multiple of 8"));
  }
  const int64_t limit = std::numeric_limits<int32_t>::max();
  if (groups < 1 || rows > limit || n > limit || (rows / 128 + 1) * (n / 64 + 1) * groups > limit) {
    return absl::InvalidArgumentError(
        str_cat(operation, ": ", groups, " groups of ", rows, " rows by ", n, " columns: too many tiles for 31 bits"));
  }
  return absl::OkStatus();
}

absl::Status choose_and_launch(cudaStream_t stream, const GemmProblem& problem, int64_t expected_rows) {
  if (problem.rows == 0) return absl::OkStatus();
  int device = 0, num_sms = 0;
  MOESAIC_RETURN_IF_ERROR(to_status(cudaGetDevice(&device), "FP8 GEMM: the current device"));
  MOESAIC_RETURN_IF_ERROR(to_status(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device),
                                    "FP8 GEMM: the number of SMs"));
  const GemmShape shape = {.grouping = problem.grouping,
                           .rows = std::clamp<int64_t>(expected_rows, 1, problem.rows),
                           .n = problem.n,
                           .k = problem.k,
                           .groups = problem.groups,
                           .num_sms = num_sms};
  return launch_gemm(stream, problem, choose_gemm_config(shape), num_sms);
}

}  // namespace

absl::Status fp8_gemm(cudaStream_t stream, const Fp8GemmArgs& args) {
  constexpr std::string_view kName = "fp8_gemm";
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  MOESAIC_RETURN_IF_ERROR(check_sizes(kName, m, n, k, 1));
  const int64_t k_groups = k / kScaleGroup, n_blocks = (n + kScaleGroup - 1) / kScaleGroup;
  for (const NamedTensor& named : {NamedTensor{"x", args.x, DType::kE4M3, {m, k}},
                                   NamedTensor{"x_scales", args.x_scales, DType::kF32, {k_groups, scale_row_stride(m)}},
                                   NamedTensor{"w", args.w, DType::kE4M3, {n, k}},
                                   NamedTensor{"w_scales", args.w_scales, DType::kF32, {n_blocks, k_groups}},
                                   NamedTensor{"y", args.y, DType::kBF16, {m, n}}}) {
    MOESAIC_RETURN_IF_ERROR(check_tensor(kName, named));
  }
  MOESAIC_RETURN_IF_ERROR(check_rows(kName, "x", args.x));
  MOESAIC_RETURN_IF_ERROR(check_rows(kName, "y", args.y));
  const GemmProblem problem = {.grouping = Grouping::kDense,
                               .rows = m,
                               .n = n,
                               .k = k,
                               .groups = 1,
                               .x = args.x.raw(),
                               .x_row_stride = args.x.row_stride(),
                               .x_group_stride = args.x.row_stride() * m,
                               .x_scales = args.x_scales.f32(),
                               .w = args.w.raw(),
                               .w_scales = args.w_scales.f32(),
                               .y = args.y.raw(),
                               .y_row_stride = args.y.row_stride(),
                               .y_group_stride = 0};
  return choose_and_launch(stream, problem, m);
}

absl::Status fp8_gemm_contiguous(cudaStream_t stream, const Fp8GemmContiguousArgs& args) {
  constexpr std::string_view kName = "fp8_gemm_contiguous";
  const int64_t rows = args.x.dim(0), k = args.x.dim(1), groups = args.w.dim(0), n = args.w.dim(1);
  MOESAIC_RETURN_IF_ERROR(check_sizes(kName, rows, n, k, groups));
  const int64_t k_groups = k / kScaleGroup, n_blocks = (n + kScaleGroup - 1) / kScaleGroup;
  for (const NamedTensor& named :
       {NamedTensor{"x", args.x, DType::kE4M3, {rows, k}},
        NamedTensor{"x_scales", args.x_scales, DType::kF32, {k_groups, scale_row_stride(rows)}},
        NamedTensor{"w", args.w, DType::kE4M3, {groups, n, k}},
        NamedTensor{"w_scales", args.w_scales, DType::kF32, {groups, n_blocks, k_groups}},
        NamedTensor{"row_ids", args.row_ids, DType::kI32, {rows}}, NamedTensor{"y", args.y, DType::kBF16, {rows, n}}}) {
    MOESAIC_RETURN_IF_ERROR(check_tensor(kName, named));
  }
  MOESAIC_RETURN_IF_ERROR(check_rows(kName, "x", args.x));
  MOESAIC_RETURN_IF_ERROR(check_rows(kName, "y", args.y));
  const GemmProblem problem = {.grouping = Grouping::kContiguous,
                               .rows = rows,
                               .n = n,
                               .k = k,
                               .groups = groups,
                               .x = args.x.raw(),
                               .x_row_stride = args.x.row_stride(),
                               .x_group_stride = args.x.row_stride() * rows,
                               .x_scales = args.x_scales.f32(),
                               .w = args.w.raw(),
                               .w_scales = args.w_scales.f32(),
                               .y = args.y.raw(),
                               .y_row_stride = args.y.row_stride(),
                               .y_group_stride = 0,
                               .row_ids = args.row_ids.i32()};
  return choose_and_launch(stream, problem, rows);
}

absl::Status fp8_gemm_masked(cudaStream_t stream, const Fp8GemmMaskedArgs& args) {
  constexpr std::string_view kName = "fp8_gemm_masked";
  const int64_t groups = args.x.dim(0), max_rows = args.x.dim(1), k = args.x.dim(2), n = args.w.dim(1);
  MOESAIC_RETURN_IF_ERROR(check_sizes(kName, max_rows, n, k, groups));
  const int64_t k_groups = k / kScaleGroup, n_blocks = (n + kScaleGroup - 1) / kScaleGroup;
  for (const NamedTensor& named :
       {NamedTensor{"x", args.x, DType::kE4M3, {groups, max_rows, k}},
        NamedTensor{"x_scales", args.x_scales, DType::kF32, {groups, k_groups, scale_row_stride(max_rows)}},
        NamedTensor{"w", args.w, DType::kE4M3, {groups, n, k}},
        NamedTensor{"w_scales", args.w_scales, DType::kF32, {groups, n_blocks, k_groups}},
        NamedTensor{"group_rows", args.group_rows, DType::kI32, {groups}},
        NamedTensor{"y", args.y, DType::kBF16, {groups, max_rows, n}}}) {
    MOESAIC_RETURN_IF_ERROR(check_tensor(kName, named));
  }
  const GemmProblem problem = {.grouping = Grouping::kMasked,
                               .rows = max_rows,
                               .n = n,
                               .k = k,
                               .groups = groups,
                               .x = args.x.raw(),
                               .x_row_stride = k,
                               .x_group_stride = max_rows * k,
                               .x_scales = args.x_scales.f32(),
                               .w = args.w.raw(),
                               .w_scales = args.w_scales.f32(),
                               .y = args.y.raw(),
                               .y_row_stride = n,
                               .y_group_stride = max_rows * n,
                               .group_rows = args.group_rows.i32()};
  return choose_and_launch(stream, problem, args.expected_rows);
}

absl::Status fp8_gemm_batched(cudaStream_t stream, const Fp8GemmBatchedArgs& args) {
  constexpr std::string_view kName = "fp8_gemm_batched";
  const int64_t m = args.x.dim(0), heads = args.w.dim(0), n = args.w.dim(1), k = args.w.dim(2);
  MOESAIC_RETURN_IF_ERROR(check_sizes(kName, m, n, k, heads));
  const int64_t k_groups = k / kScaleGroup, n_blocks = (n + kScaleGroup - 1) / kScaleGroup;
  for (const NamedTensor& named :
       {NamedTensor{"x", args.x, DType::kE4M3, {m, heads * k}},
        NamedTensor{"x_scales", args.x_scales, DType::kF32, {heads * k_groups, scale_row_stride(m)}},
        NamedTensor{"w", args.w, DType::kE4M3, {heads, n, k}},
        NamedTensor{"w_scales", args.w_scales, DType::kF32, {heads, n_blocks, k_groups}},
        NamedTensor{"y", args.y, DType::kBF16, {m, heads * n}}}) {
    MOESAIC_RETURN_IF_ERROR(check_tensor(kName, named));
  }
  MOESAIC_RETURN_IF_ERROR(check_rows(kName, "x", args.x));
  MOESAIC_RETURN_IF_ERROR(check_rows(kName, "y", args.y));
  const GemmProblem problem = {.grouping = Grouping::kDense,
                               .rows = m,
                               .n = n,
                               .k = k,
                               .groups = heads,
                               .x = args.x.raw(),
                               .x_row_stride = args.x.row_stride(),
                               .x_group_stride = k,
                               .x_scales = args.x_scales.f32(),
                               .w = args.w.raw(),
                               .w_scales = args.w_scales.f32(),
                               .y = args.y.raw(),
                               .y_row_stride = args.y.row_stride(),
                               .y_group_stride = n};
  return choose_and_launch(stream, problem, m);
}

}  // namespace moesaic::cuda
