// linear_panels for one SIMD width, as a template over V (linear_avx2.cc, linear_avx512.cc): V has registers of 8 lanes
// and works on one panel, or of 16 lanes and works on two neighbouring panels, 8 columns of each side by side; such one
// or two panels are called a strip, its first and last 16 columns of each panel a half (two registers). Included by
// those two files only, which set the compiler's target.
// Few rows: weights are decoded into registers and used at once (direct). More rows: a strip's 128 k are decoded once
// into a tile that a register-blocked loop reads (tiled). Both do the same operations in the same order per output:
// (w 2^-120) (x 2^64) and (w 2^-56) x are the same product, so their sums have the same bits.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/linear_kernels.h"

#define MOESAIC_INLINE inline __attribute__((always_inline))

namespace moesaic {

template <typename V, DType kDType>
class LinearSimd {
 public:
  static void run(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
    if (args.m <= V::kMaxDirectRows) {
      if (args.m > 0) direct_strips(args, panel_begin, panel_end);
      return;
    }
    const int64_t num_chunks = (args.m + kRowChunk - 1) / kRowChunk;
    for (int64_t chunk = 0; chunk < num_chunks; ++chunk) {
      const int64_t row = args.m * chunk / num_chunks, row_end = args.m * (chunk + 1) / num_chunks;
      for (int64_t panel = panel_begin; panel < panel_end; panel += V::kPanels) {
        tiled_strip(args, strip_of(args, panel, panel_end), row, row_end - row);
      }
    }
  }

 private:
  using Reg = typename V::Reg;
  static constexpr int64_t kCols = PackedWeight::kPanelCols;
  static constexpr int64_t kStripCols = kCols * V::kPanels;
  static constexpr int64_t kDepth = PackedWeight::kScaleGroup;
  static constexpr bool kScaled = kDType == DType::kE4M3;
  static constexpr int64_t kRowBytes = kCols * (kDType == DType::kE4M3 ? 1 : kDType == DType::kBF16 ? 2 : 4);
  // V::decode gives e4m3 times 2^-120; times kLift it is w * PackedWeight::kDecodeFactor.
  static constexpr float kLift = 0x1.0p64f;
  static constexpr int64_t kStripSet = 8;  // strips that share one copy of the lifted activations

  // The second panel of a strip past the last panel repeats the first.
  struct Strip {
    const char* first;
    const char* second;
    int64_t col;
    int64_t num_cols;  // that exist: kStripCols but in the last strip
  };

  // Where the results of a strip accumulate: y, or for a strip with missing columns a buffer of kStripCols.
  struct Out {
    float* data;
    int64_t stride;
    const float* bias;  // added at the last step; or null
  };

  // Up to kDepth k within one scale group.
  struct Step {
    int64_t begin;
    int64_t depth;
    const float* scales;  // of column 0; null: accumulators continue from Out
    bool first;           // nothing in Out yet
    bool last;            // add the bias
  };

  static Strip strip_of(const LinearPanels& args, int64_t panel, int64_t panel_end) {
    const PackedWeight& weight = *args.weight;
    const bool pair = V::kPanels == 2 && panel + 1 < panel_end;
    return {static_cast<const char*>(weight.panel(panel)),
            static_cast<const char*>(weight.panel(pair ? panel + 1 : panel)), panel * kCols,
            std::min(pair ? 2 * kCols : kCols, weight.n() - panel * kCols)};
  }

  static Out out_of(const LinearPanels& args, const Strip& strip, int64_t row, float* edge) {
    if (strip.num_cols < kStripCols) return {edge, kStripCols, nullptr};
    return {args.y + row * args.y_stride + strip.col, args.y_stride,
            args.bias == nullptr ? nullptr : args.bias + strip.col};
  }

  static void copy_edge(const LinearPanels& args, const Strip& strip, const float* edge, int64_t row,
                        int64_t num_rows) {
    for (int64_t i = 0; i < num_rows; ++i) {
      float* y = args.y + (row + i) * args.y_stride + strip.col;
      for (int64_t c = 0; c < strip.num_cols; ++c) {
        const float total = edge[i * kStripCols + c];
        y[c] = args.bias == nullptr ? total : total + args.bias[strip.col + c];
      }
    }
  }

  static Step step_at(const PackedWeight& weight, int64_t begin, int64_t index) {
    const int64_t first_end = kScaled ? weight.first_group_end() : kDepth;
    const int64_t end = std::min(first_end + index * kDepth, weight.k());
    return {begin, end - begin, kScaled ? weight.group_scales(index) : nullptr, begin == 0, end == weight.k()};
  }

  static MOESAIC_INLINE Reg start(const Step& step, const float* out) {
    return kScaled || step.first ? V::zero() : V::load_cols(out);
  }

