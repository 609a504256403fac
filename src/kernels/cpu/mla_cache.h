// Reading the paged latent cache: rows of a sequence by position, widened to f32. Internal to the MLA operations.
#pragma once

#include "kernels/ops.h"

namespace moesaic {

inline int64_t latent_width(const LatentCache& cache) {
  return cache.kv_lora_rank + cache.rope_dim;
}

// Cache row of position p.
inline int64_t cache_row(const LatentCache& cache, const int32_t* block_table, int64_t p) {
  return block_table[p / cache.block_tokens] * cache.block_tokens + p % cache.block_tokens;
}

// Cache row `row` as f32: its latents, then its keys. The destinations may be neighbours.
void read_latent(const LatentCache& cache, int64_t row, float* latent, float* rope);

void check_cache(const LatentCache& cache);
void check_spans(const LatentCache& cache, std::span<const AttentionSpan> spans, int64_t num_tokens);

}  // namespace moesaic
