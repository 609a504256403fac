// Launches of kernels that follow each other: with programmatic dependent launch the blocks of one are set up while the
// last of the one before still run, so that a step does not pay for every start.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/ptx.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {

// The kernel's first statement is begin_chained(): before it nothing in device memory may be read or written.
template <typename... Params, typename... Args>
void launch_chained(cudaStream_t stream, void (*kernel)(Params...), unsigned blocks, unsigned threads,
                    size_t shared_bytes, Args&&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  MOESAIC_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, Params(std::forward<Args>(args))...));
}

// What earlier kernels wrote is visible after it; the next kernel's blocks may be set up from now on, and wait in turn.
__device__ __forceinline__ void begin_chained() {
  launch_dependents();
  wait_for_previous();
}

}  // namespace moesaic::cuda
