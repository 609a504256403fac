#include "kernels/cuda/gemm/fp8_gemm.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <type_traits>

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
  bool rows_may_be_strided = false;
};

absl::Status check_tensor(std::string_view operation, const NamedTensor& named) {
  const Tensor& tensor = named.tensor;
  const auto refuse = [&](const auto&... what) {
    return absl::InvalidArgumentError(str_cat(operation, ": ", what...));
  };
  if (tensor.dtype() != named.dtype || tensor.shape() != named.shape) {
    return refuse(named.name, " is ", dtype_name(tensor.dtype()), " ", tensor.shape().to_string(), ", expected ",
                  dtype_name(named.dtype), " ", named.shape.to_string());
  }
  if (reinterpret_cast<uintptr_t>(tensor.raw()) % 16 != 0) return refuse(named.name, " is not 16-byte aligned");
  if (tensor.is_contiguous()) return absl::OkStatus();
  if (!named.rows_may_be_strided) return refuse(named.name, " is not contiguous");
  const int64_t bytes = tensor.row_stride() * dtype_bytes(tensor.dtype());
  if (bytes % 16 == 0) return absl::OkStatus();
  return refuse("rows of ", named.name, " are ", bytes, " bytes apart, expected a multiple of 16");
}

absl::Status check_sizes(std::string_view operation, const GemmProblem& p) {
  if (p.k < kScaleGroup || p.k % kScaleGroup != 0) {
    return absl::InvalidArgumentError(str_cat(operation, ": k is ", p.k, ", expected a multiple of ", kScaleGroup));
  }
  if (p.n < 8 || p.n % 8 != 0) {
    return absl::InvalidArgumentError(str_cat(operation, ": n is ", p.n, ", expected a multiple of 8"));
  }
  const int64_t limit = std::numeric_limits<int32_t>::max();
  if (p.groups < 1 || p.rows > limit || p.n > limit || (p.rows / 128 + 1) * (p.n / 64 + 1) * p.groups > limit) {
    return absl::InvalidArgumentError(str_cat(operation, ": ", p.groups, " groups of ", p.rows, " rows by ", p.n,
                                              " columns: too many tiles for 31 bits"));
  }
  return absl::OkStatus();
}

// Checks the operands that every operation has and puts them into `problem`, which has its sizes and strides. The
// shapes are those that x, x_scales and y must have.
template <typename Args>
absl::Status set_operands(std::string_view operation, const Args& args, const Shape& x, const Shape& x_scales,
                          const Shape& y, GemmProblem& problem) {
  MOESAIC_RETURN_IF_ERROR(check_sizes(operation, problem));
  const int64_t n = problem.n, k = problem.k, groups = problem.groups;
  const int64_t n_blocks = (n + kScaleGroup - 1) / kScaleGroup, k_groups = k / kScaleGroup;
  const bool one = std::is_same_v<Args, Fp8GemmArgs>;
  const Shape w = one ? Shape{n, k} : Shape{groups, n, k};
  const Shape w_scales = one ? Shape{n_blocks, k_groups} : Shape{groups, n_blocks, k_groups};
  for (const NamedTensor& named :
       {NamedTensor{"x", args.x, DType::kE4M3, x, /*rows_may_be_strided=*/true},
        NamedTensor{"x_scales", args.x_scales, DType::kF32, x_scales}, NamedTensor{"w", args.w, DType::kE4M3, w},
        NamedTensor{"w_scales", args.w_scales, DType::kF32, w_scales},
        NamedTensor{"y", args.y, DType::kBF16, y, /*rows_may_be_strided=*/true}}) {
    MOESAIC_RETURN_IF_ERROR(check_tensor(operation, named));
  }
  problem.x = args.x.raw();
  problem.x_scales = args.x_scales.f32();
  problem.w = args.w.raw();
  problem.w_scales = args.w_scales.f32();
  problem.y = args.y.raw();
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
  const int64_t m = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  GemmProblem problem = {.grouping = Grouping::kDense,
                         .rows = m,
                         .n = n,
                         .k = k,
                         .groups = 1,
                         .x_row_stride = args.x.row_stride(),
                         .x_group_stride = args.x.row_stride() * m,
                         .y_row_stride = args.y.row_stride(),
                         .y_group_stride = 0};
  const Shape x_scales = {k / kScaleGroup, scale_row_stride(m)};
  MOESAIC_RETURN_IF_ERROR(set_operands("fp8_gemm", args, {m, k}, x_scales, {m, n}, problem));
  return choose_and_launch(stream, problem, m);
}

