#include "kernels/attention_bench.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/strings.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr int64_t kHeads = 8, kLora = 512, kRope = 64, kNope = 128, kV = 128, kBlock = 64;

class Bench {
 public:
  Bench(const OpsBenchOptions& options, Stream& stream, double peak_gflops, const PrintLine& print)
      : options_(options), stream_(stream), peak_flops_(peak_gflops * 1e9 * options.num_threads), print_(print) {}

  Stream& stream() { return stream_; }
  bool small() const { return options_.small; }
  int num_figures() const { return num_figures_; }

  Buffer random(int64_t count) {
    Buffer buffer(count * 4);
    for (int64_t i = 0; i < count; ++i) {
      static_cast<float*>(buffer.data())[i] = static_cast<float>(rng_.uniform() * 2 - 1);
    }
    return buffer;
  }

  template <typename Body>
  double best_seconds(Body&& body) {
    const Clock& clock = real_clock();
    int64_t best = INT64_MAX;
    const int64_t start = clock.now_ns();
    const int64_t limit = options_.small ? 1'000'000 : 500'000'000;
    for (int runs = 0; runs < 3 || clock.now_ns() - start < limit; ++runs) {
      const int64_t begin = clock.now_ns();
      body();
      best = std::min(best, clock.now_ns() - begin);
    }
    return static_cast<double>(std::max<int64_t>(best, 1)) * 1e-9;
  }

  bool wanted(const std::string& name) const {
    return options_.filter.empty() || name.find(options_.filter) != std::string::npos;
  }

  void report_work(const std::string& name, double seconds, double flops, const Tensor& out) {
    report(name, seconds * 1e3, "ms", flops / seconds / peak_flops_, out);
  }

  void report_time(const std::string& name, double seconds, const Tensor& out) {
    report(name, seconds * 1e6, "us", 0.0, out);
  }

 private:
  static uint64_t hash(const Tensor& t) {
    uint64_t h = 0xcbf29ce484222325ull;
    for (int64_t i = 0; i < t.num_bytes(); ++i) h = (h ^ t.data<uint8_t>()[i]) * 0x100000001b3ull;
    return h;
  }

  // ratio 0 = none.
  void report(const std::string& name, double value, const char* unit, double ratio, const Tensor& out) {
    if (!wanted(name)) return;
    ++num_figures_;
    char line[512];
    const std::string baseline = str_cat("fma_peak x ", options_.num_threads);
    if (!options_.json) {
      std::snprintf(line, sizeof line, "%-44s%.3f %s", name.c_str(), value, unit);
      print_(line);
      if (ratio > 0) {
        std::snprintf(line, sizeof line, "%-44s%.3f of %s", "", ratio, baseline.c_str());
        print_(line);
      }
      return;
    }
    char ratio_text[32] = "null";
    if (ratio > 0) std::snprintf(ratio_text, sizeof ratio_text, "%.4f", ratio);
    std::snprintf(line, sizeof line,
                  "{\"name\":\"%s\",\"value\":%.4f,\"unit\":\"%s\",\"ratio\":%s,\"baseline\":%s,"
                  "\"hash\":\"%016llx\",\"command\":\"%s --json --filter %s\"}",
                  name.c_str(), value, unit, ratio_text, ratio > 0 ? str_cat("\"", baseline, "\"").c_str() : "null",
                  static_cast<unsigned long long>(hash(out)), options_.command.c_str(), name.c_str());
    print_(line);
  }

  const OpsBenchOptions& options_;
  Stream& stream_;
  const double peak_flops_;
  const PrintLine& print_;
  Rng rng_{1};
  int num_figures_ = 0;
};

struct Cached {
  std::vector<int32_t> table;
  Buffer rows;
  LatentCache cache;
};

Cached make_cache(Bench& bench, int64_t num_tokens, DType dtype) {
  const int64_t blocks = (num_tokens + kBlock - 1) / kBlock, width = kLora + kRope;
  Cached c{std::vector<int32_t>(blocks), bench.random(blocks * kBlock * width), {}};
  std::iota(c.table.begin(), c.table.end(), 0);
  std::reverse(c.table.begin(), c.table.end());
  if (dtype == DType::kBF16) {
    Buffer half(blocks * kBlock * width * 2);
    for (int64_t i = 0; i < blocks * kBlock * width; ++i) {
      static_cast<uint16_t*>(half.data())[i] = f32_to_bf16(static_cast<float*>(c.rows.data())[i]);
    }
    c.rows = std::move(half);
  }
  c.cache = {Tensor(c.rows.data(), dtype, {blocks * kBlock, width}), kBlock, kLora, kRope};
  return c;
}

