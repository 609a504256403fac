// Tensor maps: what TMA must know of a tensor in device memory. Made on the host, passed to kernels by value.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "base/status.h"

namespace moesaic::cuda {

// Three dimensions, innermost first; the innermost is contiguous.
struct TensorMapArgs {
  const void* data;   // 16-byte aligned
  int element_bytes;  // 1 = e4m3, 2 = bf16, 4 = f32
  int64_t dims[3];
  int64_t strides[2];    // of dims 1 and 2, in elements; multiples of 16 bytes
  int box[3];            // what one copy moves; at most 256 each
  bool swizzle = false;  // rows of 128 bytes in 128-byte swizzle, as wgmma reads them
};

// Errors: a driver without tensor maps; an argument that it refuses (named).
absl::StatusOr<CUtensorMap> make_tensor_map(const TensorMapArgs& args);

}  // namespace moesaic::cuda
