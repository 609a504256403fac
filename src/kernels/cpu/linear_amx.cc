// Linears on AMX. A tile product takes bf16 by bf16 into f32. An e4m3 or bf16 weight is a bf16 exactly; an f32
// activation enters as the sum of bf16 terms, each rounded to nearest and with accumulators of its own: three hold all
// 24 significant bits (LinearMath::kExact), two are within 2^-17 (kShort). Per output and step of 128 k,
// total = fma(high + (middle + low), scale, total): exact products and f32 sums, but in another order than the
// definition. Results have each other's bits whatever the number of rows. Tile products take denormals as zero:
// activations below 2^-108 lose low terms.
#include "kernels/cpu/linear_kernels.h"

#if defined(__x86_64__)

#if !defined(__clang__)
// GCC 12 warns of its own undefined-vector intrinsics (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/simd_target.h"
#include "tensor/dtype.h"

// The tables are filled when the program starts, on any CPU: they must not be compiled for the target below.
namespace moesaic {
namespace {

constexpr int64_t kCols = PackedWeight::kPanelCols;
constexpr int64_t kDepth = PackedWeight::kScaleGroup;
constexpr int64_t kTileDepth = 32;  // k of one tile
constexpr int64_t kTiles = kDepth / kTileDepth;
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kPrefetchBytes = 4096;  // a page ahead: the hardware's own prefetching ends at each
constexpr int64_t kChunkRows = 64;        // their terms and the weights of a panel fit the first-level cache
constexpr int64_t kPanelSet = 32;         // panels that share one split of the activations

// Decoded e4m3 weights are times 2^-8: then the exponent's new bits are bits of their own.
constexpr float kDecodeFactor = 0x1.0p-8f;
constexpr uint16_t kExponentBits = 112 << 7;

// High and low byte of the bf16 that an e4m3 magnitude is: for zero and subnormals.
struct DecodeTable {
  alignas(64) std::array<uint8_t, 128> high{};
  alignas(64) std::array<uint8_t, 128> low{};
};

DecodeTable make_decode_table() {
  DecodeTable table;
  for (int code = 0; code < 127; ++code) {  // 127 is NaN: PackedWeight refuses it
    const uint16_t value = f32_to_bf16(e4m3_to_f32(static_cast<uint8_t>(code)) * kDecodeFactor);
    table.high[code] = static_cast<uint8_t>(value >> 8);
    table.low[code] = static_cast<uint8_t>(value);
  }
  return table;
}

const DecodeTable kDecodeTable = make_decode_table();

// Of 64 bytes (k and k + 1 of one e4m3 panel): for each word of the columns half * 16 .. + 15 of both k, the byte that
// it is made from, in both places.
struct ByteOrder {
  alignas(64) std::array<std::array<uint8_t, 64>, 2> from{};
};

ByteOrder make_byte_order() {
  ByteOrder order;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 64; ++i) {
      const int64_t slot = PackedWeight::slot(DType::kE4M3, half * 16 + i / 4);
      order.from[half][i] = static_cast<uint8_t>(i / 2 % 2 * 32 + slot);
    }
  }
  return order;
}

const ByteOrder kByteOrder = make_byte_order();

// Of 2 x 32 words (k, then k + 1, of one bf16 panel): where column `half` * 16 + i / 2 of k parity i % 2 stands.
struct WordOrder {
  alignas(64) std::array<std::array<uint16_t, 32>, 2> from{};
};

WordOrder make_word_order() {
  WordOrder order;
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 32; ++i) {
      const int64_t slot = PackedWeight::slot(DType::kBF16, half * 16 + i / 2);
      order.from[half][i] = static_cast<uint16_t>(i % 2 * 32 + slot);
    }
  }
  return order;
}

const WordOrder kWordOrder = make_word_order();

}  // namespace
}  // namespace moesaic

MOESAIC_TARGET_AMX_BEGIN

namespace moesaic {
namespace {

// kTerms: bf16 terms of an activation.
template <DType kDType, int kTerms>
class AmxLinear {
 public:
  static void run(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
    if (panel_begin >= panel_end) return;
    const int64_t num_chunks = (args.m + kChunkRows - 1) / kChunkRows;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      const int64_t begin = args.m * chunk / num_chunks, rows = args.m * (chunk + 1) / num_chunks - begin;
      LinearPanels part = args;
      part.m = rows;
      part.x += begin * args.x_stride;
      part.y += begin * args.y_stride;
      AmxLinear linear(part);
      if (linear.packed_) {
        linear.run_packed(panel_begin, panel_end);
      } else {
        linear.run_blocked(panel_begin, panel_end);
      }
    }
  }

