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
int64_t num_pairs(const GemmShape& shape, int64_t columns, Share share) {
  const int64_t rows = ceil_div(shape.rows, 128), tiles = ceil_div(shape.n, columns);
  return shape.groups * (share == Share::kWeights ? ceil_div(rows, 2) * tiles : rows * ceil_div(tiles, 2));
}

// Columns that an SM computes from start to end, counting the last, partly filled round of tiles.
int64_t columns_in_turn(const GemmShape& shape, int64_t columns, Share share) {
  return ceil_div(num_pairs(shape, columns, share), shape.num_sms / 2) * columns;
}

GemmConfig choose_many_rows(const GemmShape& shape, Share share) {
  GemmConfig config = {.kernel = GemmKernel::kManyRows, .tile_columns = 256, .share = share};
  // Narrow tiles read more for what they compute: they must save a twentieth.
  if (shape.grouping != Grouping::kContiguous &&
      columns_in_turn(shape, 192, share) * 20 <= columns_in_turn(shape, 256, share) * 19) {
    config.tile_columns = 192;
  }
  return config;
}

// Clusters of `size` blocks with an SM each that run at once. Their SMs are of one GPC of 16 or 18: of 132, clusters of
// 3, 4, 5 and 8 find 117, 120, 110 and 120.
int64_t clusters_at_once(int64_t num_sms, int64_t size) {
  return 16 / size * num_sms / 16 * (size > 2 ? 9 : 10) / 10;
}

// Enough blocks that every SM has weights in flight, and no more: adding sums costs more the more blocks share them,
// and a second round costs a whole one.
int choose_split(const GemmShape& shape, int tokens, int64_t tiles) {
  const int64_t most = std::min(kMaxSplit, shape.k / 128);
  int64_t split = std::clamp<int64_t>(shape.num_sms / tiles, 1, most);
  // An SM has room for two blocks of 64 rows; they pay where each has much to read.
  if (tokens == 64 && tiles * split <= shape.num_sms && shape.k / 128 > 64 * split) split = std::min(2 * split, most);
  // A block of 128 rows has an SM for itself.
  while (tokens == 128 && split > 1 && tiles > clusters_at_once(shape.num_sms, split)) --split;
  return static_cast<int>(split);
}

}  // namespace

GemmConfig choose_gemm_config(const GemmShape& shape) {
  if (shape.grouping == Grouping::kContiguous) return choose_many_rows(shape, Share::kWeights);
  // Large tiles, unless they leave half of the SMs without any.
  if (shape.rows > kMaxFewRows && num_pairs(shape, 256, Share::kWeights) * 4 > shape.num_sms) {
    return choose_many_rows(shape, Share::kWeights);
  }
  // One tile of 128 rows, and columns enough for most SMs: the tensor cores are the limit after all.
  const bool dense = shape.grouping == Grouping::kDense;
  if (dense && shape.rows > 64 && shape.groups * (shape.n / 256) * 10 >= shape.num_sms * 7) {
    return choose_many_rows(shape, Share::kRows);
  }
  GemmConfig config = {.kernel = GemmKernel::kFewRows, .tokens = 8, .columns = 64, .split = 1};
  while (config.tokens < std::min(shape.rows, kMaxFewRows)) config.tokens *= 2;
  // Many tiles: wider ones read x less often; of 64 rows, two blocks an SM are better.
  if (shape.grouping == Grouping::kMasked) {
    config.columns = config.tokens == 64 ? 64 : 128;
    return config;
  }
  const auto tiles = [&] {
    return ceil_div(shape.rows, config.tokens) * ceil_div(shape.n, config.columns) * shape.groups;
  };
  // Small tiles where they take up the SMs with little or no split: more loads, less to add between blocks.
  const int64_t small_tiles = ceil_div(shape.rows, 64) * ceil_div(shape.n, 32);
  const int64_t small_split = std::min(shape.num_sms / small_tiles, shape.k / 128);
  if (config.tokens >= 64 && shape.groups == 1 && small_split >= 1 && small_split <= 3 &&
      small_tiles <= clusters_at_once(shape.num_sms, small_split) &&
      small_tiles * small_split * 10 >= shape.num_sms * 8) {
    return {.kernel = GemmKernel::kFewRows, .tokens = 64, .columns = 32, .split = static_cast<int>(small_split)};
  }
  const auto split = [&] { return shape.groups > 1 ? 1 : choose_split(shape, config.tokens, tiles()); };
  config.split = split();
  // So also where blocks of 128 rows are more than SMs, or have much to read.
  if (config.tokens == 128 && (tiles() > shape.num_sms || shape.k / 128 > 64 * config.split)) {
    config.columns = 128;
    config.split = split();
  } else if (config.tokens == 128) {
    // Tiles of 64 rows where a block then reads no more: their sums are less to move.
    GemmConfig half = config;
    half.tokens = 64;
    half.split = shape.groups > 1 ? 1 : choose_split(shape, 64, 2 * tiles());
    if (2 * config.split <= 3 * half.split) return half;
  }
  return config;
}

Bf16GemmConfig choose_bf16_gemm_config(int64_t rows, int64_t n, int64_t k, int num_sms) {
  Bf16GemmConfig config;
  const auto tiles = [&] { return ceil_div(rows, config.tokens) * ceil_div(n, config.columns); };
  config.tokens = 256;
  if (rows > kMaxFewRows && tiles() >= num_sms) return config;
  config.tokens = 16;
  while (config.tokens < std::min(rows, kMaxFewRows)) config.tokens *= 2;
  if (tiles() >= num_sms) return config;
  // Two blocks fit on an SM. Few tiles: narrower ones and a split, as far as a block keeps 512 of k; then fewer rows.
  config.columns = 64;
  const int64_t most = std::clamp<int64_t>(k / 512, 1, kMaxSplit);
  while (config.tokens > 16 && tiles() * most * 10 < int64_t{num_sms} * 8) config.tokens /= 2;
  config.split = static_cast<int>(std::clamp<int64_t>(2 * num_sms / tiles(), 1, most));
  return config;
}

}  // namespace moesaic::cuda
