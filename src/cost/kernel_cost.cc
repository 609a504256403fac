#include "cost/kernel_cost.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;

// An H100's SM at the datasheet's rate: overheads of an SM that multiplies more slowly weigh less.
constexpr double kReferenceSmTflops = 989.0 / 132;

// FP8 GEMMs, fitted on the 28 shapes of DeepGEMM's table (F208-F235 in data/published_figures.csv): mean error 5.7 %,
// worst below 18 %.
constexpr double kIssueOverhead = 0.20;     // scaling and promotion of partial sums, relative to multiplying
constexpr double kEpilogueColumns = 450;    // filling and draining the pipeline of a tile, in columns of k
constexpr double kSmLoadGbPerS = 80;        // operands from L2 into one SM
constexpr double kMemoryEfficiency = 0.82;  // of the datasheet's bandwidth
constexpr double kGemmLaunch = 1.5e-6;
// Grouped GEMMs beside communication kernels: 1,007 TFLOPS on 112 SMs (F133) where the formula alone gives 1,095.
constexpr double kBesideCommunication = 0.92;
// What communication kernels leave of memory bandwidth: in normal mode they write and read each row that is dispatched
// or combined several times on its way. Assumed: what the calibration rows of prefill leave to it.
constexpr double kMemoryBesideCommunication = 0.85;

// A small kernel between its neighbours in a CUDA graph. Perplexity's layer takes 71 us more with two micro-batches
// than with one batch, beside its GEMMs (F050, F052): 4 us for each kernel that runs twice, with 128 tokens; few tokens
// take less.
constexpr double kSmallKernel = 3.0e-6;

// FlashMLA, compute-bound: 580 (February 2025) to 660 TFLOPS (April 2025) on H800 (F237, F238), its middle; as
// overheads beside multiplying at the sustained clock.
constexpr double kMlaOverhead = 865.0 / 620 - 1;
// With an FP8 cache the latent part of both products multiplies at the FP8 rate; softmax and RoPE part stay as they
// are. 1.75 times the BF16 speed on H20, where 1.7 is published (FlashMLA pull request 82).
constexpr double kMlaFp8Width = 0.53;
constexpr double kMlaMemoryEfficiency = 0.88;  // F239: 3,000 of 3,350 GB/s
constexpr double kMlaLaunch = 5.0e-6;          // with the reduction of split sequences

// Causal attention of 4,096 tokens: 555 TFLOPS on 112 of 132 SMs in DeepSeek's training profile (F132), about 555 on
// all 132 with FlashAttention-3 (arXiv 2407.08608, figure 5); their middle.
constexpr double kMhaOverhead = 865.0 / 600 - 1;

// Larger than both, and than their larger by a fifth where they are equal: pipelines do not hide all of the smaller.
double bound(double compute, double memory) {
  const double c = compute * compute, m = memory * memory;
  return std::sqrt(std::sqrt(c * c + m * m));
}

double rounded_up(double rows, double tile, bool ragged) {
  return ragged ? std::max(1.0, rows / tile + 0.5) : std::ceil(rows / tile);
}

double log_distance(double a, double b) {
  return std::abs(std::log(std::max(a, 1e-9) / std::max(b, 1e-9)));
}

// measured / predicted of the rows, interpolated in log m between those with the nearest number of groups; 1 without.
template <typename Formula>
double gemm_scale(std::vector<const MeasuredKernel*> rows, const GemmShape& s, Formula formula) {
  if (rows.empty()) return 1;
  double nearest = 1e30;
  for (const MeasuredKernel* row : rows) nearest = std::min(nearest, log_distance(row->groups, s.groups));
  const MeasuredKernel *below = nullptr, *above = nullptr;
  for (const MeasuredKernel* row : rows) {
    if (log_distance(row->groups, s.groups) > nearest + 1e-9) continue;
    if (row->m <= s.m && (below == nullptr || row->m > below->m)) below = row;
    if (row->m >= s.m && (above == nullptr || row->m < above->m)) above = row;
  }
  const auto scale = [&](const MeasuredKernel* row) {
    return row->us * 1e-6 / formula(GemmShape{row->m, s.n, s.k, row->groups, s.precision, false});
  };
  if (below == nullptr || above == nullptr || below->m == above->m) return scale(below != nullptr ? below : above);
  const double at = std::log(s.m / below->m) / std::log(above->m / below->m);
  return scale(below) * (1 - at) + scale(above) * at;
}

// Of the row whose pairs, as the formula counts them, and cached rows are nearest.
template <typename Pairs, typename Formula>
double attention_scale(const std::vector<const MeasuredKernel*>& rows, double pairs, double kv_rows, Pairs pairs_of,
                       Formula formula) {
  const MeasuredKernel* best = nullptr;
  double nearest = 1e30;
  for (const MeasuredKernel* row : rows) {
    const double distance =
        log_distance(pairs_of(*row), pairs) + (kv_rows > 0 ? log_distance(row->batch * row->kv_len, kv_rows) : 0);
    if (distance >= nearest) continue;
    nearest = distance;
    best = row;
  }
  return best == nullptr ? 1 : best->us * 1e-6 / formula(*best);
}

double decode_pairs(const MeasuredKernel& row) {
  return row.batch * row.q_len * row.kv_len;
}

// Causal: half of the square, all of what was cached before.
double prefill_pairs(const MeasuredKernel& row) {
  return row.batch * row.q_len * (row.kv_len - row.q_len / 2);
}

}  // namespace