 private:
  static constexpr bool kScaled = kDType == DType::kE4M3;
  static constexpr int64_t kRowBytes = kCols * (kScaled ? 1 : 2);
  // Up to so many rows keep their terms in one tile, as neighbouring tile rows.
  static constexpr int64_t kPackedRows = 16 / kTerms;
  static constexpr int64_t kPackedSteps = kChunkRows / 16 * kTerms;  // as many as have room

  explicit AmxLinear(const LinearPanels& args)
      : args_(args),
        packed_(args.m <= kPackedRows),
        num_blocks_((args.m + 15) / 16),
        block_rows_((args.m + num_blocks_ - 1) / num_blocks_) {}

  struct Step {
    int64_t begin, depth, num_tiles;
    const float* scales;  // of column 0, or null
    bool first, last;
  };

  Step step_at(int64_t index) const {
    const int64_t first_end = kScaled ? args_.weight->first_group_end() : kDepth, k = args_.weight->k();
    const int64_t begin = index == 0 ? 0 : first_end + (index - 1) * kDepth;
    const int64_t depth = std::min(first_end + index * kDepth, k) - begin;
    return {.begin = begin,
            .depth = depth,
            .num_tiles = (depth + kTileDepth - 1) / kTileDepth,
            .scales = kScaled ? args_.weight->group_scales(index) : nullptr,
            .first = begin == 0,
            .last = begin + depth == k};
  }

  int64_t num_steps() const {
    const int64_t first_end = kScaled ? args_.weight->first_group_end() : kDepth;
    return 1 + std::max<int64_t>(0, args_.weight->k() - first_end + kDepth - 1) / kDepth;
  }

  // Few rows: what counts is to read the weights in the order of memory.
  void run_packed(int64_t panel_begin, int64_t panel_end) {
    const AmxTiles tiles(kTerms * args_.m, 2);
    for (int64_t begin = 0, steps = num_steps(); begin < steps; begin += kPackedSteps) {
      const int64_t end = std::min(begin + kPackedSteps, steps);
      for (int64_t index = begin; index < end; ++index) split_rows(step_at(index), index - begin);
      // Products come one unit after decoding: tiles are loaded from the cache, never from stores under way.
      int64_t num_decoded = 0;
      for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
        for (int64_t index = begin; index < end; ++index, ++num_decoded) {
          const Step step = step_at(index);
          decode_panel(step, panel, num_decoded % 2, step_bytes(step.begin, panel) + kPrefetchBytes);
          if (num_decoded == 0) continue;
          const bool same_panel = index > begin;
          const int64_t before = same_panel ? index - 1 : end - 1;
          packed_panel(step_at(before), before - begin, same_panel ? panel : panel - 1, (num_decoded - 1) % 2);
        }
      }
      packed_panel(step_at(end - 1), end - 1 - begin, panel_end - 1, (num_decoded - 1) % 2);
    }
  }

  void run_blocked(int64_t panel_begin, int64_t panel_end) {
    const AmxTiles tiles(block_rows_, kTerms == 2 ? 2 : 1);
    for (int64_t set = panel_begin; set < panel_end; set += kPanelSet) {
      for (int64_t index = 0, steps = num_steps(); index < steps; ++index) {
        const Step step = step_at(index);
        split_rows(step, 0);
        const int64_t set_end = std::min(set + kPanelSet, panel_end);
        for (int64_t panel = set; panel < set_end; ++panel) {
          const bool ends_set = panel + 1 == set_end, ends_step = index + 1 == steps;
          const char* ahead = !ends_set    ? step_bytes(step.begin, panel + 1)
                              : !ends_step ? step_bytes(step.begin + step.depth, set)
                                           : step_bytes(0, panel + 1);
          blocked_panel(step, panel, ahead);
        }
      }
    }
  }

  // ---- activations: tiles of 16 rows x 32 k; packed: [steps][kTiles], else [blocks][kTiles][kTerms] ----

  uint16_t* activation_tile(int64_t place, int64_t tile) {
    return activations_ + (place * kTiles + tile) * (packed_ ? 1 : kTerms) * (kTileBytes / 2);
  }