void bench_decode(Bench& bench, const std::string& name, int32_t kv_len, int32_t q_len, int64_t batch, DType dtype) {
  if (!bench.wanted(name)) return;
  const Cached c = make_cache(bench, kv_len, dtype);
  const int64_t num_tokens = q_len * batch;
  const Buffer q = bench.random(num_tokens * kHeads * (kLora + kRope)), out(num_tokens * kHeads * kLora * 4);
  std::vector<AttentionSpan> spans;
  for (int64_t s = 0; s < batch; ++s) spans.push_back({static_cast<int32_t>(s * q_len), q_len, kv_len, c.table.data()});
  Arena arena(mla_decode_arena_bytes(num_tokens, kHeads, kv_len, c.cache));
  const MlaDecodeArgs args{.q = {q.data(), DType::kF32, {num_tokens, kHeads, kLora + kRope}},
                           .cache = c.cache,
                           .spans = spans,
                           .softmax_scale = 0.07f,
                           .out = {out.data(), DType::kF32, {num_tokens, kHeads, kLora}},
                           .arena = &arena};
  const double s = bench.best_seconds([&] { mla_decode(bench.stream(), args); });
  bench.report_work(name, s, 2.0 * static_cast<double>(num_tokens) * kHeads * kv_len * (2 * kLora + kRope), args.out);
}

void bench_prefill(Bench& bench, const std::string& name, int32_t kv_len, int32_t q_len) {
  if (!bench.wanted(name)) return;
  const Cached c = make_cache(bench, kv_len, DType::kF32);
  const Buffer weights = bench.random(kHeads * (kNope + kV) * kLora);
  const PackedWeight kv_b =
      PackedWeight::pack({.weight = {weights.data(), DType::kF32, {kHeads * (kNope + kV), kLora}}}).value();
  const Buffer q = bench.random(int64_t{q_len} * kHeads * (kNope + kRope)), out(int64_t{q_len} * kHeads * kV * 4);
  const AttentionSpan span{0, q_len, kv_len, c.table.data()};
  Arena arena(mla_prefill_arena_bytes(q_len, kHeads, kNope, kV, c.cache));
  const MlaPrefillArgs args{.q = {q.data(), DType::kF32, {q_len, kHeads, kNope + kRope}},
                            .cache = c.cache,
                            .kv_b = &kv_b,
                            .nope_dim = kNope,
                            .v_dim = kV,
                            .spans = {&span, 1},
                            .softmax_scale = 0.01f,
                            .out = {out.data(), DType::kF32, {q_len, kHeads, kV}},
                            .arena = &arena};
  const double pairs = static_cast<double>(q_len) * (kv_len - 0.5 * (q_len - 1));
  const double core = 2.0 * pairs * kHeads * (kNope + kRope + kV);
  const double expand = 2.0 * kv_len * kHeads * (kNope + kV) * kLora;
  const double s = bench.best_seconds([&] { mla_prefill(bench.stream(), args); });
  bench.report_work(name, s, core + expand, args.out);
  const Buffer kv(int64_t{kv_len} * kHeads * (kNope + kV) * 4);
  const Tensor y(kv.data(), DType::kF32, {kv_len, kHeads * (kNope + kV)});
  const Tensor x = c.cache.rows.rows(0, kv_len).cols(0, kLora);
  const double s_expand = bench.best_seconds([&] { linear(bench.stream(), {.x = x, .weight = &kv_b, .y = y}); });
  bench.report_work(name + "_kv_b_alone", s_expand, expand, y);
  bench.report_work(name + "_without_kv_b", s - s_expand, core, args.out);
}

