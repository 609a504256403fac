// How CUDA's error codes enter the two ways of failing: a Status where a user can mend it (no device, too little
// memory), CHECK where only our own code can be wrong (a launch with bad arguments, a sticky error).
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "base/check.h"
#include "base/status.h"

namespace moesaic::cuda {

// OK, or "what: cudaErrorName: text".
absl::Status to_status(cudaError_t error, std::string_view what);

}  // namespace moesaic::cuda

#define MOESAIC_CUDA_CHECK(expr)                                                                                    \
  do {                                                                                                              \
    if (const cudaError_t error_ = (expr); error_ != cudaSuccess) [[unlikely]]                                      \
      ::moesaic::internal::check_failed(__FILE__, __LINE__, #expr,                                                  \
                                        std::string(cudaGetErrorName(error_)) + ": " + cudaGetErrorString(error_)); \
  } while (false)
