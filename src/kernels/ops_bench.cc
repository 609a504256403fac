#include "kernels/ops_bench.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/rng.h"
#include "base/thread.h"
#include "kernels/attention_bench.h"
#include "kernels/cpu/simd.h"
#include "kernels/ops.h"

namespace moesaic {
namespace {

constexpr uint64_t kSeed = 7;

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string json_string(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out + '"';
}

uint64_t fnv1a(const void* data, int64_t num_bytes) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (int64_t i = 0; i < num_bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3ull;
  return hash;
}

struct Figure {
  std::string name;
  std::string unit;
  double amount;       // of the unit's numerator in one call
  double flops;        // of one call; 0 = no ratio
  const void* output;  // hashed after the last call; or null
  int64_t output_bytes = 0;
};

class OpsBench {
 public:
  OpsBench(const OpsBenchOptions& options, const std::function<void(const std::string&)>& print)
      : options_(options), print_(print), pool_(options.num_threads, 2000), stream_(pool_, LinearMath::kShort) {}

  void run() {
    peak_gflops_ = measure_fma_peak_gflops(options_.small ? 0.01 : 0.2);
    emit({.name = "fma_peak", .unit = "GFLOP/s"}, peak_gflops_, 1.0, "fma_peak");
    bench_handover();
    bench_linear();
    bench_subnormals();
    bench_heads();
    bench_grouped();
    bench_fp8();
    num_figures_ += run_attention_bench(options_, stream_, peak_gflops_, print_);
  }
  int num_figures() const { return num_figures_; }

 private:
  bool wanted(const std::string& name) const {
    return options_.filter.empty() || name.find(options_.filter) != std::string::npos;
  }

  void emit(const Figure& figure, double value, double ratio, const std::string& baseline) {
    if (!wanted(figure.name)) return;
    ++num_figures_;
    char hash[24] = "";
    if (figure.output != nullptr) {
      std::snprintf(hash, sizeof hash, "%016llx",
                    static_cast<unsigned long long>(fnv1a(figure.output, figure.output_bytes)));
    }
    if (!options_.json) {
      std::string line = figure.name;
      line.resize(std::max<size_t>(line.size() + 1, 44), ' ');
      print_(str_cat(line, fixed(value, 3), " ", figure.unit,
                     baseline.empty() ? std::string() : str_cat("  ", fixed(ratio, 3), " of ", baseline)));
      return;
    }
    print_(str_cat("{\"name\":", json_string(figure.name), ",\"value\":", fixed(value, 4),
                   ",\"unit\":", json_string(figure.unit), ",\"ratio\":", baseline.empty() ? "null" : fixed(ratio, 4),
                   ",\"baseline\":", baseline.empty() ? "null" : json_string(baseline), ",\"hash\":\"", hash,
                   "\",\"command\":", json_string(str_cat(options_.command, " --json --filter ", figure.name)), "}"));
  }

