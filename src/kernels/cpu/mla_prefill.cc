// Expanded MLA attention. A run of cached rows is gathered, expanded by kv_b, and packed for the block kernels; then
// every block of queries of every head meets the run's tiles in order, with an online softmax for each query. Tiles lie
// at multiples of kTileKeys, so a query's bits do not depend on the chunk that it came in; the length of a run changes
// speed only.
#include <algorithm>
#include <cstring>
#include <limits>

#include "kernels/cpu/mla_cache.h"
#include "kernels/cpu/vector_ops.h"

namespace moesaic {
namespace {

// Queries and accumulators are read once a run, so a run is as long as about this much packed memory allows.
constexpr int64_t kRunBytes = int64_t{4} << 20;

int64_t padded(int64_t n) {
  return (n + kLanes - 1) / kLanes * kLanes;
}

struct Sizes {
  int64_t num_heads, nope, v_dim, lora, rope;
  int64_t width() const { return nope + rope; }
  int64_t expanded() const { return num_heads * (nope + v_dim); }
  int64_t key_tile() const { return kTileKeys * width(); }  // floats of one head's packed tile
  int64_t value_tile() const { return kTileKeys * padded(v_dim); }
  int64_t tile_floats() const {
    return kTileKeys * (lora + rope + expanded()) + num_heads * (key_tile() + value_tile());
  }
  int64_t run_tiles() const { return std::clamp<int64_t>(kRunBytes / (4 * tile_floats()), 1, 8); }
};

class Prefiller {
 public:
  Prefiller(Stream& stream, const MlaPrefillArgs& args, const Sizes& sizes)
      : stream_(stream),
        args_(args),
        sizes_(sizes),
        ops_(vector_ops()),
        latent_(args.arena->alloc(DType::kF32, {sizes.run_tiles() * kTileKeys, sizes.lora})),
        rope_(args.arena->alloc(DType::kF32, {sizes.run_tiles() * kTileKeys, sizes.rope})),
        kv_(args.arena->alloc(DType::kF32, {sizes.run_tiles() * kTileKeys, sizes.expanded()})),
        keys_(args.arena->alloc(DType::kF32, {sizes.run_tiles() * sizes.num_heads, sizes.key_tile()})),
        values_(args.arena->alloc(DType::kF32, {sizes.run_tiles() * sizes.num_heads, sizes.value_tile()})),
        state_(args.arena->alloc(DType::kF32, {2, args.q.dim(0), sizes.num_heads})) {}

  void run() {
    for (const AttentionSpan& span : args_.spans) {
      start(span);
      const int64_t run_keys = sizes_.run_tiles() * kTileKeys;
      for (int64_t begin = 0; span.q_len > 0 && begin < span.kv_len; begin += run_keys) {
        const int64_t end = std::min<int64_t>(begin + run_keys, span.kv_len);
        expand(span, begin, end);
        attend(span, begin, end);
      }
    }
  }

 private:
  float* max(int64_t token, int64_t head) const { return state_.row<float>(0) + token * sizes_.num_heads + head; }
  float* sum(int64_t token, int64_t head) const { return state_.row<float>(1) + token * sizes_.num_heads + head; }

  void start(const AttentionSpan& span) {
    for (int32_t t = span.q_begin; t < span.q_begin + span.q_len; ++t) {
      std::fill_n(args_.out.row<float>(t), sizes_.num_heads * sizes_.v_dim, 0.0f);
    }
    std::fill_n(max(span.q_begin, 0), span.q_len * sizes_.num_heads, -std::numeric_limits<float>::infinity());
    std::fill_n(sum(span.q_begin, 0), span.q_len * sizes_.num_heads, 0.0f);
  }

  // Keys and values of positions [begin, end).
  void expand(const AttentionSpan& span, int64_t begin, int64_t end) {
    stream_.pool().parallel_for(end - begin, 64, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        read_latent(args_.cache, cache_row(args_.cache, span.block_table, begin + i), latent_.row<float>(i),
                    rope_.row<float>(i));
      }
    });
    const Tensor x = latent_.rows(0, end - begin);
    if (args_.fp8) round_trip_fp8(stream_, x, x);
    linear(stream_, {.x = x, .weight = args_.kv_b, .y = kv_.rows(0, end - begin)});
    const int64_t num_tiles = (end - begin + kTileKeys - 1) / kTileKeys;
    stream_.pool().parallel_each(num_tiles * sizes_.num_heads, [&](int64_t i) {
      const int64_t tile = i / sizes_.num_heads, head = i % sizes_.num_heads;
      const int64_t first = tile * kTileKeys;
      pack_keys(head, first, std::min(kTileKeys, end - begin - first), keys_.row<float>(i));
      pack_values(head, first, std::min(kTileKeys, end - begin - first), values_.row<float>(i));
    });
  }

  // [panel of 16 keys][width][16]; the keys past the end of the last panel are zero.
  void pack_keys(int64_t head, int64_t first, int64_t num_keys, float* to) const {
    const int64_t nope = sizes_.nope, rope = sizes_.rope, width = sizes_.width();
    for (int64_t k = 0; k < padded(num_keys); ++k) {
      float* lane = to + k / kLanes * kLanes * width + k % kLanes;
      if (k >= num_keys) {
        for (int64_t i = 0; i < width; ++i) lane[i * kLanes] = 0.0f;
        continue;
      }
      const float* key = kv_.row<float>(first + k) + head * (nope + sizes_.v_dim);
      const float* turned = rope_.row<float>(first + k);
      for (int64_t i = 0; i < nope; ++i) lane[i * kLanes] = key[i];
      for (int64_t i = 0; i < rope; ++i) lane[(nope + i) * kLanes] = turned[i];
    }
  }