  static MOESAIC_INLINE void finish(const Step& step, Reg acc, int64_t strip_col, int64_t col, const Out& out,
                                    float* to) {
    if constexpr (kScaled) {
      const Reg total = step.first ? V::zero() : V::load_cols(to);
      acc = V::fma(acc, V::load_cols(step.scales + strip_col + col), total);
    }
    if (step.last && out.bias != nullptr) acc = V::add(acc, V::load_cols(out.bias + col));
    V::store_cols(to, acc);
  }

  // ---- direct: x is lifted, rows kDepth apart, or the activations themselves ----

  // kUnits halves at once: of two strips (4), of one (2), or half kHalf alone (1).
  template <int kRows, int kUnits, int kHalf>
  static void direct_block(const Step& step, const Strip* strips, const float* x, int64_t x_stride, const Out* outs,
                           int64_t row) {
    Reg acc[kUnits][kRows][2];
    const char* first[kUnits];
    const char* second[kUnits];
#pragma GCC unroll 4
    for (int u = 0; u < kUnits; ++u) {
      first[u] = strips[u / 2].first + step.begin * kRowBytes;
      second[u] = strips[u / 2].second + step.begin * kRowBytes;
      const Out& out = outs[u / 2];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const int64_t col = (kUnits == 1 ? kHalf : u % 2) * 16 + v * 8;
          acc[u][r][v] = start(step, out.data + (row + r) * out.stride + col);
        }
      }
    }
    for (int64_t k = 0; k < step.depth; ++k) {
#pragma GCC unroll 4
      for (int u = 0; u < kUnits; ++u) {
        Reg w[2];
        V::template decode<kDType>(first[u] + k * kRowBytes, second[u] + k * kRowBytes, kUnits == 1 ? kHalf : u % 2, w);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const Reg xr = V::broadcast(x + r * x_stride + k);
          acc[u][r][0] = V::fma(xr, w[0], acc[u][r][0]);
          acc[u][r][1] = V::fma(xr, w[1], acc[u][r][1]);
        }
      }
    }
