#include "plan/roofline.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cost/kernel_cost.h"
#include "cost/model_size.h"

namespace moesaic {
namespace {

constexpr double kTera = 1e12;
constexpr double kGiga = 1e9;
constexpr double kMicro = 1e6;

struct Work {
  double flops = 0, bytes = 0;
  bool fp8 = true;
};

RooflineRow make_row(const RooflineRequest& r, std::string kernel, int64_t ep, int64_t batch, double m,
                     const Work& work, double seconds, bool measured) {
  const HardwareSpec& hardware = r.deployment.hardware;
  const double peak = work.fp8 && hardware.fp8_tflops > 0 ? hardware.fp8_tflops : hardware.bf16_tflops;
  const double intensity = work.flops / work.bytes;
  const double slope = intensity * hardware.hbm_gb_per_s * kGiga / kTera;
  return {.kernel = std::move(kernel),
          .ep = ep,
          .batch = batch,
          .m = m,
          .flops_per_byte = intensity,
          .roof_tflops = std::min(peak, slope),
          .is_memory_bound = slope < peak,
          .predicted_us = seconds * kMicro,
          .predicted_tflops = work.flops / seconds / kTera,
          .is_measured = measured};
}

bool has_row(const Deployment& d, const GemmShape& s, bool grouped) {
  if (d.kernels == nullptr) return false;
  for (const MeasuredKernel* row : d.kernels->gemms(grouped, s.n, s.k, s.precision)) {
    if (row->m == s.m && row->groups == s.groups) return true;
  }
  return false;
}

RooflineRow gemm_row(const RooflineRequest& r, const char* kernel, int64_t ep, int64_t batch, const GemmShape& s) {
  const double n = static_cast<double>(s.n), k = static_cast<double>(s.k);
  const bool fp8 = s.precision == Precision::kFp8;
  const Work work{2 * s.groups * s.m * n * k, s.groups * ((n * k + s.m * k) * (fp8 ? 1 : 2) + s.m * n * 2), fp8};
  const KernelCost kernels(r.deployment.hardware, 1.0, r.deployment.kernels.get());
  return make_row(r, kernel, ep, batch, s.m, work, kernels.gemm(s), has_row(r.deployment, s, s.groups > 1));
}

RooflineRow mla_row(const RooflineRequest& r, int64_t batch) {
  const ModelConfig& c = r.deployment.model;
  const int64_t heads = c.num_attention_heads / r.deployment.layout.tp_size;
  const double rows = static_cast<double>(batch * r.kv_len), q = static_cast<double>(r.query_len);
  const MlaShape shape{heads,
                       rows * q,
                       rows,
                       c.kv_lora_rank,
                       c.qk_rope_head_dim,
                       static_cast<double>(latent_row_bytes(c, r.deployment.fp8_kv)),
                       r.deployment.fp8_kv};
  const double width = static_cast<double>(2 * c.kv_lora_rank + c.qk_rope_head_dim);
  const double query_bytes = static_cast<double>(batch * r.query_len * heads) * width * 2;
  const Work work{2 * shape.pairs * static_cast<double>(heads) * width, rows * shape.row_bytes + query_bytes, false};
  const KernelCost kernels(r.deployment.hardware, 1.0, r.deployment.kernels.get());
  bool measured = false;
  if (r.deployment.kernels != nullptr) {
    for (const MeasuredKernel* row : r.deployment.kernels->attentions("mla_decode", heads, shape.fp8)) {
      measured = measured || (row->batch == static_cast<double>(batch) && row->q_len == q &&
                              row->kv_len == static_cast<double>(r.kv_len));
    }
  }
  return make_row(r, "MLA", 0, batch, static_cast<double>(batch) * q, work, kernels.mla_decode(shape), measured);
}

}  // namespace

std::vector<RooflineRow> roofline(const RooflineRequest& r) {
  const ModelConfig& c = r.deployment.model;
  const Precision weights = c.fp8_weights ? Precision::kFp8 : Precision::kBf16;
  const int64_t heads = c.num_attention_heads / r.deployment.layout.tp_size;
  const int64_t q_in = c.q_lora_rank > 0 ? c.q_lora_rank : c.hidden_size;
  std::vector<RooflineRow> rows;
  for (const int64_t batch : r.batches) {
    const double tokens = static_cast<double>(batch * r.query_len);
    rows.push_back(gemm_row(r, "qkv_a", 0, batch, {tokens, c.q_lora_rank + c.latent_dim(), c.hidden_size, 1, weights}));
    rows.push_back(gemm_row(r, "q_b", 0, batch, {tokens, heads * c.qk_head_dim(), q_in, 1, weights}));
    rows.push_back(gemm_row(r, "o", 0, batch, {tokens, c.hidden_size, heads * c.v_head_dim, 1, weights}));
    rows.push_back(mla_row(r, batch));
  }
  for (const int64_t ep : r.ep_sizes) {
    const double experts = std::max(1.0, static_cast<double>(c.n_routed_experts) / static_cast<double>(ep));
    for (const int64_t batch : r.batches) {
      // Rows of an expert under even routing: batch x query x topk x EP / experts (Perplexity's formula).
      const double m = static_cast<double>(batch * r.query_len * c.num_experts_per_tok * ep) /
                       static_cast<double>(c.n_routed_experts);
      rows.push_back(
          gemm_row(r, "gate+up", ep, batch, {m, 2 * c.moe_intermediate_size, c.hidden_size, experts, weights}));
      rows.push_back(gemm_row(r, "down", ep, batch, {m, c.hidden_size, c.moe_intermediate_size, experts, weights}));
    }
  }
  return rows;
}

std::string roofline_table(const std::vector<RooflineRow>& rows) {
  std::string out = fmt::format("{:<10}{:>5}{:>7}{:>9}{:>12}{:>9}{:>14}{:>10}{:>12}{:>9}\n", "kernel", "EP", "batch",
                                "m", "FLOP/byte", "bound", "roof TFLOP/s", "us", "TFLOP/s", "of roof");
  for (const RooflineRow& row : rows) {
    out +=
        fmt::format("{:<10}{:>5}{:>7}{:>9.1f}{:>12.1f}{:>9}{:>14.1f}{:>10.1f}{:>12.1f}{:>7.0f} %{}\n", row.kernel,
                    row.ep == 0 ? "-" : std::to_string(row.ep), row.batch, row.m, row.flops_per_byte,
                    row.is_memory_bound ? "memory" : "compute", row.roof_tflops, row.predicted_us, row.predicted_tflops,
                    row.predicted_tflops / row.roof_tflops * 100, row.is_measured ? " measured" : "");
  }
  return out;
}

}  // namespace moesaic
