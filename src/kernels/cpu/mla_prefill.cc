// Expanded MLA attention: keys and values of a tile of cached rows are made by kv_b, then every query meets the tile.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/mla_cache.h"

namespace moesaic {
namespace {

constexpr int64_t kTileKeys = 128;

struct Tile {
  int64_t begin;  // position of the first key
  int64_t end;
  const float* kv;    // [kTileKeys, num_heads * (nope + v)]
  const float* rope;  // [kTileKeys, rope]
};

// One query of one head meets a tile: online softmax, key by key; `out` accumulates.
void meet_tile(const MlaPrefillArgs& args, const Tile& tile, int64_t num_heads, int64_t h, int64_t num_keys,
               const float* q, float& max, float& sum, float* out) {
  const int64_t nope = args.nope_dim, v_dim = args.v_dim, rope = args.cache.rope_dim;
  for (int64_t p = tile.begin; p < std::min(tile.end, num_keys); ++p) {
    const float* key = tile.kv + ((p - tile.begin) * num_heads + h) * (nope + v_dim);
    const float* key_rope = tile.rope + (p - tile.begin) * rope;
    float score = 0.0f;
    for (int64_t i = 0; i < nope; ++i) score += q[i] * key[i];
    for (int64_t i = 0; i < rope; ++i) score += q[nope + i] * key_rope[i];
    score *= args.softmax_scale;
    const float new_max = std::max(max, score);
    const float keep = std::exp(max - new_max), weight = std::exp(score - new_max);
    for (int64_t i = 0; i < v_dim; ++i) out[i] = out[i] * keep + weight * key[nope + i];
    sum = sum * keep + weight;
    max = new_max;
  }
}

}  // namespace

int64_t mla_prefill_arena_bytes(int64_t num_tokens, int64_t num_heads, int64_t nope_dim, int64_t v_dim,
                                const LatentCache& cache) {
  const int64_t tile = kTileKeys * (latent_width(cache) + num_heads * (nope_dim + v_dim));
  return (tile + 2 * num_tokens * num_heads) * 4 + 5 * 64;
}

void mla_prefill(Stream& stream, const MlaPrefillArgs& args) {
  check_cache(args.cache);
  check_spans(args.cache, args.spans, args.q.dim(0));
  const int64_t num_heads = args.q.dim(1), nope = args.nope_dim, v_dim = args.v_dim;
  const int64_t lora = args.cache.kv_lora_rank, rope = args.cache.rope_dim;
  MOESAIC_CHECK_EQ(args.q.dim(2), nope + rope);
  MOESAIC_CHECK_EQ(args.out.shape(), (Shape{args.q.dim(0), num_heads, v_dim}));
  MOESAIC_CHECK_EQ(args.kv_b->n(), num_heads * (nope + v_dim));
  MOESAIC_CHECK_EQ(args.kv_b->k(), lora);
  if (args.q.dim(0) == 0) return;
  Arena::Scope scope(*args.arena);
  const Tensor latent = args.arena->alloc(DType::kF32, {kTileKeys, lora});
  const Tensor key_rope = args.arena->alloc(DType::kF32, {kTileKeys, rope});
  const Tensor kv = args.arena->alloc(DType::kF32, {kTileKeys, num_heads * (nope + v_dim)});
  const Tensor max = args.arena->alloc(DType::kF32, {args.q.dim(0), num_heads});
  const Tensor sum = args.arena->alloc(DType::kF32, {args.q.dim(0), num_heads});
  for (const AttentionSpan& span : args.spans) {
    const Tensor out = args.out.rows(span.q_begin, span.q_begin + span.q_len);
    std::fill_n(out.f32(), out.num_elements(), 0.0f);
    std::fill_n(max.f32(), span.q_len * num_heads, -std::numeric_limits<float>::infinity());
    std::fill_n(sum.f32(), span.q_len * num_heads, 0.0f);
    for (int64_t begin = 0; begin < span.kv_len && span.q_len > 0; begin += kTileKeys) {
      const int64_t end = std::min<int64_t>(begin + kTileKeys, span.kv_len);
      for (int64_t p = begin; p < end; ++p) {
        read_latent(args.cache, span.block_table, p, 0, lora, latent.row<float>(p - begin));
        read_latent(args.cache, span.block_table, p, lora, lora + rope, key_rope.row<float>(p - begin));
      }
      const Tensor x = latent.rows(0, end - begin);
      if (args.fp8) round_trip_fp8(stream, x, x);
      linear(stream, {.x = x, .weight = args.kv_b, .y = kv.rows(0, end - begin)});
      const Tile tile{begin, end, kv.f32(), key_rope.f32()};
      stream.pool().parallel_each(span.q_len * num_heads, [&](int64_t i) {
        const int64_t t = i / num_heads, h = i % num_heads;
        meet_tile(args, tile, num_heads, h, span.kv_len - span.q_len + t + 1,
                  args.q.row<float>(span.q_begin + t) + h * (nope + rope), max.f32()[i], sum.f32()[i],
                  out.row<float>(t) + h * v_dim);
      });
    }
    for (int64_t i = 0; i < span.q_len * num_heads; ++i) {
      const float factor = sum.f32()[i] > 0.0f ? 1.0f / sum.f32()[i] : 0.0f;
      for (int64_t j = 0; j < v_dim; ++j) out.f32()[i * v_dim + j] *= factor;
    }
  }
}

}  // namespace moesaic
