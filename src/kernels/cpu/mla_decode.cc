// Absorbed MLA attention on the paged latent cache.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/mla_cache.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxWidth = 4096;

// Online softmax over the keys in order, accumulating in `out`.
void decode_head(const MlaDecodeArgs& args, const AttentionSpan& span, int64_t num_keys, const float* q, float* out) {
  const int64_t lora = args.cache.kv_lora_rank, width = latent_width(args.cache);
  float row[kMaxWidth];
  float max = -std::numeric_limits<float>::infinity(), sum = 0.0f;
  std::fill(out, out + lora, 0.0f);
  for (int64_t p = 0; p < num_keys; ++p) {
    read_latent(args.cache, span.block_table, p, 0, width, row);
    float score = 0.0f;
    for (int64_t i = 0; i < width; ++i) score += q[i] * row[i];
    score *= args.softmax_scale;
    const float new_max = std::max(max, score);
    const float keep = std::exp(max - new_max), weight = std::exp(score - new_max);
    for (int64_t i = 0; i < lora; ++i) out[i] = out[i] * keep + weight * row[i];
    sum = sum * keep + weight;
    max = new_max;
  }
  for (int64_t i = 0; i < lora && num_keys > 0; ++i) out[i] /= sum;
}

}  // namespace

int64_t mla_decode_arena_bytes(int64_t, int64_t, int64_t, const LatentCache&) {
  return 0;
}

void mla_decode(Stream& stream, const MlaDecodeArgs& args) {
  check_cache(args.cache);
  check_spans(args.cache, args.spans, args.q.dim(0));
  const int64_t num_heads = args.q.dim(1), width = latent_width(args.cache), lora = args.cache.kv_lora_rank;
  MOESAIC_CHECK_EQ(args.q.dim(2), width);
  MOESAIC_CHECK_EQ(args.out.shape(), (Shape{args.q.dim(0), num_heads, lora}));
  MOESAIC_CHECK_LE(width, kMaxWidth);
  for (const AttentionSpan& span : args.spans) {
    stream.pool().parallel_each(span.q_len * num_heads, [&](int64_t i) {
      const int64_t t = i / num_heads, h = i % num_heads;
      const int64_t num_keys = std::max<int64_t>(0, span.kv_len - span.q_len + t + 1);
      decode_head(args, span, num_keys, args.q.row<float>(span.q_begin + t) + h * width,
                  args.out.row<float>(span.q_begin + t) + h * lora);
    });
  }
}

}  // namespace moesaic
