// Launching a kernel in clusters with a large shared memory.
#pragma once

#include <cuda_runtime.h>

#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {

template <typename... Params, typename... Args>
absl::Status launch_clusters(cudaStream_t stream, void (*kernel)(Params...), int blocks, int threads, int shared_bytes,
                             int cluster, const Args&... args) {
  MOESAIC_RETURN_IF_ERROR(
      to_status(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
                "shared memory of a GEMM kernel"));
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(blocks);
  launch.blockDim = dim3(threads);
  launch.dynamicSmemBytes = shared_bytes;
  launch.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = cluster;
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  launch.attrs = &attribute;
  launch.numAttrs = cluster > 1 ? 1 : 0;
  return to_status(cudaLaunchKernelEx(&launch, kernel, args...), "launching a GEMM kernel");
}

}  // namespace moesaic::cuda
