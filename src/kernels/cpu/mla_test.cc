// mla_decode, mla_prefill and append_latent against double precision, with poisoned and shuffled caches.
#include <algorithm>
#include <numeric>
#include <tuple>

#include "kernels/cpu/op_test_util.h"

namespace moesaic {
namespace {

using test::Owned;

struct Dims {
  int64_t heads = 8, lora = 512, rope = 64, nope = 128, v = 128;
  DType dtype = DType::kF32;
  int64_t block_tokens = 64;
};

struct Length {
  int32_t kv_len;
  int32_t q_len;
};

// A cache of some sequences in shuffled blocks. Every row that no sequence owns is NaN.
struct World {
  Dims dims;
  LatentCache cache;
  Owned rows;
  std::vector<std::vector<int32_t>> tables;
  std::vector<AttentionSpan> spans;
  int64_t num_tokens = 0;

  World(Rng& rng, const Dims& d, const std::vector<Length>& lengths) : dims(d) {
    int64_t num_blocks = 3;
    for (const Length& l : lengths) num_blocks += (l.kv_len + d.block_tokens - 1) / d.block_tokens;
    rows = Owned(d.dtype, {num_blocks * d.block_tokens, d.lora + d.rope});
    for (int64_t i = 0; i < rows.tensor.num_elements(); ++i) set(i, test::kNan);
    cache = {rows, d.block_tokens, d.lora, d.rope};
    std::vector<int32_t> ids(num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    for (size_t i = ids.size(); i > 1; --i) std::swap(ids[i - 1], ids[rng.below(i)]);
    for (const Length& l : lengths) {
      std::vector<int32_t> table;
      for (int64_t b = 0; b * d.block_tokens < l.kv_len; ++b) table.push_back(ids.back()), ids.pop_back();
      tables.push_back(table);
      for (int64_t p = 0; p < l.kv_len; ++p) {
        for (int64_t i = 0; i < d.lora + d.rope; ++i) set(row(table, p) * (d.lora + d.rope) + i, test::gaussian(rng));
      }
    }
    for (size_t s = 0; s < lengths.size(); ++s) {
      spans.push_back({static_cast<int32_t>(num_tokens), lengths[s].q_len, lengths[s].kv_len, tables[s].data()});
      num_tokens += lengths[s].q_len;
    }
  }

  int64_t row(const std::vector<int32_t>& table, int64_t p) const {
    return table[p / dims.block_tokens] * dims.block_tokens + p % dims.block_tokens;
  }
  void set(int64_t i, float value) {
    if (dims.dtype == DType::kF32) {
      rows.tensor.data<float>()[i] = value;
    } else {
      rows.tensor.data<uint16_t>()[i] = f32_to_bf16(value);
    }
  }
  double at(const AttentionSpan& span, int64_t p, int64_t i) const {
    const int64_t r = span.block_table[p / dims.block_tokens] * dims.block_tokens + p % dims.block_tokens;
    const int64_t k = r * (dims.lora + dims.rope) + i;
    return dims.dtype == DType::kF32 ? rows.tensor.data<float>()[k] : bf16_to_f32(rows.tensor.data<uint16_t>()[k]);
  }
};

// Softmax attention of one query over num_keys keys; key(p, i) and value(p, i) in double.
template <typename Key, typename Value>
std::vector<double> attend(const float* q, int64_t width, int64_t v_dim, int64_t num_keys, double scale, Key key,
                           Value value) {
  std::vector<double> p(num_keys), out(v_dim, 0.0);
  double max = -1e300, sum = 0;
  for (int64_t k = 0; k < num_keys; ++k) {
    for (int64_t i = 0; i < width; ++i) p[k] += q[i] * key(k, i);
    max = std::max(max, p[k] *= scale);
  }
  for (double& x : p) sum += x = std::exp(x - max);
  for (int64_t k = 0; k < num_keys; ++k) {
    for (int64_t i = 0; i < v_dim; ++i) out[i] += p[k] / sum * value(k, i);
  }
  return out;
}

void decode(const World& w, const Owned& q, const Owned& out, std::span<const AttentionSpan> spans, int threads) {
  ThreadPool pool(threads);
  Stream stream(pool);
  int32_t max_kv_len = 0;
  for (const AttentionSpan& span : spans) max_kv_len = std::max(max_kv_len, span.kv_len);
  Arena arena(mla_decode_arena_bytes(q.tensor.dim(0), w.dims.heads, max_kv_len, w.cache));
  mla_decode(stream, {.q = q, .cache = w.cache, .spans = spans, .softmax_scale = 0.05f, .out = out, .arena = &arena});
  EXPECT_EQ(arena.used_bytes(), 0);
}

class MlaDecode : public testing::TestWithParam<Dims> {};

TEST_P(MlaDecode, MatchesDouble) {
  const Dims d = GetParam();
  test::for_each_isa([&] {
    Rng rng(12);
    const World w(rng, d, {{1, 1}, {2, 2}, {63, 1}, {64, 3}, {65, 4}, {130, 8}, {200, 5}, {9, 8}, {7, 7}, {411, 1}});
    const Owned q = test::random_f32(rng, {w.num_tokens, d.heads, d.lora + d.rope});
    const Owned out = test::filled_f32({w.num_tokens, d.heads, d.lora}, test::kNan);
    decode(w, q, out, w.spans, 2);
    for (const AttentionSpan& span : w.spans) {
      for (int64_t i = 0; i < span.q_len * d.heads; ++i) {
        const int64_t row = span.q_begin * d.heads + i;
        const auto at = [&](int64_t p, int64_t j) { return w.at(span, p, j); };
        const std::vector<double> want = attend(q.f32() + row * (d.lora + d.rope), d.lora + d.rope, d.lora,
                                                span.kv_len - span.q_len + i / d.heads + 1, 0.05f, at, at);
        // AMX rounds queries and probabilities to 16 bits.
        const double bound = active_isa() == Isa::kAmx ? 2e-5 : 5e-6;
        for (int64_t j = 0; j < d.lora; ++j) ASSERT_NEAR(out.f32()[row * d.lora + j], want[j], bound) << row;
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Shapes, MlaDecode,
                         testing::Values(Dims{}, Dims{.dtype = DType::kBF16}, Dims{.heads = 1, .block_tokens = 16},
                                         Dims{.heads = 13, .lora = 96, .dtype = DType::kBF16, .block_tokens = 16},
                                         Dims{.heads = 5, .lora = 40, .rope = 6, .block_tokens = 7},
                                         Dims{.heads = 3, .lora = 33, .rope = 2, .dtype = DType::kBF16},
                                         Dims{.heads = 16, .lora = 128, .rope = 16}));

class MlaDecodeBatch : public testing::TestWithParam<std::tuple<bool, Dims>> {};

TEST_P(MlaDecodeBatch, SameBitsAloneAndOnAnyThreads) {
  const auto& [even, d] = GetParam();  // many short sequences take another schedule
  test::for_each_isa([&] {
    Rng rng(13);
    std::vector<Length> lengths = {{700, 1}, {1, 1}, {0, 1}, {64, 4}, {1500, 2}, {65, 8}, {3, 3}, {256, 1}, {0, 0}};
    if (even)
      lengths = {{100, 1}, {130, 1}, {0, 1},  {64, 2}, {90, 2},  {65, 1},  {3, 3},  {111, 1},
                 {0, 0},   {128, 1}, {99, 2}, {70, 1}, {127, 1}, {128, 2}, {120, 1}};
    const World w(rng, d, lengths);
    const Owned q = test::random_f32(rng, {w.num_tokens, d.heads, d.lora + d.rope});
    std::vector<Owned> outs;
    for (const int threads : {1, 2, 3}) {
      outs.push_back(test::filled_f32({w.num_tokens, d.heads, d.lora}, test::kNan));
      decode(w, q, outs.back(), w.spans, threads);
    }
    EXPECT_TRUE(test::same_bits(outs[0], outs[1]));
    EXPECT_TRUE(test::same_bits(outs[0], outs[2]));
    for (const AttentionSpan& span : w.spans) {
      // Token by token: as if each had been decoded in a step of its own.
      for (int32_t t = 0; t < span.q_len; ++t) {
        const AttentionSpan one{span.q_begin + t, 1, span.kv_len - span.q_len + t + 1, span.block_table};
        if (one.kv_len <= 0) continue;
        const Owned alone = test::filled_f32({w.num_tokens, d.heads, d.lora}, test::kNan);
        decode(w, q, alone, {&one, 1}, 1 + t % 3);
        EXPECT_TRUE(test::same_bits(alone.tensor.rows(one.q_begin, one.q_begin + 1),
                                    outs[0].tensor.rows(one.q_begin, one.q_begin + 1)));
        for (int64_t r = 0; r < w.num_tokens; ++r) {
          if (r == one.q_begin) continue;
          ASSERT_TRUE(std::isnan(alone.tensor.row<float>(r)[0]));
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Lengths, MlaDecodeBatch,
                         testing::Combine(testing::Values(false, true),
                                          testing::Values(Dims{.heads = 8, .lora = 96, .rope = 16},
                                                          Dims{.heads = 11, .lora = 96, .dtype = DType::kBF16})));

TEST(MlaDecode, PadRowsGiveZerosAndNoNanLeaks) {
  const Dims d{.heads = 4, .lora = 32, .rope = 8};
  test::for_each_isa([&] {
    Rng rng(14);
    for (const int real : {1, 2, 3, 5, 7}) {
      std::vector<Length> lengths;
      for (int s = 0; s < real; ++s) lengths.push_back({40 + 30 * s, 1});
      for (int s = real; s < 8; ++s) lengths.push_back({0, 1});
      const World w(rng, d, lengths);
      const Owned q = test::random_f32(rng, {8, 4, 40}), out = test::filled_f32({8, 4, 32}, test::kNan);
      std::fill_n(q.tensor.row<float>(real), (8 - real) * 4 * 40, test::kNan);
      decode(w, q, out, w.spans, 2);
      for (int64_t t = 0; t < 8; ++t) {
        for (int64_t i = 0; i < 4 * 32; ++i) {
          const float value = out.tensor.row<float>(t)[i];
          EXPECT_TRUE(t < real ? std::isfinite(value) && value != 0.0f : value == 0.0f) << t;
        }
      }
    }
  });
}

TEST(MlaDecode, LargeScoresDoNotOverflow) {
  const Dims d{.heads = 2, .lora = 16, .rope = 4};
  test::for_each_isa([&] {
    Rng rng(15);
    const World w(rng, d, {{300, 2}});
    const Owned q = test::random_f32(rng, {2, 2, 20}, 1e4f), out = test::filled_f32({2, 2, 16}, test::kNan);
    decode(w, q, out, w.spans, 2);
    for (const float v : test::values(out)) EXPECT_TRUE(std::isfinite(v));
  });
}

struct Expanded {
  Owned weight;
  PackedWeight packed;
  Expanded(Rng& rng, const Dims& d)
      : weight(test::random_f32(rng, {d.heads * (d.nope + d.v), d.lora}, 1.0f / std::sqrt(static_cast<float>(d.lora)))),
        packed(std::move(PackedWeight::pack({.weight = weight}).value())) {}
};

void prefill(const World& w, const Expanded& e, const Owned& q, const Owned& out, std::span<const AttentionSpan> spans,
             int threads, bool fp8 = false) {
  ThreadPool pool(threads);
  Stream stream(pool);
  const Dims& d = w.dims;
  Arena arena(mla_prefill_arena_bytes(q.tensor.dim(0), d.heads, d.nope, d.v, w.cache));
  mla_prefill(stream, {.q = q,
                       .cache = w.cache,
                       .kv_b = &e.packed,
                       .fp8 = fp8,
                       .nope_dim = d.nope,
                       .v_dim = d.v,
                       .spans = spans,
                       .softmax_scale = 0.08f,
                       .out = out,
                       .arena = &arena});
  EXPECT_EQ(arena.used_bytes(), 0);
}

class MlaPrefill : public testing::TestWithParam<Dims> {};

TEST_P(MlaPrefill, MatchesDouble) {
  const Dims d = GetParam();
  test::for_each_isa([&] {
    Rng rng(16);
    const World w(rng, d, {{7, 7}, {12, 7}, {47, 7}, {207, 7}, {1, 1}, {129, 129}, {150, 20}, {0, 0}});
    const Expanded e(rng, d);
    const Owned q = test::random_f32(rng, {w.num_tokens, d.heads, d.nope + d.rope});
    const Owned out = test::filled_f32({w.num_tokens, d.heads, d.v}, test::kNan);
    prefill(w, e, q, out, w.spans, 2);
    for (const AttentionSpan& span : w.spans) {
      std::vector<double> kv(span.kv_len * d.heads * (d.nope + d.v));
      const int64_t n = d.heads * (d.nope + d.v);
      for (int64_t p = 0; p < span.kv_len; ++p) {
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t i = 0; i < d.lora; ++i) kv[p * n + j] += w.at(span, p, i) * e.weight.f32()[j * d.lora + i];
        }
      }
      for (int64_t i = 0; i < span.q_len * d.heads; ++i) {
        const int64_t row = span.q_begin * d.heads + i, h = i % d.heads;
        const auto key = [&](int64_t p, int64_t j) {
          return j < d.nope ? kv[p * n + h * (d.nope + d.v) + j] : w.at(span, p, d.lora + j - d.nope);
        };
        const auto value = [&](int64_t p, int64_t j) { return kv[p * n + h * (d.nope + d.v) + d.nope + j]; };
        const std::vector<double> want = attend(q.f32() + row * (d.nope + d.rope), d.nope + d.rope, d.v,
                                                span.kv_len - span.q_len + i / d.heads + 1, 0.08f, key, value);
        for (int64_t j = 0; j < d.v; ++j) ASSERT_NEAR(out.f32()[row * d.v + j], want[j], 1e-5) << row;
      }
    }
  });
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, MlaPrefill,
    testing::Values(Dims{.heads = 2, .lora = 128}, Dims{.heads = 3, .lora = 64, .dtype = DType::kBF16},
                    Dims{.heads = 1, .lora = 40, .rope = 6, .nope = 10, .v = 13, .block_tokens = 16},
                    Dims{.heads = 5, .lora = 32, .rope = 16, .nope = 32, .v = 32},
                    Dims{.heads = 2, .lora = 24, .rope = 2, .nope = 33, .v = 7, .block_tokens = 5}));

class MlaChunks : public testing::TestWithParam<int> {};

TEST_P(MlaChunks, AnyChunksGiveTheBitsOfTheWhole) {
  const Dims d{.heads = 3, .lora = 64, .rope = 16, .nope = 32, .v = 24};
  const int32_t chunk = GetParam();
  test::for_each_isa([&](Isa isa) {
    for (const bool fp8 : {false, true}) {
      Rng rng(17);
      const int32_t length = isa == Isa::kPlain ? 300 : 2300;
      const World w(rng, d, {{length, length}});
      const Expanded e(rng, d);
      const Owned q = test::random_f32(rng, {length, d.heads, d.nope + d.rope});
      const Owned whole = test::filled_f32({length, d.heads, d.v}, test::kNan);
      const Owned parts = test::filled_f32({length, d.heads, d.v}, test::kNan);
      prefill(w, e, q, whole, w.spans, 2, fp8);
      for (int32_t begin = 0; begin < length; begin += chunk) {
        const int32_t end = std::min(begin + chunk, length);
        const AttentionSpan span{begin, end - begin, end, w.tables[0].data()};
        prefill(w, e, q, parts, {&span, 1}, 1 + begin / chunk % 3, fp8);
      }
      EXPECT_TRUE(test::same_bits(whole, parts)) << "chunks of " << chunk;
    }
  });
}
INSTANTIATE_TEST_SUITE_P(Sizes, MlaChunks, testing::Values(61, 64, 128, 250, 1099));

TEST(MlaPrefill, SameBitsAloneInABatchAndOnAnyThreads) {
  const Dims d{.heads = 4, .lora = 64, .rope = 16, .nope = 32, .v = 32};
  test::for_each_isa([&] {
    Rng rng(18);
    const World w(rng, d, {{7, 7}, {12, 7}, {47, 7}, {207, 7}, {300, 300}, {0, 2}, {641, 100}});
    const Expanded e(rng, d);
    const Owned q = test::random_f32(rng, {w.num_tokens, d.heads, d.nope + d.rope});
    std::vector<Owned> outs;
    for (const int threads : {1, 2, 3}) {
      outs.push_back(test::filled_f32({w.num_tokens, d.heads, d.v}, test::kNan));
      prefill(w, e, q, outs.back(), w.spans, threads);
    }
    EXPECT_TRUE(test::same_bits(outs[0], outs[1]));
    EXPECT_TRUE(test::same_bits(outs[0], outs[2]));
    for (const AttentionSpan& span : w.spans) {
      const Owned alone = test::filled_f32({w.num_tokens, d.heads, d.v}, test::kNan);
      prefill(w, e, q, alone, {&span, 1}, 2);
      EXPECT_TRUE(test::same_bits(alone.tensor.rows(span.q_begin, span.q_begin + span.q_len),
                                  outs[0].tensor.rows(span.q_begin, span.q_begin + span.q_len)));
    }
    for (int64_t i = 0; i < 2 * d.heads * d.v; ++i) {
      EXPECT_EQ(outs[0].tensor.row<float>(w.spans[5].q_begin)[i], 0.0f) << "a query without keys";
    }
  });
}

TEST(Mla, DecodeAgreesWithPrefill) {
  const Dims d{.heads = 2, .lora = 64, .rope = 8, .nope = 16, .v = 20};
  test::for_each_isa([&] {
    Rng rng(19);
    const World w(rng, d, {{333, 5}});
    const Expanded e(rng, d);
    const Owned q = test::random_f32(rng, {5, 2, 24}), out = test::filled_f32({5, 2, 20}, 0);
    prefill(w, e, q, out, w.spans, 2);
    const Owned absorbed = test::filled_f32({5, 2, 72}, 0.0f), latent = test::filled_f32({5, 2, 64}, 0);
    for (int64_t i = 0; i < 10; ++i) {
      const float* row = q.f32() + i * 24;
      for (int64_t j = 0; j < 16; ++j) {
        for (int64_t c = 0; c < 64; ++c)
          absorbed.f32()[i * 72 + c] += row[j] * e.weight.f32()[(i % 2 * 36 + j) * 64 + c];
      }
      std::memcpy(absorbed.f32() + i * 72 + 64, row + 16, 32);
      for (int64_t j = 0; j < 72; ++j) absorbed.f32()[i * 72 + j] *= 0.08f / 0.05f;  // decode() has another scale
    }
    decode(w, absorbed, latent, w.spans, 2);
    for (int64_t i = 0; i < 10; ++i) {
      for (int64_t j = 0; j < 20; ++j) {
        double want = 0;
        for (int64_t c = 0; c < 64; ++c) {
          want += double{latent.f32()[i * 64 + c]} * e.weight.f32()[(i % 2 * 36 + 16 + j) * 64 + c];
        }
        EXPECT_NEAR(out.f32()[i * 20 + j], want, 1e-5);
      }
    }
  });
}

TEST(Mla, NoTokens) {
  Rng rng(20);
  const Dims d{.heads = 2, .lora = 16, .rope = 4, .nope = 8, .v = 8};
  const World w(rng, d, {});
  const Expanded e(rng, d);
  decode(w, Owned(DType::kF32, {0, 2, 20}), Owned(DType::kF32, {0, 2, 16}), {}, 2);
  prefill(w, e, Owned(DType::kF32, {0, 2, 12}), Owned(DType::kF32, {0, 2, 8}), {}, 2);
}

TEST(AppendLatent, WritesTheNamedSlotsOnly) {
  Rng rng(21);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    World w(rng, {.lora = 30, .rope = 6, .dtype = dtype}, {});
    const Owned x = test::random_f32(rng, {70, 36});
    std::vector<int32_t> slots;
    for (int32_t t = 0; t < 70; ++t) slots.push_back((t * 37 + 5) % 192);
    ThreadPool pool(2);
    Stream stream(pool);
    append_latent(stream, w.cache, x, slots);
    append_latent(stream, w.cache, x.tensor.rows(0, 0), {});
    const std::vector<int32_t> identity = {0, 1, 2};
    const AttentionSpan all{0, 0, 192, identity.data()};
    for (int32_t r = 0; r < 192; ++r) {
      const auto found = std::find(slots.begin(), slots.end(), r);
      for (int64_t i = 0; i < 36; ++i) {
        if (found == slots.end()) {
          EXPECT_TRUE(std::isnan(w.at(all, r, i)));
        } else {
          const float value = x.f32()[(found - slots.begin()) * 36 + i];
          EXPECT_EQ(w.at(all, r, i), dtype == DType::kF32 ? value : bf16_to_f32(f32_to_bf16(value)));
        }
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
