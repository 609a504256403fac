#include "kernels/cpu/mla_decode_amx.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12 warns of its own undefined-vector intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/simd_target.h"

MOESAIC_TARGET_AMX_BEGIN

namespace moesaic {
namespace {

constexpr int64_t kTileFloats = 256;  // 16 rows of 16
constexpr int64_t kTileWords = 512;
constexpr int64_t kKeyTiles = kDecodeKeys / kAmxTileKeys;
constexpr int64_t kMaxWidth = 1024;

// The 16 x 16 matrix of 4-byte elements at `rows`, columns for rows.
MOESAIC_AMX_INLINE void transpose(__m512i* rows) {
  __m512i t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    rows[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    rows[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0x88);
    t[4 + i] = _mm512_shuffle_i32x4(rows[i], rows[4 + i], 0xdd);
    t[8 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0x88);
    t[12 + i] = _mm512_shuffle_i32x4(rows[8 + i], rows[12 + i], 0xdd);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
    rows[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
    rows[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
    rows[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
  }
}

// x = *high + *low + at most 2^-18 of x; both bf16 as f32.
MOESAIC_AMX_INLINE void split(__m512 x, __m512i* high, __m512i* low) {
  const __m512 first = widen_bf16(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  *high = _mm512_castps_si512(first);
  *low = _mm512_castps_si512(widen_bf16(reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(_mm512_sub_ps(x, first)))));
}

class Chunk {
 public:
  explicit Chunk(const AmxDecodeChunk& chunk)
      : c_(chunk), row_bytes_(2 * chunk.width), num_tiles_((chunk.num_keys + kAmxTileKeys - 1) / kAmxTileKeys) {
    for (int64_t tile = 0; tile < kKeyTiles; ++tile) keys_[tile] = c_.keys[std::min(tile, num_tiles_ - 1)];
    const int64_t rest = c_.num_keys % kAmxTileKeys;
    if (rest == 0) return;
    // What lies behind the last key may be anything, NaN too.
    std::memcpy(last_keys_, c_.keys[num_tiles_ - 1], rest * row_bytes_);
    std::memset(last_keys_ + rest * c_.width, 0, (kAmxTileKeys - rest) * row_bytes_);
    std::fill(keys_ + num_tiles_ - 1, keys_ + kKeyTiles, last_keys_);
  }

  void run() {
    const AmxTiles tiles(16, 1);  // all have 16
    scores();
    probabilities();
    for (int64_t dim = 0; dim < c_.lora; dim += 2 * kAmxTileDims) {
      values(dim, std::min(dim + kAmxTileDims, c_.lora - kAmxTileDims));
    }
  }

 private:
  // Every second line: the hardware fetches the neighbour, and loads under way to the second-level cache are few.
  void prefetch(int64_t bytes) {
    for (const int64_t end = std::min(prefetched_ + bytes, c_.prefetch_bytes); prefetched_ < end; prefetched_ += 128) {
      _mm_prefetch(c_.prefetch + prefetched_, _MM_HINT_T1);
    }
  }

  // scores_[head][key], from products [key][term * 8 + head]. A missing tile of keys is computed as its neighbour.
  void scores() {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t dim = 0; dim < c_.width; dim += kAmxTileDims) {
      _tile_loadd(7, c_.queries + dim / kAmxTileDims * kTileWords, 64);
      _tile_loadd(4, keys_[0] + dim, row_bytes_);
      _tile_dpbf16ps(0, 4, 7);
      _tile_loadd(5, keys_[1] + dim, row_bytes_);
      _tile_dpbf16ps(1, 5, 7);
      _tile_loadd(6, keys_[2] + dim, row_bytes_);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(4, keys_[3] + dim, row_bytes_);
      _tile_dpbf16ps(3, 4, 7);
      prefetch(2048);
    }
    _tile_stored(0, sums_, 64);
    _tile_stored(1, sums_ + kTileFloats, 64);
    _tile_stored(2, sums_ + 2 * kTileFloats, 64);
    _tile_stored(3, sums_ + 3 * kTileFloats, 64);
    for (int64_t tile = 0; tile < num_tiles_; ++tile) {
      __m512i rows[16];
      for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_si512(sums_ + tile * kTileFloats + i * 16);
      transpose(rows);
#pragma GCC unroll 8
      for (int h = 0; h < kAmxHeads; ++h) {
        const __m512 score = _mm512_add_ps(_mm512_castsi512_ps(rows[h]), _mm512_castsi512_ps(rows[kAmxHeads + h]));
        _mm512_store_ps(scores_ + h * kDecodeKeys + tile * 16, score);
      }
    }
  }

  // Two tiles for 16 keys: in even_ a probability meets the first element of a pair in a row, in odd_ the second.
  void probabilities() {
    for (int64_t h = 0; h < c_.num_heads; ++h) {
      float* row = scores_ + h * kDecodeKeys;
      const int64_t num_lanes = num_tiles_ * kAmxTileKeys;
      std::fill(row + c_.num_keys, row + num_lanes, -std::numeric_limits<float>::infinity());
      kAvx512VectorOps.softmax(row, num_lanes, c_.scale, c_.max + h, c_.sum + h);
    }
    for (int64_t tile = 0; tile < num_tiles_; ++tile) {
      for (int64_t h = 0; h < kAmxHeads; ++h) {
        __m512i high, low;
        const __mmask16 exists = h < c_.num_heads ? 0xffff : 0;
        split(_mm512_maskz_load_ps(exists, scores_ + h * kDecodeKeys + tile * 16), &high, &low);
        uint16_t* even = even_ + tile * kTileWords + h * 32;
        uint16_t* odd = odd_ + tile * kTileWords + h * 32;
        _mm512_store_si512(even, _mm512_srli_epi32(high, 16));
        _mm512_store_si512(even + kAmxHeads * 32, _mm512_srli_epi32(low, 16));
        _mm512_store_si512(odd, high);
        _mm512_store_si512(odd + kAmxHeads * 32, low);
      }
    }
  }

  // acc[:, dim ..] of two neighbouring column tiles (the second may be the first again): even columns in tiles 0 and 2,
  // odd ones in 1 and 3.
  void values(int64_t dim, int64_t second_dim) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t tile = 0; tile < num_tiles_; ++tile) {
      _tile_loadd(4, even_ + tile * kTileWords, 64);
      _tile_loadd(6, keys_[tile] + dim, row_bytes_);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, keys_[tile] + second_dim, row_bytes_);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, odd_ + tile * kTileWords, 64);
      _tile_dpbf16ps(1, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      prefetch(1152);
    }
    _tile_stored(0, sums_, 64);
    _tile_stored(1, sums_ + kTileFloats, 64);
    _tile_stored(2, sums_ + 2 * kTileFloats, 64);
    _tile_stored(3, sums_ + 3 * kTileFloats, 64);
    store_values(sums_, dim);
    if (second_dim != dim) store_values(sums_ + 2 * kTileFloats, second_dim);
  }

