// AmxTiles: the tile registers of this thread while the object lives. The last num_right tiles have 16 rows (right
// operands), those before have num_rows (accumulators and left operands); all rows have 64 bytes. For x86-64, where
// isa_supported(Isa::kAmx).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd_target.h"

#define MOESAIC_AMX_INLINE inline __attribute__((always_inline))

MOESAIC_TARGET_AMX_BEGIN

namespace moesaic {

class AmxTiles {
 public:
  AmxTiles(int64_t num_rows, int num_right) {
    Config config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = static_cast<uint8_t>(tile >= 8 - num_right ? 16 : num_rows);
    }
    _tile_loadconfig(&config);
  }
  ~AmxTiles() { _tile_release(); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

 private:
  struct alignas(64) Config {  // what LDTILECFG reads
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
};

MOESAIC_AMX_INLINE __m512 widen_bf16(__m256i words) {
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, _mm512_maskz_cvtepu16_epi32(0xffff, words), 16));
}

// 32 values as bf16, rounded to nearest; what is left of each takes its place.
MOESAIC_AMX_INLINE __m512i take_bf16(__m512* first, __m512* second) {
  const __m512i words = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(*second, *first));
  *first = _mm512_sub_ps(*first, widen_bf16(_mm512_castsi512_si256(words)));
  *second = _mm512_sub_ps(*second, widen_bf16(_mm512_maskz_extracti64x4_epi64(0xff, words, 1)));
  return words;
}

}  // namespace moesaic

MOESAIC_TARGET_END