  // Best time of a call in ns, over repetitions of several calls each.
  template <typename Body>
  double time_ns(const Body& body) {
    const Clock& clock = real_clock();
    const int64_t warm_begin = clock.now_ns();
    body();
    const int64_t once = std::max<int64_t>(clock.now_ns() - warm_begin, 1);
    if (options_.small) return static_cast<double>(once);
    const int64_t calls = std::clamp<int64_t>(4'000'000 / once, 1, 100'000);
    double best = 1e18;
    for (int rep = 0; rep < 9; ++rep) {
      const int64_t begin = clock.now_ns();
      for (int64_t i = 0; i < calls; ++i) body();
      best = std::min(best, static_cast<double>(clock.now_ns() - begin) / static_cast<double>(calls));
    }
    return best;
  }

  template <typename Body>
  void measure(const Figure& figure, const Body& body) {
    if (!wanted(figure.name)) return;
    const double ns = time_ns(body);
    const double ratio = figure.flops / ns / (peak_gflops_ * options_.num_threads);
    emit(figure, figure.amount / ns, ratio, figure.flops > 0 ? str_cat("fma_peak x ", options_.num_threads) : "");
  }

  Tensor random_f32(Buffer& buffer, Shape shape) {
    buffer = Buffer(shape.num_elements() * int64_t{sizeof(float)});
    const Tensor tensor(buffer.data(), DType::kF32, shape);
    for (int64_t i = 0; i < shape.num_elements(); ++i) tensor.f32()[i] = static_cast<float>(rng_.uniform() * 2 - 1);
    return tensor;
  }

  // Gaussian-like weights scaled as a checkpoint's are: the largest of a block at 448.
  PackedWeight random_weight(DType dtype, int64_t n, int64_t k, double subnormal_share = 0) {
    Buffer data(n * k * dtype_bytes(dtype)), scales((n + 127) / 128 * ((k + 127) / 128) * int64_t{sizeof(float)});
    for (int64_t i = 0; i < n * k; ++i) {
      const float v = static_cast<float>(rng_.uniform() + rng_.uniform() + rng_.uniform() + rng_.uniform() - 2);
      if (dtype == DType::kF32) static_cast<float*>(data.data())[i] = v;
      if (dtype == DType::kBF16) static_cast<uint16_t*>(data.data())[i] = f32_to_bf16(v);
      if (dtype == DType::kE4M3) static_cast<uint8_t*>(data.data())[i] = f32_to_e4m3(v * 224);
    }
    for (int64_t i = 0; i < static_cast<int64_t>(subnormal_share * static_cast<double>(n * k)); ++i) {
      static_cast<uint8_t*>(data.data())[rng_.below(static_cast<uint64_t>(n * k))] = 0x03;
    }
    for (int64_t i = 0; i < scales.num_bytes() / 4; ++i) static_cast<float*>(scales.data())[i] = 1.0f / 448;
    PackedWeight::Source source;
    source.weight = Tensor(data.data(), dtype, {n, k});
    if (dtype == DType::kE4M3)
      source.scale_inv = Tensor(scales.data(), DType::kF32, {(n + 127) / 128, (k + 127) / 128});
    auto packed = PackedWeight::pack(source);
    MOESAIC_CHECK(packed.ok());
    return *std::move(packed);
  }

  void bench_handover() {
    if (options_.num_threads == 1 || !wanted("pool_handover")) return;
    const double ns = time_ns([&] { pool_.run([](int) {}); });
    emit({.name = "pool_handover", .unit = "us"}, ns / 1000, 0, "");
  }

  void bench_linear() {
    using Shapes = std::vector<std::pair<int64_t, int64_t>>;
    const Shapes all = {{256, 128}, {256, 256}, {512, 256}, {1024, 256}, {256, 1024}, {2048, 512}, {4096, 256}};
    const Shapes shapes = options_.small ? Shapes{{256, 128}} : all;
    const std::vector<int64_t> rows =
        options_.small ? std::vector<int64_t>{1, 16} : std::vector<int64_t>{1, 2, 4, 8, 16, 64, 256};
    for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32}) {
      for (const auto& [n, k] : shapes) {
        const PackedWeight weight = random_weight(dtype, n, k);
        for (const int64_t m : rows) {
          Buffer x_buffer, y_buffer;
          const Tensor x = random_f32(x_buffer, {m, k}), y = random_f32(y_buffer, {m, n});
          const double macs = static_cast<double>(m * n * k);
          const bool decode = m <= 8;
          const Figure figure{
              .name = str_cat("linear_", dtype_name(dtype), "_n", n, "_k", k, "_m", m),
              .unit = decode ? "Gweight/s" : "GFLOP/s",
              .amount = decode ? static_cast<double>(n * k) : 2 * macs,
              .flops = 2 * macs,
              .output = y.raw(),
              .output_bytes = y.num_bytes(),
          };
          measure(figure, [&] { linear(stream_, {.x = x, .weight = &weight, .y = y}); });
        }
      }
    }
  }

  // Weights that the kernels decode to f32 subnormals on the way: some CPUs are slow with those.
  void bench_subnormals() {
    const int64_t n = 1024, k = 256;
    for (const int64_t per_million : {100, 1000, 10000}) {
      const PackedWeight weight = random_weight(DType::kE4M3, n, k, static_cast<double>(per_million) * 1e-6);
      Buffer x_buffer, y_buffer;
      const Tensor x = random_f32(x_buffer, {1, k}), y = random_f32(y_buffer, {1, n});
      const Figure figure{.name = str_cat("linear_e4m3_n", n, "_k", k, "_m1_subnormal", per_million, "ppm"),
                          .unit = "Gweight/s",
                          .amount = static_cast<double>(n * k),
                          .flops = 2.0 * static_cast<double>(n * k),
                          .output = y.raw(),
                          .output_bytes = y.num_bytes()};
      measure(figure, [&] { linear(stream_, {.x = x, .weight = &weight, .y = y}); });
    }
  }

  // The absorbed k_b and v_b of the demo checkpoint.
  void bench_heads() {
    const int64_t heads = 8, n = 512, k = 128;
    std::vector<PackedWeight> weights;
    for (int64_t h = 0; h < heads; ++h) weights.push_back(random_weight(DType::kE4M3, n, k));
    for (const int64_t m : {1, 8}) {
      Buffer x_buffer, y_buffer;
      const Tensor x = random_f32(x_buffer, {m, heads, k}), y = random_f32(y_buffer, {m, heads, n});
      const Figure figure{.name = str_cat("head_linear_e4m3_h", heads, "_n", n, "_k", k, "_m", m),
                          .unit = "Gweight/s",
                          .amount = static_cast<double>(heads * n * k),
                          .flops = 2.0 * static_cast<double>(m * heads * n * k),
                          .output = y.raw(),
                          .output_bytes = y.num_bytes()};
      measure(figure, [&] { head_linear(stream_, {.x = x, .weights = weights, .y = y}); });
    }
  }

