#include "kernels/cuda/mla/tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>

#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

using EncodeFunction = decltype(&cuTensorMapEncodeTiled);

// Through the runtime, so that nothing links the driver.
absl::StatusOr<EncodeFunction> encode_function() {
  static void* const function = [] {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result) !=
            cudaSuccess ||
        result != cudaDriverEntryPointSuccess) {
      static_cast<void>(cudaGetLastError());
      return static_cast<void*>(nullptr);
    }
    return found;
  }();
  if (function == nullptr)
    return absl::FailedPreconditionError("the CUDA driver has no cuTensorMapEncodeTiled: update it");
  return reinterpret_cast<EncodeFunction>(function);
}

}  // namespace

absl::StatusOr<CUtensorMap> make_tensor_map(const void* data, DType dtype, std::initializer_list<int64_t> dims,
                                            std::initializer_list<int64_t> strides, std::initializer_list<int> box,
                                            bool swizzle) {
  MOESAIC_ASSIGN_OR_RETURN(const EncodeFunction encode, encode_function());
  const int rank = static_cast<int>(dims.size());
  MOESAIC_CHECK(strides.size() + 1 == dims.size() && box.size() == dims.size() && rank <= 5);
  cuuint64_t global_dims[5], global_strides[5];
  cuuint32_t box_dims[5], element_strides[5] = {1, 1, 1, 1, 1};
  std::copy(dims.begin(), dims.end(), global_dims);
  std::copy(strides.begin(), strides.end(), global_strides);
  std::copy(box.begin(), box.end(), box_dims);
  const CUtensorMapDataType type =
      dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_UINT8;
  CUtensorMap map;
  const CUresult result =
      encode(&map, type, rank, const_cast<void*>(data), global_dims, global_strides, box_dims, element_strides,
             CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return absl::InternalError(str_cat("cuTensorMapEncodeTiled failed with code ", static_cast<int>(result)));
  }
  return map;
}

}  // namespace moesaic::cuda
