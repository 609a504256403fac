#include "cost/kernel_cost.h"

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kLaunch = 2.0e-6;

// The larger of the two rules; where both are near, pipelines do not hide all of the smaller.
double bound(double compute, double memory) {
  return std::cbrt(compute * compute * compute + memory * memory * memory);
}

}  // namespace

KernelCost::KernelCost(const HardwareSpec& hardware, double sm_share)
    : hardware_(hardware), sms_(static_cast<double>(hardware.num_sms) * sm_share) {}

double KernelCost::gemm(const GemmShape& s) const {
  if (s.m <= 0 || s.groups <= 0) return 0;
  const bool fp8 = s.precision == Precision::kFp8 && hardware_.fp8_tflops > 0;
  const double n = static_cast<double>(s.n), k = static_cast<double>(s.k);
  const double peak = (fp8 ? hardware_.fp8_tflops : hardware_.bf16_tflops) * kTera;
  const double efficiency = 0.72 * k / (k + 400);
  const double tile_m = s.m <= 64 ? 64 : 128, tile_n = 128;
  const double tiles = s.groups * std::ceil(s.m / tile_m) * std::ceil(n / tile_n);
  const double waves = std::ceil(tiles / sms_);
  const double per_sm = peak * efficiency / static_cast<double>(hardware_.num_sms);
  const double compute = waves * 2 * tile_m * tile_n * k / per_sm;
  const double in_bytes = fp8 ? 1 : 2;
  const double bytes = s.groups * (n * k * in_bytes + s.m * k * in_bytes + s.m * n * 2);
  return kLaunch + bound(compute, bytes / (0.82 * hardware_.hbm_gb_per_s * kGiga));
}

double KernelCost::mla_decode(const MlaShape& s) const {
  if (s.pairs <= 0) return 0;
  const double flops =
      2 * s.pairs * static_cast<double>(s.heads) * static_cast<double>(2 * s.kv_lora_rank + s.rope_dim);
  const double compute = flops / (0.63 * hardware_.bf16_tflops * kTera);
  const double memory = s.rows * s.row_bytes / (0.88 * hardware_.hbm_gb_per_s * kGiga);
  return kLaunch + bound(compute, memory);
}

double KernelCost::mha_prefill(const MhaShape& s) const {
  if (s.pairs <= 0) return 0;
  const double flops = 2 * s.pairs * static_cast<double>(s.heads) * static_cast<double>(s.qk_dim + s.v_dim);
  return kLaunch + flops / (0.665 * hardware_.bf16_tflops * kTera * sms_ / static_cast<double>(hardware_.num_sms));
}

double KernelCost::elementwise(double num_bytes, double num_kernels) const {
  return num_kernels * kLaunch + num_bytes / (0.82 * hardware_.hbm_gb_per_s * kGiga);
}

}  // namespace moesaic
