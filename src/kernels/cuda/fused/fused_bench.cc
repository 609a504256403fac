// The bytes that each operation must move are each input read once and each output written once.
#include "kernels/cuda/fused/fused_bench.h"

#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda/fused/adjust_logits.h"
#include "kernels/cuda/fused/combine.h"
#include "kernels/cuda/fused/expert_rows.h"
#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/gate.h"
#include "kernels/cuda/fused/gather_latents.h"
#include "kernels/cuda/fused/gather_rows.h"
#include "kernels/cuda/fused/log_probs.h"
#include "kernels/cuda/fused/quantize.h"
#include "kernels/cuda/fused/rms_norm.h"
#include "kernels/cuda/fused/rope_append.h"
#include "kernels/cuda/fused/sample.h"
#include "kernels/cuda/fused/silu_mul.h"
#include "kernels/cuda/scales.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

void must(const absl::Status& status) {
  if (!status.ok()) internal::check_failed(__FILE__, __LINE__, "launch", std::string(status.message()));
}

struct QuantizedOut {
  Tensor q, scales;
  QuantizedOut(KernelBench& bench, int64_t m, int64_t k)
      : q(bench.alloc(DType::kE4M3, {m, k})),
        scales(bench.alloc(DType::kF32, {k / kScaleGroup, scale_row_stride(m)})) {}
  static double bytes(int64_t m, int64_t k) { return static_cast<double>(m * k) * (1.0 + 4.0 / kScaleGroup); }
};

// Operands for a chain of launches, together larger than L2.
template <typename Args>
void measure(KernelBench& bench, const KernelRow& row, double bytes, absl::Status (*op)(cudaStream_t, const Args&),
             const std::function<Args()>& make) {
  constexpr double kTogether = 160e6;
  constexpr int kMostSets = 20;
  std::vector<Args> sets;
  while (sets.empty() || (static_cast<double>(sets.size()) * bytes < kTogether && sets.size() < kMostSets)) {
    sets.push_back(make());
  }
  bench.measure_chain(row, {.bytes = bytes},
                      [&](cudaStream_t stream, int i) { must(op(stream, sets[i % sets.size()])); });
  bench.release();
}

void bench_norm(KernelBench& bench, int64_t m) {
  const double row_bytes = 2.0 * static_cast<double>(m * kHidden), q_bytes = QuantizedOut::bytes(m, kHidden);
  const KernelRow row{.m = m, .n = kHidden, .dtype = "bf16"};
  const auto matrix = [&] { return bench.alloc_random(DType::kBF16, {m, kHidden}); };
  const auto norm = [&](const char* op, double bytes, bool residual, bool quantizes) {
    KernelRow named = row;
    named.op = op;
    measure<RmsNormArgs>(bench, named, bytes, rms_norm, [&] {
      RmsNormArgs args{.x = matrix(), .weight = bench.alloc_random(DType::kBF16, {kHidden}), .eps = 1e-6f};
      if (residual) args.residual = matrix();
      if (!quantizes) {
        args.y = bench.alloc(DType::kBF16, {m, kHidden});
      } else {
        const QuantizedOut out(bench, m, kHidden);
        args.q = out.q, args.scales = out.scales;
      }
      return args;
    });
  };
  norm("rms_norm", 2 * row_bytes, false, false);
  norm("rms_norm_quantize", row_bytes + q_bytes, false, true);
  norm("rms_norm_residual_quantize", 3 * row_bytes + q_bytes, true, true);
  KernelRow named = row;
  named.op = "quantize";
  measure<QuantizeArgs>(bench, named, row_bytes + q_bytes, quantize_fp8, [&] {
    const QuantizedOut out(bench, m, kHidden);
    return QuantizeArgs{.x = matrix(), .q = out.q, .scales = out.scales};
  });
}

void bench_silu(KernelBench& bench, int64_t tokens) {
  const KernelRow row{.op = "silu_mul_quantize", .m = tokens, .n = kInter, .dtype = "bf16"};
  const double bytes = 4.0 * static_cast<double>(tokens * kInter) + QuantizedOut::bytes(tokens, kInter);
  measure<SiluMulQuantizeArgs>(bench, row, bytes, silu_mul_quantize, [&] {
    const QuantizedOut out(bench, tokens, kInter);
    return SiluMulQuantizeArgs{
        .gate_up = bench.alloc_random(DType::kBF16, {tokens, 2 * kInter}), .q = out.q, .scales = out.scales};
  });
  const int64_t share = tokens / kMaskedGroups, room = 4 * share;
  KernelRow masked_row = row;
  masked_row.op = "silu_mul_quantize_masked", masked_row.groups = kMaskedGroups;
  measure<SiluMulQuantizeArgs>(bench, masked_row, bytes, silu_mul_quantize, [&] {
    return SiluMulQuantizeArgs{
        .gate_up = bench.alloc_random(DType::kBF16, {kMaskedGroups * room, 2 * kInter}),
        .group_rows = bench.alloc_i32(std::vector<int32_t>(kMaskedGroups, static_cast<int32_t>(share))),
        .q = bench.alloc(DType::kE4M3, {kMaskedGroups * room, kInter}),
        .scales = bench.alloc(DType::kF32, {kMaskedGroups, kInter / kScaleGroup, scale_row_stride(room)})};
  });
}

