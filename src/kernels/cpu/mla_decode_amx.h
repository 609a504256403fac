// Absorbed attention of one decode chunk on AMX, for bf16 rows: a tile product takes bf16 by bf16 into f32. Queries and
// probabilities enter as the sum of two bf16 terms (relative error 2^-18), eight heads at a time: 16 rows of a tile.
// Results equal those of VectorOps::decode_chunk to rounding, and each other's bits whatever is computed beside them.
// Where isa_supported(Isa::kAmx).
#pragma once

#include <cstdint>

#include "kernels/cpu/vector_ops.h"

namespace moesaic {

inline constexpr int64_t kAmxHeads = 8;      // heads of one group
inline constexpr int64_t kAmxTileKeys = 16;  // keys that must be neighbours in memory
inline constexpr int64_t kAmxTileDims = 32;

// 2-byte words that the packed queries of one group take.
inline int64_t amx_query_words(int64_t width) {
  return width / kAmxTileDims * 512;
}
// The queries q [num_heads, width] of one group, num_heads <= kAmxHeads, in the order of tiles.
void pack_amx_queries(const float* q, int64_t num_heads, int64_t width, uint16_t* packed);

struct AmxDecodeChunk {
  const uint16_t* keys[kDecodeKeys / kAmxTileKeys];  // each kAmxTileKeys rows [width] bf16, one after the other
  int64_t num_keys;                                  // 1 .. kDecodeKeys; rows past it are not read
  int64_t width;                                     // a multiple of kAmxTileDims, and so is lora
  int64_t lora;
  const uint16_t* queries;  // pack_amx_queries
  int64_t num_heads;        // 1 .. kAmxHeads
  float scale;
  const char* prefetch;  // what this thread reads next; any address, or null
  int64_t prefetch_bytes;
  float* max;  // as in DecodeChunk
  float* sum;
  float* acc;
};
void amx_decode_chunk(const AmxDecodeChunk& chunk);

}  // namespace moesaic
