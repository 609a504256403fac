// Absorbed MLA attention on the paged latent cache. The keys of a sequence are cut at multiples of kDecodeKeys. Each
// chunk gives a partial softmax of its own; kRunChunks neighbours are merged in order of position into that of a run,
// and the runs likewise. So the bits depend on the sequence alone, while any thread can take any run: a long sequence
// is spread over all threads, and the heads of a short one where they can be. A sequence of one run needs no partial.
// On AMX, bf16 rows go through tiles (mla_decode_amx.h), in groups of kAmxHeads heads.
#include <algorithm>
#include <atomic>
#include <limits>

#include "kernels/cpu/mla_cache.h"
#include "kernels/cpu/mla_decode_amx.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/vector_ops.h"

namespace moesaic {
namespace {

constexpr int64_t kRunChunks = 2;
constexpr int64_t kRunKeys = kRunChunks * kDecodeKeys;
constexpr int64_t kMaxQueries = 8;   // of one span
constexpr int64_t kWaveSlots = 64;   // partials of one token that are computed before they are merged
constexpr int64_t kMaxWidth = 1024;  // a worker widens a chunk that is not f32 on its stack

int64_t num_runs(const AttentionSpan& span) {
  return (span.kv_len + kRunKeys - 1) / kRunKeys;
}

// Keys from position `first` on that query `t` of the span sees; 0 or less if none.
int64_t keys_seen(const AttentionSpan& span, int64_t t, int64_t first) {
  return span.kv_len - span.q_len + t + 1 - first;
}

bool uses_amx(const LatentCache& cache) {
  return active_isa() == Isa::kAmx && cache.rows.dtype() == DType::kBF16 && cache.block_tokens % kAmxTileKeys == 0 &&
         cache.kv_lora_rank % kAmxTileDims == 0 && cache.rope_dim % kAmxTileDims == 0 &&
         cache.rows.row_stride() == latent_width(cache);
}

int64_t num_groups(int64_t num_heads) {
  return (num_heads + kAmxHeads - 1) / kAmxHeads;
}

class Decoder {
 public:
  Decoder(Stream& stream, const MlaDecodeArgs& args)
      : stream_(stream),
        args_(args),
        ops_(vector_ops()),
        num_heads_(args.q.dim(1)),
        width_(latent_width(args.cache)),
        lora_(args.cache.kv_lora_rank),
        amx_(uses_amx(args.cache)),
        head_unit_(amx_ ? kAmxHeads : 1),
        acc_(args.arena->alloc(DType::kF32, {kWaveSlots, num_heads_, lora_})),
        state_(args.arena->alloc(DType::kF32, {2, kWaveSlots, num_heads_})),
        total_(args.arena->alloc(DType::kF32, {2, args.q.dim(0), num_heads_})) {
    if (!amx_) return;
    const int64_t token_words = num_groups(num_heads_) * amx_query_words(width_);
    queries_ = args.arena->alloc(DType::kBF16, {args.q.dim(0), token_words});
  }

  void run() {
    if (many_even_sequences()) return run_by_sequence();
    if (few_runs()) return run_by_heads();
    stream_.pool().parallel_for(static_cast<int64_t>(args_.spans.size()), 1, [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) start(args_.spans[i], 0, num_heads_);
    });
    for (const AttentionSpan& span : args_.spans) {
      for (int64_t run = 0; span.q_len > 0 && run < num_runs(span); ++run) {
        if (num_slots_ + span.q_len > kWaveSlots) flush(/*last=*/false);
        items_[num_items_++] = {&span, run * kRunKeys, num_slots_};
        num_slots_ += span.q_len;
      }
    }
    flush(/*last=*/true);
  }

 private:
  // A run of one span's keys.
  struct Item {
    const AttentionSpan* span;
    int64_t first;  // position of its first key
    int64_t slot;   // of its first query
  };

