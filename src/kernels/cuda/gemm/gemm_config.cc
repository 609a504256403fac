#include "kernels/cuda/gemm/gemm_config.h"

#include <algorithm>

namespace moesaic::cuda {
namespace {

constexpr int64_t kMaxFewRows = 128;
constexpr int64_t kMaxSplit = 8;

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Columns that an SM computes from start to end, counting the last, partly filled round of tiles: pairs of tiles of
// 128 rows by 2 `columns` are dealt to pairs of SMs.
int64_t columns_in_turn(const GemmShape& shape, int64_t columns) {
  const int64_t pairs = shape.groups * ceil_div(ceil_div(shape.rows, 128), 2) * ceil_div(shape.n, 2 * columns);
  return ceil_div(pairs, shape.num_sms / 2) * columns;
}

GemmConfig choose_many_rows(const GemmShape& shape) {
  GemmConfig config = {.kernel = GemmKernel::kManyRows, .warpgroup_columns = 128, .share = Share::kWeights};
  if (shape.grouping == Grouping::kContiguous) return config;
  // Narrow tiles cost more per column (two scales a warpgroup, less reuse): they must save a tenth.
  for (int columns : {112, 88}) {
    if (columns == 88 && shape.grouping == Grouping::kMasked) continue;
    const int64_t least = columns_in_turn(shape, config.warpgroup_columns);
    if (columns_in_turn(shape, columns) * 10 <= least * 9) config.warpgroup_columns = columns;
  }
  return config;
}

// Enough blocks that every SM has weights in flight, and no more than fit at once: a second round costs a whole one,
// and adding sums costs more the more blocks share them. Tiles of many rows spend longer computing, so that an SM needs
// two of them to keep reading.
int choose_split(const GemmShape& shape, int tokens, int64_t tiles) {
  const int64_t blocks = tokens >= 64 ? shape.num_sms * 17 / 10 : shape.num_sms;
  return static_cast<int>(std::clamp<int64_t>(blocks / tiles, 1, std::min(kMaxSplit, shape.k / 128)));
}

}  // namespace

GemmConfig choose_gemm_config(const GemmShape& shape) {
  if (shape.grouping == Grouping::kContiguous || shape.rows > kMaxFewRows) return choose_many_rows(shape);
  // One tile of 128 rows, and columns enough for most SMs: the tensor cores are the limit after all.
  const bool dense = shape.grouping == Grouping::kDense;
  if (dense && shape.rows > 64 && shape.groups * (shape.n / 256) * 10 >= shape.num_sms * 7) {
    return {.kernel = GemmKernel::kManyRows, .warpgroup_columns = 128, .share = Share::kRows};
  }
  GemmConfig config = {.kernel = GemmKernel::kFewRows, .tokens = 8, .warpgroups = 1, .split = 1};
  while (config.tokens < shape.rows) config.tokens *= 2;
  const int64_t tiles = ceil_div(shape.n, 64) * shape.groups;
  if (dense && shape.groups == 1) config.split = choose_split(shape, config.tokens, tiles);
  // Many tiles: wider ones read x less often.
  if (shape.grouping == Grouping::kMasked) config.warpgroups = 2;
  return config;
}

}  // namespace moesaic::cuda