void bench_gate(KernelBench& bench, int64_t m) {
  const Tensor bias = bench.alloc_random(DType::kF32, {kExperts}, 0.1f);
  const Tensor counts = bench.alloc_i32(std::vector<int32_t>(kExperts, 0));
  const double bytes = 4.0 * static_cast<double>(m * (kExperts + 2 * kTopk));
  measure<GateArgs>(bench, {.op = "gate", .m = m, .n = kExperts, .k = kTopk, .dtype = "f32"}, bytes, gate, [&] {
    return GateArgs{.logits = bench.alloc_random(DType::kF32, {m, kExperts}, 3.0f),
                    .bias = bias,
                    .scoring_func = ScoringFunc::kSigmoid,
                    .topk_method = TopkMethod::kNoauxTc,
                    .n_group = 8,
                    .topk_group = 4,
                    .norm_topk_prob = true,
                    .routed_scaling_factor = 2.5f,
                    .topk_ids = bench.alloc(DType::kI32, {m, kTopk}),
                    .topk_weights = bench.alloc(DType::kF32, {m, kTopk}),
                    .expert_counts = counts};
  });
}

// The gate's choices, each expert as likely as any other.
void bench_expert_rows(KernelBench& bench, int64_t m) {
  Rng rng(2);
  std::vector<int32_t> ids(m * kTopk), counts(kExperts);
  for (int32_t& id : ids) ++counts[id = static_cast<int32_t>(rng.below(kExperts))];
  const int64_t rows = most_expert_rows(m * kTopk, kExperts);
  const double bytes = 4.0 * static_cast<double>(2 * m * kTopk + 2 * rows + 2 * kExperts);
  measure<ExpertRowsArgs>(bench, {.op = "expert_rows", .m = m, .n = kExperts, .k = kTopk, .dtype = "i32"}, bytes,
                          expert_rows, [&] {
                            const Tensor choices = bench.alloc_i32(ids);
                            return ExpertRowsArgs{.topk_ids = Tensor(choices.raw(), DType::kI32, {m, kTopk}),
                                                  .expert_counts = bench.alloc_i32(counts),
                                                  .group_begin = bench.alloc(DType::kI32, {kExperts}),
                                                  .row_experts = bench.alloc(DType::kI32, {rows}),
                                                  .row_tokens = bench.alloc(DType::kI32, {rows}),
                                                  .choice_rows = bench.alloc(DType::kI32, {m, kTopk})};
                          });
}

// Their rows, quantised: of each choice one row is read and one written.
void bench_gather_rows(KernelBench& bench, int64_t m) {
  Rng rng(2);
  std::vector<int32_t> counts(kExperts), row_tokens;
  for (int64_t i = 0; i < m * kTopk; ++i) ++counts[rng.below(kExperts)];
  for (const int32_t count : counts) {
    for (int32_t i = 0; i < count; ++i) row_tokens.push_back(static_cast<int32_t>(rng.below(m)));
    row_tokens.resize((row_tokens.size() + 127) / 128 * 128, -1);
  }
  row_tokens.resize(most_expert_rows(m * kTopk, kExperts), -1);
  const int64_t rows = static_cast<int64_t>(row_tokens.size());
  const QuantizedOut out(bench, rows, kHidden);
  const GatherRowsArgs args{.q = bench.alloc_random(DType::kE4M3, {m, kHidden}, 400.0f),
                            .scales = bench.alloc_random(DType::kF32, {kHidden / kScaleGroup, scale_row_stride(m)}),
                            .row_tokens = bench.alloc_i32(row_tokens),
                            .q_out = out.q,
                            .scales_out = out.scales};
  bench.measure({.op = "gather_rows", .m = m, .n = kHidden, .k = kTopk, .dtype = "e4m3"},
                {.bytes = QuantizedOut::bytes(m, kHidden) * (1 + kTopk) + 4.0 * static_cast<double>(rows)},
                [&](cudaStream_t stream) { must(gather_rows(stream, args)); });
}

