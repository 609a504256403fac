// AmxTiles: the tile registers of this thread while the object lives. Tiles 0 .. 6 have num_rows rows (accumulators and
// left operands), tile 7 has 16 (right operands); all rows have 64 bytes. For x86-64, where isa_supported(Isa::kAmx).
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/simd_target.h"

#define MOESAIC_AMX_INLINE inline __attribute__((always_inline))

MOESAIC_TARGET_AMX_BEGIN

namespace moesaic {

class AmxTiles {
 public:
  explicit AmxTiles(int64_t num_rows) {
    Config config;
    for (int tile = 0; tile < 8; ++tile) {
      config.row_bytes[tile] = 64;
      config.rows[tile] = static_cast<uint8_t>(tile == 7 ? 16 : num_rows);
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

}  // namespace moesaic

MOESAIC_TARGET_END
