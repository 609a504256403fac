// The kernels behind mla_decode, by the rows of a tile and the format of the cache.
#pragma once

#include <cuda.h>

#include "kernels/cuda/mla/decode_plan.h"

namespace moesaic::cuda {

constexpr int kTileBytes = 64 * 128;  // 64 rows x 64 columns of bf16 in shared memory, 128-byte swizzle

absl::Status check_decode_shape(const MlaDecodeShape& shape);

// q_map: bf16 [num_tokens * num_heads, 576] in boxes of tile_rows x 64. rowsN_map: bf16 rows seen as [num_rows, 9, 64]
// in boxes of 64 rows x N tiles of 64 columns. latents_map, scales_map: FP8 rows as bytes [num_rows, 656] in boxes of
// 64 rows x 128 (swizzled), x 16. launch_decode_wide takes rows1_map, or latents_map where params.fp8_rows is set.
void launch_decode_wide(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params,
                        const CUtensorMap& q_map, const CUtensorMap& rows_map);
void launch_decode_narrow(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params,
                          const CUtensorMap& q_map, const CUtensorMap& rows3_map);
void launch_decode_narrow_fp8(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params,
                              const void* q, const CUtensorMap& latents_map, const CUtensorMap& scales_map);
void launch_decode_merge(cudaStream_t stream, const DecodeLayout& layout, const DecodeParams& params, int num_seqs);

}  // namespace moesaic::cuda