  // Whole sequences for each worker: one region and no partials that leave its cache. The longest must not keep the
  // others waiting, and every worker needs slots of its own.
  bool many_even_sequences() const {
    const int64_t num_threads = stream_.pool().num_threads();
    int64_t longest = 0, total = 0, slots = 1;
    for (const AttentionSpan& span : args_.spans) {
      longest = std::max(longest, num_runs(span) * span.q_len);
      total += num_runs(span) * span.q_len;
      slots = std::max<int64_t>(slots, span.q_len);
    }
    return num_threads * slots <= kWaveSlots && 4 * num_threads * longest <= total;
  }

  void run_by_sequence() {
    std::atomic<size_t> next{0};
    stream_.pool().run([&](int worker) {
      const int64_t slot = worker * (kWaveSlots / stream_.pool().num_threads());
      for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < args_.spans.size();) {
        run_span(args_.spans[i], slot, 0, num_heads_);
      }
    });
  }

  // Too few runs to occupy all threads: each takes some heads of all sequences.
  bool few_runs() const {
    int64_t total = 0;
    for (const AttentionSpan& span : args_.spans) total += num_runs(span);
    const int64_t num_threads = stream_.pool().num_threads();
    return total == 1 || (total < 2 * num_threads && num_threads * head_unit_ <= num_heads_);
  }

  void run_by_heads() {
    stream_.pool().parallel_for(num_heads_, head_unit_, [&](int64_t begin, int64_t end) {
      for (const AttentionSpan& span : args_.spans) run_span(span, /*slot=*/0, begin, end);
    });
  }

  void run_span(const AttentionSpan& span, int64_t slot, int64_t head_begin, int64_t head_end) const {
    start(span, head_begin, head_end);
    for (int64_t run = 0; span.q_len > 0 && run < num_runs(span); ++run) {
      const Item item{&span, run * kRunKeys, slot};
      compute(item, head_begin, head_end);
      merge(item, head_begin, head_end);
    }
    finish(span, head_begin, head_end);
  }

  // One run that every query sees some of: its partial is the total.
  static bool is_whole(const AttentionSpan& span) { return num_runs(span) == 1 && span.kv_len >= span.q_len; }

  // max and sum of `head`, and the weighted rows.
  struct State {
    float *max, *sum, *acc;
  };
  State total(int64_t token, int64_t head) const {
    return {total_.row<float>(0) + token * num_heads_ + head, total_.row<float>(1) + token * num_heads_ + head,
            args_.out.row<float>(token) + head * lora_};
  }
  // Where the item's query `t` leaves what it saw.
  State partial(const Item& item, int64_t t, int64_t head) const {
    if (is_whole(*item.span)) return total(item.span->q_begin + t, head);
    const int64_t slot = item.slot + t;
    return {state_.row<float>(0) + slot * num_heads_ + head, state_.row<float>(1) + slot * num_heads_ + head,
            acc_.row<float>(slot) + head * lora_};
  }

  void start(const AttentionSpan& span, int64_t head_begin, int64_t head_end) const {
    const int64_t count = head_end - head_begin;
    for (int64_t token = span.q_begin; token < span.q_begin + span.q_len; ++token) {
      if (!is_whole(span)) {
        const State state = total(token, head_begin);
        std::fill_n(state.max, count, -std::numeric_limits<float>::infinity());
        std::fill_n(state.sum, count, 0.0f);
        std::fill_n(state.acc, count * lora_, 0.0f);
      }
#if defined(__x86_64__)
      for (int64_t h = head_begin; amx_ && h < head_end; h += kAmxHeads) {
        pack_amx_queries(args_.q.row<float>(token) + h * width_, std::min(kAmxHeads, head_end - h), width_,
                         packed_queries(token, h));
      }
#endif
    }
  }

  uint16_t* packed_queries(int64_t token, int64_t head) const {
    return queries_.row<uint16_t>(token) + head / kAmxHeads * amx_query_words(width_);
  }

  // A query that saw no key keeps its zeros.
  void finish(const AttentionSpan& span, int64_t head_begin, int64_t head_end) const {
    for (int64_t token = span.q_begin; token < span.q_begin + span.q_len; ++token) {
      for (int64_t h = head_begin; h < head_end; ++h) {
        const State state = total(token, h);
        if (*state.sum != 0.0f) ops_.scale(state.acc, 1.0f / *state.sum, lora_);
      }
    }
  }