// One sequence of m keys.
void bench_gather_latents(KernelBench& bench, int64_t m, DType dtype) {
  const int64_t columns = dtype == DType::kBF16 ? kLora + kRope : kLora + kLora / 32 + 2 * kRope;
  const int64_t blocks = (m + 63) / 64;
  std::vector<int32_t> table(blocks);
  for (int64_t i = 0; i < blocks; ++i) table[i] = static_cast<int32_t>(blocks - 1 - i);
  const QuantizedOut out(bench, m, kLora);
  const GatherLatentsArgs args{.rows = bench.alloc_random(dtype, {blocks * 64, columns}),
                               .block_table = Tensor(bench.alloc_i32(table).raw(), DType::kI32, {1, blocks}),
                               .kv_begin = bench.alloc_i32({0, static_cast<int32_t>(m)}),
                               .rope_dim = kRope,
                               .q = out.q,
                               .scales = out.scales,
                               .keys = bench.alloc(DType::kBF16, {m, kHeads, kQueryDim})};
  const double row_bytes = static_cast<double>(columns * dtype_bytes(dtype)) + 2.0 * kHeads * kRope;
  bench.measure({.op = "gather_latents", .m = m, .heads = kHeads, .dtype = std::string(dtype_name(dtype))},
                {.bytes = static_cast<double>(m) * row_bytes + QuantizedOut::bytes(m, kLora)},
                [&](cudaStream_t stream) { must(gather_latents(stream, args)); });
}

void bench_rope_append(KernelBench& bench, int64_t m, DType dtype) {
  constexpr int64_t kPositions = 4096;
  const int64_t columns = dtype == DType::kBF16 ? kLora + kRope : kLora + kLora / 32 + 2 * kRope;
  const Tensor kv = bench.alloc_random(DType::kBF16, {m, kLora + kRope});
  const Tensor q = bench.alloc_random(DType::kBF16, {m, kHeads, kQueryDim});
  const Tensor q_out = bench.alloc(DType::kBF16, {m, kHeads, kLora + kRope});
  const Tensor table = bench.alloc_random(DType::kF32, {kPositions, kRope});
  const Tensor norm_weight = bench.alloc_random(DType::kBF16, {kLora}), rows = bench.alloc(dtype, {m, columns});
  std::vector<int32_t> order(m);
  for (int64_t i = 0; i < m; ++i) order[i] = static_cast<int32_t>(m - 1 - i) % kPositions;
  const Tensor slots = bench.alloc_i32(order);
  const double row_bytes = static_cast<double>(columns * dtype_bytes(dtype));
  const double bytes =
      static_cast<double>(m) * (2.0 * (kLora + kRope) + row_bytes + 4.0 * kHeads * kRope + 4.0 * kRope);
  bench.measure({.op = "rope_append", .m = m, .heads = kHeads, .dtype = std::string(dtype_name(dtype))},
                {.bytes = bytes}, [&](cudaStream_t stream) {
                  must(rope_append(stream, {.kv = kv,
                                            .norm_weight = norm_weight,
                                            .eps = 1e-6f,
                                            .q = q,
                                            .q_out = q_out,
                                            .table = table,
                                            .positions = slots,
                                            .slots = slots,
                                            .rows = rows}));
                });
}

void bench_combine(KernelBench& bench, int64_t m) {
  const Tensor x = bench.alloc_random(DType::kBF16, {m * kTopk, kHidden});
  const Tensor weights = bench.alloc_random(DType::kF32, {m, kTopk});
  const Tensor base = bench.alloc_random(DType::kBF16, {m, kHidden}), y = bench.alloc(DType::kBF16, {m, kHidden});
  Rng rng(1);
  std::vector<int32_t> order(m * kTopk);
  for (size_t i = 0; i < order.size(); ++i) {
    const size_t other = rng.below(i + 1);
    order[i] = order[other], order[other] = static_cast<int32_t>(i);
  }
  Tensor ids = bench.alloc_i32(order);
  ids = Tensor(ids.raw(), DType::kI32, {m, kTopk});
  bench.measure({.op = "combine", .m = m, .n = kHidden, .k = kTopk, .dtype = "bf16"},
                {.bytes = 2.0 * static_cast<double>(m * kHidden) * (kTopk + 2)}, [&](cudaStream_t stream) {
                  must(combine(stream, {.x = x, .row_ids = ids, .weights = weights, .base = base, .y = y}));
                });
  const Tensor some = Tensor(ids.raw(), DType::kI32, {m});
  bench.measure({.op = "embedding", .m = m, .n = kHidden, .dtype = "bf16"},
                {.bytes = 4.0 * static_cast<double>(m * kHidden)},
                [&](cudaStream_t stream) { must(embedding(stream, {.table = x, .ids = some, .y = y})); });
}

