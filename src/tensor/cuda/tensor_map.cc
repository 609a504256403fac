#include "tensor/cuda/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// The driver is not linked: its functions are asked for by name.
absl::StatusOr<Encode> find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  MOESAIC_RETURN_IF_ERROR(
      to_status(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
                "looking for cuTensorMapEncodeTiled"));
  if (found != cudaDriverEntryPointSuccess || function == nullptr) {
    return absl::FailedPreconditionError("the CUDA driver has no cuTensorMapEncodeTiled: expected CUDA 12 or newer");
  }
  return reinterpret_cast<Encode>(function);
}

CUtensorMapDataType map_type(DType dtype) {
  if (dtype == DType::kF32) return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  if (dtype == DType::kBF16) return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  MOESAIC_CHECK(dtype_bytes(dtype) == 1);
  return CU_TENSOR_MAP_DATA_TYPE_UINT8;
}

}  // namespace

absl::StatusOr<CUtensorMap> make_tensor_map(const void* data, DType dtype, std::initializer_list<int64_t> dims,
                                            std::initializer_list<int64_t> strides, std::initializer_list<int> box,
                                            bool swizzle) {
  static const absl::StatusOr<Encode> encode = find_encode();
  if (!encode.ok()) return encode.status();
  const int rank = static_cast<int>(dims.size());
  MOESAIC_CHECK(strides.size() + 1 == dims.size() && box.size() == dims.size() && rank <= 5);
  cuuint64_t global_dims[5], global_strides[5];
  cuuint32_t box_dims[5];
  const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
  std::copy(dims.begin(), dims.end(), global_dims);
  std::copy(strides.begin(), strides.end(), global_strides);
  std::copy(box.begin(), box.end(), box_dims);
  CUtensorMap map;
  const CUresult result =
      (*encode)(&map, map_type(dtype), rank, const_cast<void*>(data), global_dims, global_strides, box_dims, steps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  std::string refused = str_cat("TMA refuses a tensor (driver error ", static_cast<int>(result), "): dims");
  for (const int64_t dim : dims) refused += str_cat(" ", dim);
  refused += ", strides in bytes";
  for (const int64_t stride : strides) refused += str_cat(" ", stride);
  return absl::InvalidArgumentError(refused + ": expected 16-byte aligned memory, strides that are multiples of 16");
}

}  // namespace moesaic::cuda
