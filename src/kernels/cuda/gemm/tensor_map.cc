#include "kernels/cuda/gemm/tensor_map.h"

#include <cuda_runtime_api.h>

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

}  // namespace

absl::StatusOr<CUtensorMap> make_tensor_map(const TensorMapArgs& args) {
  static const absl::StatusOr<Encode> encode = find_encode();
  if (!encode.ok()) return encode.status();
  const CUtensorMapDataType type = args.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : args.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                             : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  cuuint64_t dims[3], strides[2];
  cuuint32_t box[3];
  const cuuint32_t steps[3] = {1, 1, 1};
  for (int i = 0; i < 3; ++i) {
    dims[i] = args.dims[i];
    box[i] = args.box[i];
  }
  for (int i = 0; i < 2; ++i) strides[i] = args.strides[i] * args.element_bytes;
  CUtensorMap map;
  const CUresult result =
      (*encode)(&map, type, 3, const_cast<void*>(args.data), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                args.swizzle ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result == CUDA_SUCCESS) return map;
  return absl::InvalidArgumentError(str_cat("TMA refuses a tensor [", dims[2], ", ", dims[1], ", ", dims[0],
                                            "] with strides of ", strides[1], " and ", strides[0],
                                            " bytes (driver error ", static_cast<int>(result),
                                            "): expected 16-byte aligned memory and strides that are multiples of 16"));
}

}  // namespace moesaic::cuda
