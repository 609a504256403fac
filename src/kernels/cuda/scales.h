// The one layout of activation scales on the device, written by every kernel that quantises (quantise, SiLU, dispatch)
// and read by the FP8 GEMMs through TMA without a transposition in between.
//
// An activation matrix x [rows, k] e4m3 has one f32 scale for each row and 128 of k: x is q * scale (DeepSeek-V3
// report, section 3.3.2). They lie k-group major, rows contiguous:
//
//   scale(row, g) = scales[g * scale_row_stride(rows) + row]        g = 0 .. k / 128 - 1
//
// so that a tile's scales of one k group are one contiguous run. The stride is rounded up to 16 bytes, TMA's
// granularity; what lies in the padding is read but never used, and may be anything. Grouped tensors
// [groups, max_rows, k] have one such matrix a group, groups one after the other.
//
// Weight scales are as in the checkpoint (`weight_scale_inv`): [ceil(n / 128), k / 128] f32 row-major, groups
// outermost.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define MOESAIC_HOST_DEVICE __host__ __device__
#else
#define MOESAIC_HOST_DEVICE
#endif

namespace moesaic::cuda {

inline constexpr int kScaleGroup = 128;  // of k, and of n for weights

// Floats from one k group to the next.
MOESAIC_HOST_DEVICE inline int64_t scale_row_stride(int64_t rows) {
  return (rows + 3) / 4 * 4;
}

// Floats of the scales of `groups` matrices [rows, k].
MOESAIC_HOST_DEVICE inline int64_t num_scales(int64_t groups, int64_t rows, int64_t k) {
  return groups * (k / kScaleGroup) * scale_row_stride(rows);
}

}  // namespace moesaic::cuda