  // Computes the partials of the wave, then merges them.
  void flush(bool last) {
    // Neighbours for each thread: it reads the next chunk ahead.
    stream_.pool().parallel_for(num_items_, 1, [this](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) compute(items_[i], 0, num_heads_);
    });
    // Items of one sequence lie together; head by head, each is merged in order.
    stream_.pool().parallel_for(num_heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < num_items_; ++i) merge(items_[i], begin, end);
      for (size_t i = 0; last && i < args_.spans.size(); ++i) finish(args_.spans[i], begin, end);
    });
    num_items_ = num_slots_ = 0;
  }

  void compute(const Item& item, int64_t head_begin, int64_t head_end) const {
    const int64_t end = std::min<int64_t>(item.first + kRunKeys, item.span->kv_len);
    for (int64_t first = item.first; first < end; first += kDecodeKeys) {
#if defined(__x86_64__)
      if (amx_) {
        chunk_amx(item, first, head_begin, head_end);
        continue;
      }
#endif
      chunk(item, first, head_begin, head_end);
    }
  }

  // `from` into the partial softmax of `num_heads` heads that begins at `to`.
  void merge_heads(const State& from, const State& to, int64_t num_heads) const {
    for (int64_t h = 0; h < num_heads; ++h) {
      ops_.decode_merge(from.acc + h * lora_, from.max[h], from.sum[h], lora_, to.acc + h * lora_, to.max + h,
                        to.sum + h);
    }
  }

  // The keys [first, first + kDecodeKeys) of the item: the first ones make its partial, others are merged into it.
  void chunk(const Item& item, int64_t first, int64_t head_begin, int64_t head_end) const {
    const AttentionSpan& span = *item.span;
    const float* keys[kDecodeKeys];
    alignas(64) float wide[kDecodeKeys * kMaxWidth];  // untouched for f32
    alignas(64) float acc[kDecodeHeads * kMaxWidth];
    float max[kDecodeHeads], sum[kDecodeHeads];
    const int64_t num_keys = std::min<int64_t>(kDecodeKeys, span.kv_len - first);
    for (int64_t k = 0; k < num_keys; ++k) {
      const int64_t row = cache_row(args_.cache, span.block_table, first + k);
      keys[k] = args_.cache.rows.row<float>(row);
      if (args_.cache.rows.dtype() == DType::kF32) continue;
      read_latent(args_.cache, row, wide + k * width_, wide + k * width_ + lora_);
      keys[k] = wide + k * width_;
    }
    for (int64_t t = 0; t < span.q_len; ++t) {
      const int64_t seen = std::min(keys_seen(span, t, first), kDecodeKeys);
      for (int64_t h = head_begin; h < head_end && seen > 0; h += kDecodeHeads) {
        const int64_t num_heads = std::min(kDecodeHeads, head_end - h);
        const State run = partial(item, t, h), state = first == item.first ? run : State{max, sum, acc};
        ops_.decode_chunk({.keys = keys,
                           .num_keys = seen,
                           .width = width_,
                           .lora = lora_,
                           .q = args_.q.row<float>(span.q_begin + t) + h * width_,
                           .num_heads = num_heads,
                           .scale = args_.softmax_scale,
                           .max = state.max,
                           .sum = state.sum,
                           .acc = state.acc});
        if (first != item.first) merge_heads(state, run, num_heads);
      }
    }
  }

