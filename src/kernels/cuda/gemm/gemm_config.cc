#include "kernels/cuda/gemm/gemm_config.h"

#include <algorithm>

namespace moesaic::cuda {
namespace {

constexpr int64_t kMaxFewRows = 128;
constexpr int64_t kMaxSplit = 8;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Pairs of tiles of 128 rows by `columns`, which are dealt to pairs of SMs.
int64_t num_pairs(const GemmShape& shape, int64_t columns) {
  return shape.groups * ceil_div(ceil_div(shape.rows, 128), 2) * ceil_div(shape.n, columns);
}

// Columns that an SM computes from start to end, counting the last, partly filled round of tiles.
int64_t columns_in_turn(const GemmShape& shape, int64_t columns) {
  return ceil_div(num_pairs(shape, columns), shape.num_sms / 2) * columns;
}

GemmConfig choose_many_rows(const GemmShape& shape) {
  GemmConfig config = {.kernel = GemmKernel::kManyRows, .tile_columns = 256, .share = Share::kWeights};
  // Narrow tiles read more for what they compute: they must save a tenth.
  if (shape.grouping == Grouping::kDense && columns_in_turn(shape, 192) * 10 <= columns_in_turn(shape, 256) * 9) {
    config.tile_columns = 192;
  }
  return config;
}

// Enough blocks that every SM has weights in flight, and no more: adding sums costs more the more blocks share them,
// and a second round costs a whole one. Tiles of many rows spend longer computing, so that an SM reads on only with two
// of them; with 128 rows two also share its tensor cores.
int choose_split(const GemmShape& shape, int tokens, int64_t tiles) {
  const int64_t tenths = tokens < 64 ? 10 : tokens == 64 ? 17 : 13;
  int64_t split = shape.num_sms * tenths / 10 / tiles;
  if (tokens >= 64 && tiles <= shape.num_sms) split = std::max<int64_t>(split, 2);
  return static_cast<int>(std::clamp<int64_t>(split, 1, std::min(kMaxSplit, shape.k / 128)));
}

}  // namespace

GemmConfig choose_gemm_config(const GemmShape& shape) {
  if (shape.grouping == Grouping::kContiguous) return choose_many_rows(shape);
  // Large tiles, unless they leave half of the SMs without any.
  if (shape.rows > kMaxFewRows && num_pairs(shape, 256) * 4 > shape.num_sms) return choose_many_rows(shape);
  // One tile of 128 rows, and columns enough for most SMs: the tensor cores are the limit after all.
  const bool dense = shape.grouping == Grouping::kDense;
  if (dense && shape.rows > 64 && shape.groups * (shape.n / 256) * 10 >= shape.num_sms * 7) {
    return {.kernel = GemmKernel::kManyRows, .tile_columns = 256, .share = Share::kRows};
  }
  GemmConfig config = {.kernel = GemmKernel::kFewRows, .tokens = 8, .warpgroups = 1, .split = 1};
  while (config.tokens < std::min(shape.rows, kMaxFewRows)) config.tokens *= 2;
  const int64_t tiles = ceil_div(shape.rows, config.tokens) * ceil_div(shape.n, 64) * shape.groups;
  if (dense && shape.groups == 1) config.split = choose_split(shape, config.tokens, tiles);
  // Many tiles: wider ones read x less often.
  if (shape.grouping == Grouping::kMasked) config.warpgroups = 2;
  return config;
}

}  // namespace moesaic::cuda
