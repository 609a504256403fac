// Which kernel runs for a shape, and how it is cut: one analytic choice, of numbers alone, no GPU needed.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/kernel_args.h"

namespace moesaic::cuda {

// What the choice depends on.
struct GemmShape {
  Grouping grouping;
  int64_t rows;  // expected in each group; contiguous: all
  int64_t n;
  int64_t k;
  int64_t groups;
  int num_sms;
};

enum class GemmKernel { kManyRows, kFewRows };

struct GemmConfig {
  GemmKernel kernel;
  // Many rows: tiles of 128 rows by 256 or 192 columns, in clusters of two blocks.
  int tile_columns = 0;
  Share share = Share::kWeights;
  // Few rows: tiles of `tokens` rows by `columns` columns; `split` blocks share the k of a tile.
  int tokens = 0;
  int columns = 0;
  int split = 0;
  bool operator==(const GemmConfig&) const = default;
};

GemmConfig choose_gemm_config(const GemmShape& shape);

// bf16: tiles of 16, 32, 64 or 128 rows by 64 or 128 columns; `split` blocks, of 64 columns alone, share the k of a
// tile.
struct Bf16GemmConfig {
  int tokens = 16;
  int columns = 128;
  int split = 1;
};

Bf16GemmConfig choose_bf16_gemm_config(int64_t rows, int64_t n, int64_t k, int num_sms);

}  // namespace moesaic::cuda
