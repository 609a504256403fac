#include "kernels/cpu/mla_cache.h"

#include <algorithm>

namespace moesaic {

void check_cache(const LatentCache& cache) {
  MOESAIC_CHECK(cache.rows.dtype() == DType::kF32 || cache.rows.dtype() == DType::kBF16);
  MOESAIC_CHECK_GT(cache.block_tokens, 0);
  MOESAIC_CHECK_EQ(cache.rows.dim(1), latent_width(cache));
}

void check_spans(const LatentCache& cache, std::span<const AttentionSpan> spans, int64_t num_tokens) {
  const int64_t num_blocks = cache.rows.dim(0) / cache.block_tokens;
  for (const AttentionSpan& span : spans) {
    MOESAIC_CHECK(span.q_begin >= 0 && span.q_len >= 0 && int64_t{span.q_begin} + span.q_len <= num_tokens);
    MOESAIC_CHECK_GE(span.kv_len, 0);
    for (int64_t b = 0; b * cache.block_tokens < span.kv_len; ++b) {
      MOESAIC_CHECK(span.block_table[b] >= 0 && span.block_table[b] < num_blocks);
    }
  }
}

void append_latent(Stream& stream, const LatentCache& cache, const Tensor& x, std::span<const int32_t> slots) {
  check_cache(cache);
  const int64_t width = latent_width(cache);
  MOESAIC_CHECK_EQ(x.dim(0), static_cast<int64_t>(slots.size()));
  MOESAIC_CHECK_EQ(x.dim(1), width);
  for (const int32_t slot : slots) MOESAIC_CHECK(slot >= 0 && slot < cache.rows.dim(0));
  if (slots.empty()) return;
  x.f32();
  stream.pool().parallel_for(static_cast<int64_t>(slots.size()), 32, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const float* from = x.row<float>(t);
      if (cache.rows.dtype() == DType::kF32) {
        std::memcpy(cache.rows.row<float>(slots[t]), from, width * sizeof(float));
        continue;
      }
      uint16_t* to = cache.rows.row<uint16_t>(slots[t]);
      for (int64_t i = 0; i < width; ++i) to[i] = f32_to_bf16(from[i]);
    }
  });
}

}  // namespace moesaic
