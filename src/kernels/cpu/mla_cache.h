// Reading the paged latent cache: rows of a sequence by position, widened to f32. Internal to the MLA operations.
#pragma once

#include <cstring>

#include "kernels/ops.h"

namespace moesaic {

inline int64_t latent_width(const LatentCache& cache) {
  return cache.kv_lora_rank + cache.rope_dim;
}

// Cache row of position p.
inline int64_t cache_row(const LatentCache& cache, const int32_t* block_table, int64_t p) {
  return block_table[p / cache.block_tokens] * cache.block_tokens + p % cache.block_tokens;
}

// Columns [begin, end) of the row of position p.
inline void read_latent(const LatentCache& cache, const int32_t* block_table, int64_t p, int64_t begin, int64_t end,
                        float* to) {
  const int64_t row = cache_row(cache, block_table, p);
  if (cache.rows.dtype() == DType::kF32) {
    std::memcpy(to, cache.rows.row<float>(row) + begin, (end - begin) * sizeof(float));
    return;
  }
  const uint16_t* from = cache.rows.row<uint16_t>(row);
  for (int64_t i = begin; i < end; ++i) to[i - begin] = bf16_to_f32(from[i]);
}

void check_cache(const LatentCache& cache);
void check_spans(const LatentCache& cache, std::span<const AttentionSpan> spans, int64_t num_tokens);

}  // namespace moesaic