#if defined(__x86_64__)
  void chunk_amx(const Item& item, int64_t first, int64_t head_begin, int64_t head_end) const {
    const AttentionSpan& span = *item.span;
    alignas(64) float acc[kAmxHeads * kMaxWidth];
    float max[kAmxHeads], sum[kAmxHeads];
    AmxDecodeChunk chunk{.width = width_, .lora = lora_, .scale = args_.softmax_scale};
    for (int64_t key = 0; key < kDecodeKeys && first + key < span.kv_len; key += kAmxTileKeys) {
      const int64_t row = cache_row(args_.cache, span.block_table, first + key);
      chunk.keys[key / kAmxTileKeys] = args_.cache.rows.row<uint16_t>(row);
    }
    // The chunk that this thread will probably take next.
    const int64_t next = first + kDecodeKeys;
    if (next < span.kv_len) {
      const int64_t row = cache_row(args_.cache, span.block_table, next);
      const int64_t num_rows = std::min({kDecodeKeys, span.kv_len - next, args_.cache.block_tokens});
      chunk.prefetch = args_.cache.rows.row<char>(row * 2);
      chunk.prefetch_bytes = num_rows * width_ * 2;
    }
    for (int64_t t = 0; t < span.q_len; ++t) {
      chunk.num_keys = std::min(keys_seen(span, t, first), kDecodeKeys);
      for (int64_t h = head_begin; h < head_end && chunk.num_keys > 0; h += kAmxHeads) {
        const State run = partial(item, t, h), state = first == item.first ? run : State{max, sum, acc};
        chunk.queries = packed_queries(span.q_begin + t, h);
        chunk.num_heads = std::min(kAmxHeads, head_end - h);
        chunk.max = state.max;
        chunk.sum = state.sum;
        chunk.acc = state.acc;
        amx_decode_chunk(chunk);
        chunk.prefetch_bytes = 0;
        if (first != item.first) merge_heads(state, run, chunk.num_heads);
      }
    }
  }
#endif

  // The item's partial into the total.
  void merge(const Item& item, int64_t head_begin, int64_t head_end) const {
    const AttentionSpan& span = *item.span;
    if (is_whole(span)) return;
    for (int64_t t = 0; t < span.q_len; ++t) {
      if (keys_seen(span, t, item.first) <= 0) continue;
      merge_heads(partial(item, t, head_begin), total(span.q_begin + t, head_begin), head_end - head_begin);
    }
  }

  Stream& stream_;
  const MlaDecodeArgs& args_;
  const VectorOps& ops_;
  const int64_t num_heads_, width_, lora_;
  const bool amx_;
  const int64_t head_unit_;  // heads are split between threads at multiples of it
  const Tensor acc_;         // [kWaveSlots, num_heads, lora]
  const Tensor state_;       // [2, kWaveSlots, num_heads]: max, sum
  const Tensor total_;       // [2, num_tokens, num_heads]: max, sum of what is merged into out
  Tensor queries_;           // [num_tokens, words] in the order of tiles; AMX only
  Item items_[kWaveSlots];
  int64_t num_items_ = 0;
  int64_t num_slots_ = 0;
};

}  // namespace

int64_t mla_decode_arena_bytes(int64_t num_tokens, int64_t num_heads, int64_t /*max_kv_len*/,
                               const LatentCache& cache) {
  const int64_t floats = kWaveSlots * num_heads * (cache.kv_lora_rank + 2) + 2 * num_tokens * num_heads;
  // Whatever the ISA: a plan must not depend on the machine that makes it.
  const bool maybe_amx = cache.rows.dtype() == DType::kBF16;
  const int64_t words = maybe_amx ? num_tokens * num_groups(num_heads) * amx_query_words(latent_width(cache)) : 0;
  return floats * 4 + words * 2 + 4 * 64;
}

void mla_decode(Stream& stream, const MlaDecodeArgs& args) {
  check_cache(args.cache);
  check_spans(args.cache, args.spans, args.q.dim(0));
  const int64_t num_heads = args.q.dim(1), width = latent_width(args.cache), lora = args.cache.kv_lora_rank;
  MOESAIC_CHECK_EQ(args.q.dim(2), width);
  MOESAIC_CHECK_EQ(args.out.shape(), (Shape{args.q.dim(0), num_heads, lora}));
  MOESAIC_CHECK_LE(width, kMaxWidth);
  MOESAIC_CHECK_GT(args.softmax_scale, 0.0f);
  for (const AttentionSpan& span : args.spans) MOESAIC_CHECK_LE(span.q_len, kMaxQueries);
  if (args.spans.empty()) return;
  Arena::Scope scope(*args.arena);
  Decoder(stream, args).run();
}

}  // namespace moesaic