  // [panel of 16 columns][kTileKeys][16]; the columns past v_dim are zero.
  void pack_values(int64_t head, int64_t first, int64_t num_keys, float* to) const {
    const int64_t v_dim = sizes_.v_dim;
    for (int64_t k = 0; k < num_keys; ++k) {
      const float* value = kv_.row<float>(first + k) + head * (sizes_.nope + v_dim) + sizes_.nope;
      for (int64_t column = 0; column < v_dim; column += kLanes) {
        float* lanes = to + column * kTileKeys + k * kLanes;
        const int64_t count = std::min(kLanes, v_dim - column);
        if (count < kLanes) std::fill_n(lanes, kLanes, 0.0f);
        std::memcpy(lanes, value + column, count * sizeof(float));
      }
    }
  }

  void attend(const AttentionSpan& span, int64_t begin, int64_t end) {
    const int64_t num_blocks = (span.q_len + kQueryRows - 1) / kQueryRows;
    // Long blocks, which see most keys, first.
    stream_.pool().parallel_each(num_blocks * sizes_.num_heads, [&](int64_t i) {
      const int64_t block = num_blocks - 1 - i / sizes_.num_heads;
      attend_block(span, i % sizes_.num_heads, block * kQueryRows, begin, end);
    });
  }

  void attend_block(const AttentionSpan& span, int64_t head, int64_t row, int64_t begin, int64_t end) const {
    const int64_t num_rows = std::min(kQueryRows, span.q_len - row), token = span.q_begin + row;
    const int64_t position = span.kv_len - span.q_len + row;
    const int64_t seen = position + num_rows;  // keys that the last row sees
    for (int64_t first = begin; first < std::min(end, seen); first += kTileKeys) {
      const int64_t packed = (first - begin) / kTileKeys * sizes_.num_heads + head;
      ops_.prefill_block({.q = args_.q.row<float>(token) + head * sizes_.width(),
                          .q_stride = args_.q.row_stride(),
                          .num_rows = num_rows,
                          .position = position,
                          .key_begin = first,
                          .num_keys = std::min(kTileKeys, end - first),
                          .keys = keys_.row<float>(packed),
                          .values = values_.row<float>(packed),
                          .width = sizes_.width(),
                          .v_dim = sizes_.v_dim,
                          .scale = args_.softmax_scale,
                          .max = max(token, head),
                          .sum = sum(token, head),
                          .state_stride = sizes_.num_heads,
                          .out = args_.out.row<float>(token) + head * sizes_.v_dim,
                          .out_stride = args_.out.row_stride()});
    }
    if (seen <= begin || seen > end) return;
    // This run held the block's last keys. A query that saw no key keeps its zeros.
    for (int64_t r = 0; r < num_rows; ++r) {
      const float total = *sum(token + r, head);
      if (total == 0.0f) continue;
      ops_.scale(args_.out.row<float>(token + r) + head * sizes_.v_dim, 1.0f / total, sizes_.v_dim);
    }
  }

  Stream& stream_;
  const MlaPrefillArgs& args_;
  const Sizes sizes_;
  const VectorOps& ops_;
  const Tensor latent_, rope_, kv_;  // of one run
  const Tensor keys_, values_;       // packed, by tile and head
  const Tensor state_;               // [2, num_tokens, num_heads]: max, sum
};

}  // namespace

int64_t mla_prefill_arena_bytes(int64_t num_tokens, int64_t num_heads, int64_t nope_dim, int64_t v_dim,
                                const LatentCache& cache) {
  const Sizes sizes{num_heads, nope_dim, v_dim, cache.kv_lora_rank, cache.rope_dim};
  return 4 * (sizes.run_tiles() * sizes.tile_floats() + 2 * num_tokens * num_heads) + 6 * 64;
}

void mla_prefill(Stream& stream, const MlaPrefillArgs& args) {
  check_cache(args.cache);
  check_spans(args.cache, args.spans, args.q.dim(0));
  const int64_t num_heads = args.kv_b->n() / (args.nope_dim + args.v_dim);
  const Sizes sizes{num_heads, args.nope_dim, args.v_dim, args.cache.kv_lora_rank, args.cache.rope_dim};
  MOESAIC_CHECK_EQ(args.q.num_elements(), args.q.dim(0) * num_heads * sizes.width());
  MOESAIC_CHECK_EQ(args.out.num_elements(), args.q.dim(0) * num_heads * sizes.v_dim);
  MOESAIC_CHECK_EQ(args.out.dim(0), args.q.dim(0));
  MOESAIC_CHECK_EQ(args.kv_b->n(), sizes.expanded());
  MOESAIC_CHECK_EQ(args.kv_b->k(), sizes.lora);
  MOESAIC_CHECK_GT(args.softmax_scale, 0.0f);
  if (args.spans.empty() || args.q.dim(0) == 0) return;
  Arena::Scope scope(*args.arena);
  Prefiller(stream, args, sizes).run();
}

}  // namespace moesaic