  void split_rows(const Step& step, int64_t place) {
    for (int64_t i = 0; i < args_.m; ++i) {
      const int64_t block = packed_ ? 0 : i / block_rows_;
      const int64_t row = packed_ ? kTerms * i : i % block_rows_, term_row = packed_ ? 1 : 16;
      const float* x = args_.x + i * args_.x_stride + step.begin;
      for (int64_t tile = 0; tile < step.num_tiles; ++tile) {
        const int64_t left = std::min(step.depth - tile * kTileDepth, kTileDepth);
        const auto mask = static_cast<uint32_t>((uint64_t{1} << left) - 1);
        split_tile_row(x + tile * kTileDepth, mask, activation_tile(place + block, tile) + row * kTileDepth,
                       term_row * kTileDepth);
      }
    }
  }

  // 32 activations; the terms go to `to`, `term_stride` apart.
  static MOESAIC_AMX_INLINE void split_tile_row(const float* x, uint32_t mask, uint16_t* to, int64_t term_stride) {
    __m512 left = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), x);
    __m512 right = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), x + 16);
#pragma GCC unroll 3
    for (int term = 0; term < kTerms; ++term, to += term_stride) _mm512_store_si512(to, take_bf16(&left, &right));
  }

  // ---- weights: one k tile of a panel as two tiles [16 k pairs][16 columns][2] ----

  // s0eeeemmm in the high byte of a word becomes s 0111 eeee mmm 0000 (exponent 112 + e).
  static MOESAIC_AMX_INLINE __m512i decode_words(__m512i bytes, int half) {
    constexpr __mmask64 kHighBytes = 0xaaaaaaaaaaaaaaaau;
    const __m512i words = _mm512_maskz_permutexvar_epi8(kHighBytes, _mm512_load_si512(&kByteOrder.from[half]), bytes);
    constexpr int kMaskThenOr = 0xea;  // (a & b) | c
    return _mm512_ternarylogic_epi32(_mm512_srai_epi16(words, 4), _mm512_set1_epi16(static_cast<int16_t>(0x87f0)),
                                     _mm512_set1_epi16(kExponentBits), kMaskThenOr);
  }

  // By table, for zero and subnormals.
  static __attribute__((noinline)) __m512i look_up_words(__m512i bytes, int half) {
    bytes = _mm512_permutexvar_epi8(_mm512_load_si512(&kByteOrder.from[half]), bytes);
    __m512i high = _mm512_permutex2var_epi8(_mm512_load_si512(&kDecodeTable.high[0]), bytes,
                                            _mm512_load_si512(&kDecodeTable.high[64]));
    const __m512i low = _mm512_permutex2var_epi8(_mm512_load_si512(&kDecodeTable.low[0]), bytes,
                                                 _mm512_load_si512(&kDecodeTable.low[64]));
    high = _mm512_or_si512(high, _mm512_and_si512(bytes, _mm512_set1_epi8(static_cast<char>(0x80))));
    return _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaau, low, high);
  }

  static MOESAIC_AMX_INLINE void decode_pair(__m512i bytes, uint8_t* left, uint8_t* right) {
    _mm512_store_si512(left, decode_words(bytes, 0));
    _mm512_store_si512(right, decode_words(bytes, 1));
    if (__builtin_expect(_mm512_testn_epi8_mask(bytes, _mm512_set1_epi8(0x78)) != 0, 0)) {
      _mm512_store_si512(left, look_up_words(bytes, 0));
      _mm512_store_si512(right, look_up_words(bytes, 1));
    }
  }

  static MOESAIC_AMX_INLINE void decode_pair(__m512i first, __m512i second, uint8_t* left, uint8_t* right) {
    _mm512_store_si512(left, _mm512_permutex2var_epi16(first, _mm512_load_si512(&kWordOrder.from[0]), second));
    _mm512_store_si512(right, _mm512_permutex2var_epi16(first, _mm512_load_si512(&kWordOrder.from[1]), second));
  }

  static MOESAIC_AMX_INLINE void decode_tile(const char* from, int64_t depth, uint8_t* left, uint8_t* right) {
    for (int64_t k = 0; k < kTileDepth; k += 2, from += 2 * kRowBytes, left += 64, right += 64) {
      const bool has_first = k < depth, has_second = k + 1 < depth;
      if constexpr (kScaled) {
        const auto mask = static_cast<__mmask16>(has_second ? 0xffff : has_first ? 0x00ff : 0);
        decode_pair(_mm512_maskz_loadu_epi32(mask, from), left, right);
      } else {
        decode_pair(_mm512_maskz_loadu_epi32(static_cast<__mmask16>(has_first ? 0xffff : 0), from),
                    _mm512_maskz_loadu_epi32(static_cast<__mmask16>(has_second ? 0xffff : 0), from + kRowBytes), left,
                    right);
      }
    }
  }

  static MOESAIC_AMX_INLINE void decode_whole_tile(const char* from, const char* ahead, uint8_t* left, uint8_t* right) {
#pragma GCC unroll 4
    for (int64_t at = 0; at < kTileDepth * kRowBytes;
         at += 2 * kRowBytes, from += 2 * kRowBytes, left += 64, right += 64) {
      for (int64_t line = 0; line < 2 * kRowBytes; line += 64) _mm_prefetch(ahead + at + line, _MM_HINT_T0);
      if constexpr (kScaled) {
        decode_pair(_mm512_loadu_si512(from), left, right);
      } else {
        decode_pair(_mm512_loadu_si512(from), _mm512_loadu_si512(from + kRowBytes), left, right);
      }
    }
  }

  // Where k `begin` of a panel lies; of the panel past the last: what follows the weight.
  const char* step_bytes(int64_t begin, int64_t panel) const {
    return static_cast<const char*>(args_.weight->panel(0)) + (panel * args_.weight->k() + begin) * kRowBytes;
  }

  // The step's part of a panel, decoded into weights_[place], while as much from `ahead` on comes into the cache.
  void decode_panel(const Step& step, int64_t panel, int64_t place, const char* ahead) {
    const char* from = step_bytes(step.begin, panel);
    uint8_t* to = weights_[place];
    for (int64_t left = step.depth; left > 0; left -= kTileDepth) {
      if (left >= kTileDepth) {
        decode_whole_tile(from, ahead, to, to + kTileBytes);
      } else {
        decode_tile(from, left, to, to + kTileBytes);
      }
      from += kTileDepth * kRowBytes;
      ahead += kTileDepth * kRowBytes;
      to += 2 * kTileBytes;
    }
  }

  // ---- products ----

  // Tile registers: 0-1 accumulators, 4 activations, 6-7 weights.
  void packed_panel(const Step& step, int64_t x_place, int64_t panel, int64_t w_place) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t tile = 0; tile < step.num_tiles; ++tile) {
      const uint8_t* w = weights_[w_place] + tile * 2 * kTileBytes;
      _tile_loadd(4, activation_tile(x_place, tile), 64);
      _tile_loadd(6, w, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, w + kTileBytes, 64);
      _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, sums_, 64);
    _tile_stored(1, sums_ + 256, 64);
    const Columns columns = columns_of(step, panel);
    finish_rows(step, columns, 0, args_.m, kTerms * 16, 16);
  }

  void blocked_panel(const Step& step, int64_t panel, const char* ahead) {
    decode_panel(step, panel, 0, ahead);
    const Columns columns = columns_of(step, panel);
    for (int64_t block = 0; block < num_blocks_; ++block) {
      multiply_block(step, block);
      const int64_t row = block * block_rows_;
      finish_rows(step, columns, row, std::min(block_rows_, args_.m - row), 16, 512);
    }
  }

  // Accumulators are term * 2 + half. With two terms: 0-3, 4-5 activations, 6-7 weights; with three: 0-5, 6, 7.
  void multiply_block(const Step& step, int64_t block) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    if constexpr (kTerms == 3) {
      _tile_zero(4);
      _tile_zero(5);
    }
    for (int64_t tile = 0; tile < step.num_tiles; ++tile) {
      const uint16_t* x = activation_tile(block, tile);
      const uint8_t* w = weights_[0] + tile * 2 * kTileBytes;
      if constexpr (kTerms == 2) {
        multiply_two_terms(x, w);
      } else {
        multiply_three_terms(x, w);
      }
    }
    _tile_stored(0, sums_, 64);
    _tile_stored(1, sums_ + 256, 64);
    _tile_stored(2, sums_ + 512, 64);
    _tile_stored(3, sums_ + 768, 64);
    if constexpr (kTerms == 3) {
      _tile_stored(4, sums_ + 1024, 64);
      _tile_stored(5, sums_ + 1280, 64);
    }
  }

  static MOESAIC_AMX_INLINE void multiply_two_terms(const uint16_t* x, const uint8_t* w) {
    _tile_loadd(4, x, 64);
    _tile_loadd(6, w, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, w + kTileBytes, 64);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(5, x + kTileBytes / 2, 64);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }

  static MOESAIC_AMX_INLINE void multiply_three_terms(const uint16_t* x, const uint8_t* w) {
    _tile_loadd(7, w, 64);
    _tile_loadd(6, x, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(6, x + kTileBytes / 2, 64);
    _tile_dpbf16ps(2, 6, 7);
    _tile_loadd(6, x + kTileBytes, 64);
    _tile_dpbf16ps(4, 6, 7);
    _tile_loadd(7, w + kTileBytes, 64);
    _tile_dpbf16ps(5, 6, 7);
    _tile_loadd(6, x, 64);
    _tile_dpbf16ps(1, 6, 7);
    _tile_loadd(6, x + kTileBytes / 2, 64);
    _tile_dpbf16ps(3, 6, 7);
  }

  // ---- results ----

  struct Columns {
    int64_t begin;
    __mmask16 mask[2];
    __m512 scale[2];
    __m512 bias[2];
  };

  Columns columns_of(const Step& step, int64_t panel) const {
    Columns columns;
    columns.begin = panel * kCols;
    for (int half = 0; half < 2; ++half) {
      const int64_t col = columns.begin + half * 16;
      const int64_t count = std::clamp<int64_t>(args_.weight->n() - col, 0, 16);
      columns.mask[half] = static_cast<__mmask16>((1u << count) - 1);
      columns.scale[half] = _mm512_set1_ps(1.0f);
      if (kScaled) {
        columns.scale[half] = _mm512_mul_ps(_mm512_loadu_ps(step.scales + col),
                                            _mm512_set1_ps(PackedWeight::kDecodeFactor / kDecodeFactor));
      }
      const bool adds_bias = step.last && args_.bias != nullptr;
      columns.bias[half] =
          _mm512_maskz_loadu_ps(adds_bias ? columns.mask[half] : __mmask16{0}, adds_bias ? args_.bias + col : args_.y);
    }
    return columns;
  }

  // Adds the sums of `num_rows` rows from `row` on to y. In sums_, rows are row_stride and terms term_stride apart.
  void finish_rows(const Step& step, const Columns& columns, int64_t row, int64_t num_rows, int64_t row_stride,
                   int64_t term_stride) {
    const __mmask16 mask[2] = {columns.mask[0], columns.mask[1]};
    const __mmask16 before_mask[2] = {step.first ? __mmask16{0} : mask[0], step.first ? __mmask16{0} : mask[1]};
    const __m512 scale[2] = {columns.scale[0], columns.scale[1]}, bias[2] = {columns.bias[0], columns.bias[1]};
    const float* sum = sums_;
    float* y = args_.y + row * args_.y_stride + columns.begin;
    const int64_t y_stride = args_.y_stride;
    for (int64_t i = 0; i < num_rows; ++i, sum += row_stride, y += y_stride) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const float* high = sum + half * 256;
        __m512 rest = _mm512_load_ps(high + term_stride);
        if constexpr (kTerms == 3) rest = _mm512_add_ps(rest, _mm512_load_ps(high + 2 * term_stride));
        const __m512 before = _mm512_maskz_loadu_ps(before_mask[half], y + half * 16);
        const __m512 total = _mm512_fmadd_ps(_mm512_add_ps(_mm512_load_ps(high), rest), scale[half], before);
        _mm512_mask_storeu_ps(y + half * 16, mask[half], _mm512_add_ps(total, bias[half]));
      }
    }
  }

  const LinearPanels args_;
  const bool packed_;
  const int64_t num_blocks_, block_rows_;
  alignas(64) float sums_[kTerms * 2 * 256];
  alignas(64) uint8_t weights_[2][kTiles * 2 * kTileBytes];
  alignas(64) uint16_t activations_[kChunkRows / 16 * kTiles * kTerms * kTileBytes / 2];
};

}  // namespace

void linear_panels_amx(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
  const bool exact = args.math == LinearMath::kExact;
  switch (args.weight->dtype()) {
    case DType::kE4M3:
      return exact ? AmxLinear<DType::kE4M3, 3>::run(args, panel_begin, panel_end)
                   : AmxLinear<DType::kE4M3, 2>::run(args, panel_begin, panel_end);
    case DType::kBF16:
      return exact ? AmxLinear<DType::kBF16, 3>::run(args, panel_begin, panel_end)
                   : AmxLinear<DType::kBF16, 2>::run(args, panel_begin, panel_end);
    default:
      return linear_panels_avx512(args, panel_begin, panel_end);  // f32 weights are no bf16
  }
}

}  // namespace moesaic

MOESAIC_TARGET_END

#endif