KernelCost::KernelCost(const HardwareSpec& hardware, double sm_share, const MeasuredKernels* table)
    : table_(table),
      hardware_(hardware),
      sms_(std::max(1.0, std::floor(static_cast<double>(hardware.num_sms) * sm_share))),
      beside_communication_(sm_share < 1) {
  const double speed = hardware.bf16_tflops / static_cast<double>(hardware.num_sms) / kReferenceSmTflops;
  overhead_ = std::min(1.0, speed);
  load_ = std::max(1.0, speed);  // faster tensor cores come with wider paths to them
}

double KernelCost::flops_per_s(Precision precision) const {
  const bool fp8 = precision == Precision::kFp8 && hardware_.fp8_tflops > 0;
  const double peak = (fp8 ? hardware_.fp8_tflops : hardware_.bf16_tflops) * kTera;
  return peak * hardware_.sustained_clock * sms_ / static_cast<double>(hardware_.num_sms);
}

double KernelCost::bytes_per_s() const {
  const double left = beside_communication_ ? kMemoryBesideCommunication : 1.0;
  return hardware_.hbm_gb_per_s * kGiga * kMemoryEfficiency * left;
}

double KernelCost::gemm_formula(const GemmShape& s) const {
  if (s.m <= 0 || s.groups <= 0) return 0;
  const bool fp8 = s.precision == Precision::kFp8 && hardware_.fp8_tflops > 0;
  const double n = static_cast<double>(s.n), k = static_cast<double>(s.k), element = fp8 ? 1 : 2;
  const double sm_flops = flops_per_s(s.precision) / sms_;
  double compute = 1e30;
  for (const double tile_m : {32.0, 64.0, 128.0}) {
    for (const double tile_n : {16.0, 32.0, 64.0, 96.0, 128.0, 160.0}) {
      const double tiles = s.groups * rounded_up(s.m, tile_m, s.ragged) * std::ceil(n / tile_n);
      // A grid of many waves of uneven groups ends evenly; a small one does not.
      const double waves = s.ragged ? std::max(1.0, tiles / sms_ + 0.5) : std::ceil(tiles / sms_);
      const double multiply = 2 * tile_m * tile_n * k / sm_flops * (1 + kIssueOverhead * overhead_);
      const double load = (tile_m + tile_n) * k * element / (kSmLoadGbPerS * kGiga * load_);
      const double drain = 2 * tile_m * tile_n * kEpilogueColumns * overhead_ / sm_flops;
      compute = std::min(compute, waves * (std::max(multiply, load) + drain));
    }
  }
  if (beside_communication_) compute /= kBesideCommunication;
  const double bytes = s.groups * (n * k * element + s.m * k * element + s.m * n * 2);
  return kGemmLaunch + bound(compute, bytes / bytes_per_s());
}

double KernelCost::mla_formula(const MlaShape& s) const {
  if (s.pairs <= 0) return 0;
  const double width = static_cast<double>(2 * s.kv_lora_rank + s.rope_dim);
  const double flops = 2 * s.pairs * static_cast<double>(s.heads) * width;
  const double multiply = s.fp8 && hardware_.fp8_tflops > 0 ? kMlaFp8Width : 1.0;
  const double compute = flops * (multiply + kMlaOverhead * overhead_) / flops_per_s(Precision::kBf16);
  const double memory = s.rows * s.row_bytes / (kMlaMemoryEfficiency * hardware_.hbm_gb_per_s * kGiga);
  return kMlaLaunch + bound(compute, memory);
}

double KernelCost::mha_formula(const MhaShape& s) const {
  if (s.pairs <= 0) return 0;
  const double flops = 2 * s.pairs * static_cast<double>(s.heads) * static_cast<double>(s.qk_dim + s.v_dim);
  return kMlaLaunch + flops * (1 + kMhaOverhead * overhead_) / flops_per_s(Precision::kBf16);
}

double KernelCost::gemm(const GemmShape& s) const {
  const double seconds = gemm_formula(s);
  if (table_ == nullptr || seconds <= 0) return seconds;
  const auto rows = table_->gemms(s.ragged || s.groups > 1, s.n, s.k, s.precision);
  return seconds * gemm_scale(rows, s, [&](const GemmShape& shape) { return gemm_formula(shape); });
}

double KernelCost::mla_decode(const MlaShape& s) const {
  const double seconds = mla_formula(s);
  if (table_ == nullptr || seconds <= 0) return seconds;
  return seconds * attention_scale(table_->attentions("mla_decode", s.heads, s.fp8), s.pairs, s.rows, decode_pairs,
                                   [&](const MeasuredKernel& row) {
                                     MlaShape shape = s;
                                     shape.rows = row.batch * row.kv_len;
                                     shape.pairs = decode_pairs(row);
                                     return mla_formula(shape);
                                   });
}

double KernelCost::mha_prefill(const MhaShape& s) const {
  const double seconds = mha_formula(s);
  if (table_ == nullptr || seconds <= 0) return seconds;
  return seconds * attention_scale(table_->attentions("mla_prefill", s.heads, false), s.pairs, 0, prefill_pairs,
                                   [&](const MeasuredKernel& row) {
                                     MhaShape shape = s;
                                     shape.pairs = prefill_pairs(row);
                                     return mha_formula(shape);
                                   });
}

double KernelCost::elementwise(double num_bytes, double num_kernels) const {
  return num_kernels * kSmallKernel + num_bytes / bytes_per_s();
}

}  // namespace moesaic