  // Experts of the demo checkpoint: one decode token on 4 of 32, and a prefill of 64 rows each.
  void bench_grouped() {
    const int64_t groups = 32;
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{256, 256}, {256, 128}}) {
      std::vector<PackedWeight> weights;
      for (int64_t g = 0; g < groups; ++g) weights.push_back(random_weight(DType::kE4M3, n, k));
      for (const bool decode : {true, false}) {
        std::vector<int32_t> begin(groups), rows(groups);
        int64_t total = 0;
        for (int64_t g = 0; g < groups; ++g) {
          begin[g] = static_cast<int32_t>(g * 64);
          rows[g] = decode ? g % 8 == 3 : 64;
          total += rows[g];
        }
        Buffer x_buffer, y_buffer(groups * 64 * n * int64_t{sizeof(float)});
        const Tensor x = random_f32(x_buffer, {groups * 64, k});
        const Tensor y(y_buffer.data(), DType::kF32, {groups * 64, n});
        const double macs = static_cast<double>(total * n * k);
        const Figure figure{.name = str_cat("grouped_linear_e4m3_n", n, "_k", k, decode ? "_4x1" : "_32x64"),
                            .unit = decode ? "Gweight/s" : "GFLOP/s",
                            .amount = decode ? macs : 2 * macs,
                            .flops = 2 * macs,
                            .output = y.raw(),
                            .output_bytes = y.num_bytes()};
        measure(figure, [&] {
          grouped_linear(stream_, {.x = x, .weights = weights, .group_begin = begin, .group_rows = rows, .y = y});
        });
      }
    }
  }

  void bench_fp8() {
    const int64_t m = options_.small ? 4 : 256, k = 1024, groups = k / 128;
    Buffer x_buffer, y_buffer, q_buffer(m * k), s_buffer(m * groups * int64_t{sizeof(float)});
    const Tensor x = random_f32(x_buffer, {m, k}), y = random_f32(y_buffer, {m, k});
    const Tensor q(q_buffer.data(), DType::kE4M3, {m, k}), s(s_buffer.data(), DType::kF32, {m, groups});
    Figure figure{.name = str_cat("quantize_fp8_m", m, "_k", k),
                  .unit = "Gvalue/s",
                  .amount = static_cast<double>(m * k),
                  .flops = 0,
                  .output = q.raw(),
                  .output_bytes = q.num_bytes()};
    measure(figure, [&] { quantize_fp8(stream_, {.x = x, .q = q, .scales = s}); });
    quantize_fp8(stream_, {.x = x, .q = q, .scales = s});
    figure.output = y.raw();
    figure.output_bytes = y.num_bytes();
    figure.name = str_cat("dequantize_fp8_m", m, "_k", k);
    measure(figure, [&] { dequantize_fp8(stream_, q, s, y); });
    figure.name = str_cat("round_trip_fp8_m", m, "_k", k);
    measure(figure, [&] { round_trip_fp8(stream_, x, y); });
  }

  const OpsBenchOptions& options_;
  const std::function<void(const std::string&)>& print_;
  ThreadPool pool_;
  Stream stream_;
  Rng rng_{kSeed};
  double peak_gflops_ = 0;
  int num_figures_ = 0;
};

}  // namespace

absl::Status run_ops_bench(const OpsBenchOptions& options, const std::function<void(const std::string& line)>& print) {
  if (options.num_threads < 1 || options.num_threads > 1024) {
    return absl::InvalidArgumentError(str_cat("--threads must be 1 to 1024, found ", options.num_threads));
  }
  const Isa before = active_isa();
  if (!options.isa.empty()) {
    bool found = false;
    for (const Isa isa : {Isa::kPlain, Isa::kAvx2, Isa::kAvx512, Isa::kAmx}) {
      if (options.isa != isa_name(isa)) continue;
      if (!isa_supported(isa)) return absl::InvalidArgumentError(str_cat("this CPU has no ", options.isa, " (--isa)"));
      found = true;
      force_isa(isa);
    }
    if (!found) {
      return absl::InvalidArgumentError(str_cat("--isa must be plain, avx2, avx512 or amx, found '", options.isa, "'"));
    }
  }
  OpsBench bench(options, print);
  bench.run();
  force_isa(before);
  if (bench.num_figures() == 0) {
    return absl::NotFoundError(str_cat("no figure's name holds '", options.filter, "' (--filter)"));
  }
  return absl::OkStatus();
}

}  // namespace moesaic