absl::Status fp8_gemm_contiguous(cudaStream_t stream, const Fp8GemmContiguousArgs& args) {
  constexpr std::string_view kName = "fp8_gemm_contiguous";
  const int64_t rows = args.x.dim(0), k = args.x.dim(1), groups = args.w.dim(0), n = args.w.dim(1);
  GemmProblem problem = {.grouping = Grouping::kContiguous,
                         .rows = rows,
                         .n = n,
                         .k = k,
                         .groups = groups,
                         .x_row_stride = args.x.row_stride(),
                         .x_group_stride = args.x.row_stride() * rows,
                         .y_row_stride = args.y.row_stride(),
                         .y_group_stride = 0};
  const Shape x_scales = {k / kScaleGroup, scale_row_stride(rows)};
  MOESAIC_RETURN_IF_ERROR(set_operands(kName, args, {rows, k}, x_scales, {rows, n}, problem));
  MOESAIC_RETURN_IF_ERROR(check_tensor(kName, {"row_ids", args.row_ids, DType::kI32, {rows}}));
  problem.row_ids = args.row_ids.i32();
  return choose_and_launch(stream, problem, rows);
}

absl::Status fp8_gemm_masked(cudaStream_t stream, const Fp8GemmMaskedArgs& args) {
  constexpr std::string_view kName = "fp8_gemm_masked";
  const int64_t groups = args.x.dim(0), max_rows = args.x.dim(1), k = args.x.dim(2), n = args.w.dim(1);
  GemmProblem problem = {.grouping = Grouping::kMasked,
                         .rows = max_rows,
                         .n = n,
                         .k = k,
                         .groups = groups,
                         .x_row_stride = k,
                         .x_group_stride = max_rows * k,
                         .y_row_stride = n,
                         .y_group_stride = max_rows * n};
  const Shape x_scales = {groups, k / kScaleGroup, scale_row_stride(max_rows)};
  MOESAIC_RETURN_IF_ERROR(set_operands(kName, args, {groups, max_rows, k}, x_scales, {groups, max_rows, n}, problem));
  MOESAIC_RETURN_IF_ERROR(check_tensor(kName, {"group_rows", args.group_rows, DType::kI32, {groups}}));
  problem.group_rows = args.group_rows.i32();
  return choose_and_launch(stream, problem, args.expected_rows);
}

absl::Status fp8_gemm_batched(cudaStream_t stream, const Fp8GemmBatchedArgs& args) {
  const int64_t m = args.x.dim(0), heads = args.w.dim(0), n = args.w.dim(1), k = args.w.dim(2);
  GemmProblem problem = {.grouping = Grouping::kDense,
                         .rows = m,
                         .n = n,
                         .k = k,
                         .groups = heads,
                         .x_row_stride = args.x.row_stride(),
                         .x_group_stride = k,
                         .y_row_stride = args.y.row_stride(),
                         .y_group_stride = n};
  const Shape x_scales = {heads * (k / kScaleGroup), scale_row_stride(m)};
  MOESAIC_RETURN_IF_ERROR(set_operands("fp8_gemm_batched", args, {m, heads * k}, x_scales, {m, heads * n}, problem));
  return choose_and_launch(stream, problem, m);
}

}  // namespace moesaic::cuda