  void store_values(const float* even_sum, int64_t dim) {
    const __m512i lower = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i upper = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
    for (int64_t h = 0; h < c_.num_heads; ++h, even_sum += 16) {
      const float* odd_sum = even_sum + kTileFloats;
      const __m512 even = _mm512_add_ps(_mm512_load_ps(even_sum), _mm512_load_ps(even_sum + kAmxHeads * 16));
      const __m512 odd = _mm512_add_ps(_mm512_load_ps(odd_sum), _mm512_load_ps(odd_sum + kAmxHeads * 16));
      float* acc = c_.acc + h * c_.lora + dim;
      _mm512_storeu_ps(acc, _mm512_permutex2var_ps(even, lower, odd));
      _mm512_storeu_ps(acc + 16, _mm512_permutex2var_ps(even, upper, odd));
    }
  }

  const AmxDecodeChunk& c_;
  const int64_t row_bytes_, num_tiles_;
  int64_t prefetched_ = 0;
  const uint16_t* keys_[kKeyTiles];
  alignas(64) uint16_t last_keys_[kAmxTileKeys * kMaxWidth];
  alignas(64) float scores_[kAmxHeads * kDecodeKeys];
  alignas(64) uint16_t even_[kKeyTiles * kTileWords];
  alignas(64) uint16_t odd_[kKeyTiles * kTileWords];
  alignas(64) float sums_[4 * kTileFloats];
};

}  // namespace

void pack_amx_queries(const float* q, int64_t num_heads, int64_t width, uint16_t* packed) {
  for (int64_t dim = 0; dim < width; dim += kAmxTileDims, packed += kTileWords) {
    __m512i rows[16];  // [term * 8 + head] of 16 pairs
#pragma GCC unroll 8
    for (int64_t h = 0; h < kAmxHeads; ++h) {
      const __mmask16 exists = h < num_heads ? 0xffff : 0;
      __m512 first = _mm512_maskz_loadu_ps(exists, q + h * width + dim);
      __m512 second = _mm512_maskz_loadu_ps(exists, q + h * width + dim + 16);
      rows[h] = take_bf16(&first, &second);
      rows[kAmxHeads + h] = take_bf16(&first, &second);
    }
    transpose(rows);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(packed + i * 32, rows[i]);
  }
}

void amx_decode_chunk(const AmxDecodeChunk& chunk) {
  Chunk(chunk).run();
}

}  // namespace moesaic

MOESAIC_TARGET_END

#endif