#pragma GCC unroll 4
    for (int u = 0; u < kUnits; ++u) {
      const Out& out = outs[u / 2];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
        for (int v = 0; v < 2; ++v) {
          const int64_t col = (kUnits == 1 ? kHalf : u % 2) * 16 + v * 8;
          finish(step, acc[u][r][v], strips[u / 2].col, col, out, out.data + (row + r) * out.stride + col);
        }
      }
    }
  }

  template <int kRows>
  static void direct_rows(const Step& step, const Strip* strips, int num_strips, const float* x, int64_t x_stride,
                          const Out* outs, int64_t row) {
    int s = 0;
    if constexpr (kRows == 1) {
      for (; s + 2 <= num_strips; s += 2) direct_block<1, 4, 0>(step, strips + s, x, x_stride, outs + s, row);
    }
    for (; s < num_strips; ++s) {
      if constexpr (kRows * 4 <= V::kMaxAccumulators) {
        direct_block<kRows, 2, 0>(step, strips + s, x, x_stride, outs + s, row);
      } else {
        direct_block<kRows, 1, 0>(step, strips + s, x, x_stride, outs + s, row);
        direct_block<kRows, 1, 1>(step, strips + s, x, x_stride, outs + s, row);
      }
    }
  }

  template <int kRows>
  static void direct_dispatch(int64_t num_rows, const Step& step, const Strip* strips, int num_strips, const float* x,
                              int64_t x_stride, const Out* outs, int64_t row) {
    if (num_rows == kRows) return direct_rows<kRows>(step, strips, num_strips, x, x_stride, outs, row);
    if constexpr (kRows > 1) direct_dispatch<kRows - 1>(num_rows, step, strips, num_strips, x, x_stride, outs, row);
  }

  static void direct_strips(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
    alignas(64) float edge[V::kMaxDirectRows * kStripCols];
    alignas(64) float lifted[V::kMaxDirectRows * kDepth];
    const int64_t num_blocks = (args.m + V::kDirectRows - 1) / V::kDirectRows;
    for (int64_t panel = panel_begin; panel < panel_end;) {
      Strip strips[kStripSet];
      Out outs[kStripSet];
      int num_strips = 0;
      for (; num_strips < kStripSet && panel < panel_end; ++num_strips, panel += V::kPanels) {
        strips[num_strips] = strip_of(args, panel, panel_end);
        outs[num_strips] = out_of(args, strips[num_strips], 0, edge);
      }
      for (int64_t begin = 0, index = 0; begin < args.weight->k(); ++index) {
        const Step step = step_at(*args.weight, begin, index);
        if (kScaled) lift(args, step, lifted);
        for (int64_t b = 0, row = 0; b < num_blocks; ++b) {
          const int64_t num_rows = args.m / num_blocks + (b < args.m % num_blocks);
          const float* x = kScaled ? lifted + row * kDepth : args.x + row * args.x_stride + begin;
          direct_dispatch<V::kDirectRows>(num_rows, step, strips, num_strips, x, kScaled ? kDepth : args.x_stride, outs,
                                          row);
          row += num_rows;
        }
        begin += step.depth;
      }
      const int last = num_strips - 1;
      if (outs[last].data == edge) copy_edge(args, strips[last], edge, 0, args.m);
    }
  }

  static void lift(const LinearPanels& args, const Step& step, float* lifted) {
    const Reg factor = V::broadcast(&kLiftValue);
    for (int64_t i = 0; i < args.m; ++i) {
      const float* x = args.x + i * args.x_stride + step.begin;
      int64_t k = 0;
      for (; k + V::kLanes <= step.depth; k += V::kLanes) {
        V::store(lifted + i * kDepth + k, V::mul(V::loadu(x + k), factor));
      }
      for (; k < step.depth; ++k) lifted[i * kDepth + k] = x[k] * kLift;
    }
  }
  static constexpr float kLiftValue = kLift;

  // ---- tiled: tile is [2 halves][depth][2 registers] ----

  template <int kRows>
  static void tile_block(const Step& step, const float* tile, int64_t half, const float* x, int64_t x_stride,
                         int64_t strip_col, const Out& out) {
    const float* b = tile + half * step.depth * 2 * V::kLanes;
    const int64_t col = half * 16;
    Reg acc[kRows][2];
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) acc[r][v] = start(step, out.data + r * out.stride + col + v * 8);
    }
    for (int64_t k = 0; k < step.depth; ++k) {
      const Reg b0 = V::load(b), b1 = V::load(b + V::kLanes);
      b += 2 * V::kLanes;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const Reg xr = V::broadcast(x + r * x_stride + k);
        acc[r][0] = V::fma(xr, b0, acc[r][0]);
        acc[r][1] = V::fma(xr, b1, acc[r][1]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
      for (int v = 0; v < 2; ++v) {
        finish(step, acc[r][v], strip_col, col + v * 8, out, out.data + r * out.stride + col + v * 8);
      }
    }
  }

  template <int kRows>
  static void tile_dispatch(int64_t num_rows, const Step& step, const float* tile, const float* x, int64_t x_stride,
                            int64_t strip_col, const Out& out) {
    if (num_rows == kRows) {
      tile_block<kRows>(step, tile, 0, x, x_stride, strip_col, out);
      tile_block<kRows>(step, tile, 1, x, x_stride, strip_col, out);
      return;
    }
    if constexpr (kRows > 1) tile_dispatch<kRows - 1>(num_rows, step, tile, x, x_stride, strip_col, out);
  }

  static void decode_tile(const Strip& strip, const Step& step, float* tile) {
    const Reg factor = V::broadcast(&kLiftValue);
    for (int64_t k = 0; k < step.depth; ++k) {
      const int64_t at = (step.begin + k) * kRowBytes;
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        Reg w[2];
        V::template decode<kDType>(strip.first + at, strip.second + at, half, w);
        float* to = tile + (half * step.depth + k) * 2 * V::kLanes;
        V::store(to, kScaled ? V::mul(w[0], factor) : w[0]);
        V::store(to + V::kLanes, kScaled ? V::mul(w[1], factor) : w[1]);
      }
    }
  }

  // Rows are cut into blocks of nearly one size: a short last block would wait for its few accumulators.
  static void tiled_strip(const LinearPanels& args, const Strip& strip, int64_t row_begin, int64_t num_rows) {
    alignas(64) float tile[kDepth * kStripCols];
    alignas(64) float edge[kRowChunk * kStripCols];
    const int64_t num_blocks = (num_rows + V::kTileRows - 1) / V::kTileRows;
    for (int64_t begin = 0, index = 0; begin < args.weight->k(); ++index) {
      const Step step = step_at(*args.weight, begin, index);
      decode_tile(strip, step, tile);
      Out out = out_of(args, strip, row_begin, edge);
      const float* x = args.x + row_begin * args.x_stride + begin;
      for (int64_t b = 0; b < num_blocks; ++b) {
        const int64_t rows = num_rows / num_blocks + (b < num_rows % num_blocks);
        tile_dispatch<V::kTileRows>(rows, step, tile, x, args.x_stride, strip.col, out);
        x += rows * args.x_stride;
        out.data += rows * out.stride;
      }
      begin += step.depth;
    }
    if (strip.num_cols < kStripCols) copy_edge(args, strip, edge, row_begin, num_rows);
  }
};

template <typename V>
void linear_panels_simd(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
  switch (args.weight->dtype()) {
    case DType::kE4M3:
      return LinearSimd<V, DType::kE4M3>::run(args, panel_begin, panel_end);
    case DType::kBF16:
      return LinearSimd<V, DType::kBF16>::run(args, panel_begin, panel_end);
    default:
      return LinearSimd<V, DType::kF32>::run(args, panel_begin, panel_end);
  }
}

}  // namespace moesaic