void bench_small(Bench& bench) {
  const int64_t kVocab = 129280;
  for (const int64_t m : {1, 1800}) {
    const Buffer x = bench.random(m * 2048), w = bench.random(2048), y(m * 2048 * 4);
    const Tensor tx(x.data(), DType::kF32, {m, 256}), tw(w.data(), DType::kF32, {256}),
        ty(y.data(), DType::kF32, {m, 256});
    bench.report_time(
        str_cat("rms_norm_256_m", m),
        bench.best_seconds([&] { rms_norm(bench.stream(), {.x = tx, .weight = tw, .eps = 1e-6f, .y = ty}); }), ty);
    const Tensor gate_up(x.data(), DType::kF32, {m, 2048}), product(y.data(), DType::kF32, {m, 1024});
    bench.report_time(str_cat("silu_mul_1024_m", m),
                      bench.best_seconds([&] { silu_mul(bench.stream(), {.gate_up = gate_up, .y = product}); }),
                      product);
    const Buffer table(4096 * 64 * 4);
    const Tensor turns(table.data(), DType::kF32, {4096, 64});
    rope_table({.dim = 64, .theta = 10000}, turns);
    std::vector<int32_t> positions(m, 77);
    const Tensor heads(x.data(), DType::kF32, {m, 8 * 192});
    bench.report_time(str_cat("rope_8_heads_m", m), bench.best_seconds([&] {
      rope(bench.stream(), {.x = heads, .num_heads = 8, .table = turns, .positions = positions, .y = heads});
    }),
                      turns);
    const Buffer ids(m * 8 * 4), weights(m * 8 * 4);
    const GateArgs gate_args{.logits = {x.data(), DType::kF32, {m, 256}},
                             .bias = tw,
                             .scoring_func = ScoringFunc::kSigmoid,
                             .topk_method = TopkMethod::kNoauxTc,
                             .n_group = 8,
                             .topk_group = 4,
                             .norm_topk_prob = true,
                             .routed_scaling_factor = 2.5f,
                             .topk_ids = {ids.data(), DType::kI32, {m, 8}},
                             .topk_weights = {weights.data(), DType::kF32, {m, 8}}};
    bench.report_time(str_cat("gate_256_top8_m", m), bench.best_seconds([&] { gate(bench.stream(), gate_args); }),
                      gate_args.topk_ids);
  }
  const Buffer logits = bench.random(kVocab);
  float* values = static_cast<float*>(logits.data());
  for (int64_t i = 0; i < kVocab; ++i) values[i] *= 12;
  const std::span<const float> all(values, kVocab);
  int32_t id = 0;
  const Tensor out(&id, DType::kI32, {1});
  bench.report_time("sample_129280_greedy",
                    bench.best_seconds([&] { id = sample_token({.logits = all, .temperature = 0}); }), out);
  bench.report_time("sample_129280", bench.best_seconds([&] { id = sample_token({.logits = all, .uniform = 0.5}); }),
                    out);
  bench.report_time(
      "sample_129280_top_k50_top_p0.9",
      bench.best_seconds([&] { id = sample_token({.logits = all, .top_k = 50, .top_p = 0.9f, .uniform = 0.5}); }), out);
  bench.report_time("sample_129280_top_p0.9",
                    bench.best_seconds([&] { id = sample_token({.logits = all, .top_p = 0.9f, .uniform = 0.5}); }),
                    out);
  bench.report_time("log_sum_exp_129280", bench.best_seconds([&] { id = static_cast<int32_t>(log_sum_exp(all)); }),
                    out);
}

}  // namespace

int run_attention_bench(const OpsBenchOptions& options, Stream& stream, double peak_gflops, const PrintLine& print) {
  Bench bench(options, stream, peak_gflops, print);
  const int32_t length = options.small ? 200 : 1800;
  bench_decode(bench, str_cat("mla_decode_kv", length), length, 1, 1, DType::kF32);
  bench_decode(bench, str_cat("mla_decode_kv", length, "_bf16"), length, 1, 1, DType::kBF16);
  bench_decode(bench, str_cat("mla_decode_kv", length, "_q4"), length, 4, 1, DType::kF32);
  bench_decode(bench, str_cat("mla_decode_kv", length, "_batch8"), length, 1, 8, DType::kF32);
  bench_decode(bench, "mla_decode_kv64", 64, 1, 1, DType::kF32);
  bench_prefill(bench, str_cat("mla_prefill_", length), length, length);
  bench_prefill(bench, str_cat("mla_prefill_", length, "_last_128"), length, 128);
  bench_small(bench);
  return bench.num_figures();
}

}  // namespace moesaic