void bench_sample(KernelBench& bench, int64_t m) {
  const Tensor logits = bench.alloc_random(DType::kF32, {m, kVocab}, 12.0f);
  const auto filled = [&](float value) {
    const Tensor tensor = bench.alloc(DType::kF32, {m});
    const std::vector<float> values(m, value);
    MOESAIC_CUDA_CHECK(cudaMemcpy(tensor.raw(), values.data(), m * 4, cudaMemcpyHostToDevice));
    return tensor;
  };
  const Tensor zeros = bench.alloc_i32(std::vector<int32_t>(m, 0)),
               fifty = bench.alloc_i32(std::vector<int32_t>(m, 50));
  const Tensor ids = bench.alloc(DType::kI32, {m});
  Tensor seeds = bench.alloc_i32(std::vector<int32_t>(2 * m, 7));
  seeds = Tensor(seeds.raw(), DType::kI64, {m});
  const Tensor zero = filled(0.0f), one = filled(1.0f), most = filled(0.95f);
  const auto time = [&](const char* op, const Tensor& temperature, const Tensor& top_k, const Tensor& top_p) {
    bench.measure({.op = op, .m = m, .n = kVocab, .dtype = "f32"}, {.bytes = 4.0 * static_cast<double>(m * kVocab)},
                  [&](cudaStream_t stream) {
                    must(sample(stream, {.logits = logits,
                                         .temperature = temperature,
                                         .top_k = top_k,
                                         .top_p = top_p,
                                         .min_p = zero,
                                         .seeds = seeds,
                                         .positions = seeds,
                                         .ids = ids}));
                  });
  };
  time("sample_greedy", zero, zeros, one);
  time("sample_all", one, zeros, one);
  time("sample_top_p", one, zeros, most);
  time("sample_top_k_top_p", one, fifty, most);
}

// Constrained outputs of which one token in two is allowed; 500 tokens were seen.
void bench_adjust_logits(KernelBench& bench, int64_t m) {
  constexpr int64_t kSeen = 500;
  std::vector<int32_t> begin, ids;
  for (int64_t r = 0; r <= m; ++r) begin.push_back(static_cast<int32_t>(r * kSeen));
  for (int64_t i = 0; i < m * kSeen; ++i) ids.push_back(static_cast<int32_t>(i % kSeen * 257));
  const int64_t words = kVocab / 64;
  const std::vector<int32_t> every_other(2 * m * words, 0x55555555);
  const Tensor penalty = bench.alloc_random(DType::kF32, {m}, 0.5f);
  const AdjustLogitsArgs args{.logits = bench.alloc_random(DType::kF32, {m, kVocab}, 12.0f),
                              .seen_begin = bench.alloc_i32(begin),
                              .seen_ids = bench.alloc_i32(ids),
                              .seen_counts = bench.alloc_i32(ids),
                              .frequency_penalties = penalty,
                              .presence_penalties = penalty,
                              .repetition_penalties = penalty,
                              .allowed = Tensor(bench.alloc_i32(every_other).raw(), DType::kI64, {m, words})};
  bench.measure({.op = "adjust_logits", .m = m, .n = kVocab, .dtype = "f32"},
                {.bytes = static_cast<double>(m) * (2.0 * kVocab + kVocab / 8.0 + 16.0 * kSeen)},
                [&](cudaStream_t stream) { must(adjust_logits(stream, args)); });
}

void bench_log_probs(KernelBench& bench, int64_t m) {
  const LogProbsArgs args{.logits = bench.alloc_random(DType::kF32, {m, kVocab}, 12.0f),
                          .ids = Tensor(bench.alloc_i32(std::vector<int32_t>(m, 7)).raw(), DType::kI32, {m, 1}),
                          .log_probs = bench.alloc(DType::kF32, {m, 1})};
  bench.measure({.op = "log_probs", .m = m, .n = kVocab, .dtype = "f32"},
                {.bytes = 4.0 * static_cast<double>(m * kVocab)},
                [&](cudaStream_t stream) { must(log_probs(stream, args)); });
}

}  // namespace

absl::Status bench_fused(KernelBench& bench) {
  for (const int64_t m : token_counts(kNormTokens)) bench_norm(bench, m);
  for (const int64_t m : token_counts(kSiluTokens)) bench_silu(bench, m);
  for (const int64_t m : token_counts(kGateTokens)) bench_gate(bench, m);
  for (const int64_t m : token_counts(kExpertRowsTokens)) bench_expert_rows(bench, m);
  for (const int64_t m : token_counts(kExpertRowsTokens)) bench_gather_rows(bench, m), bench.release();
  for (const int64_t m : token_counts(kRopeTokens)) {
    for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
      bench_rope_append(bench, m, dtype), bench_gather_latents(bench, m, dtype), bench.release();
    }
  }
  for (const int64_t m : token_counts(kCombineTokens)) bench_combine(bench, m), bench.release();
  for (const int64_t m : token_counts(kSampleRows))
    bench_sample(bench, m), bench_log_probs(bench, m), bench_adjust_logits(bench, m), bench.release();
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
