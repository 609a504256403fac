// Tensor maps: what TMA must know of a tensor in device memory.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <initializer_list>

#include "base/status.h"
#include "tensor/dtype.h"

namespace moesaic::cuda {

// `data` is 16-byte aligned, of f32, bf16 or bytes. dims and box (what one copy moves, at most 256 each) innermost
// first, at most five; strides in bytes of every dimension but the innermost (multiples of 16). With `swizzle` the box
// is at most 128 bytes wide and lies in shared memory with 128-byte swizzle. Elements outside the tensor load as zeros.
// Costs about a microsecond; the map may be passed to a kernel by value. Errors: a driver without tensor maps; a tensor
// that it refuses (named).
absl::StatusOr<CUtensorMap> make_tensor_map(const void* data, DType dtype, std::initializer_list<int64_t> dims,
                                            std::initializer_list<int64_t> strides, std::initializer_list<int> box,
                                            bool swizzle);

}  // namespace moesaic::cuda
