// What the operations of this folder refuse, without a GPU: every tensor wrong in turn, every limit by its message.
#include "kernels/cuda/fused/adjust_logits.h"
#include "kernels/cuda/fused/combine.h"
#include "kernels/cuda/fused/expert_rows.h"
#include "kernels/cuda/fused/gate.h"
#include "kernels/cuda/fused/gather_latents.h"
#include "kernels/cuda/fused/gather_rows.h"
#include "kernels/cuda/fused/log_probs.h"
#include "kernels/cuda/fused/quantize.h"
#include "kernels/cuda/fused/rms_norm.h"
#include "kernels/cuda/fused/rope_append.h"
#include "kernels/cuda/fused/sample.h"
#include "kernels/cuda/fused/silu_mul.h"
#include "kernels/cuda/fused/verify_drafts.h"
#include "kernels/cuda/refusal_test_util.h"
#include "kernels/cuda/scales.h"

namespace moesaic::cuda {
namespace {

using test::ArgsRules;
using test::nowhere;

constexpr auto kBF16 = DType::kBF16;
constexpr auto kE4M3 = DType::kE4M3;
constexpr auto kF32 = DType::kF32;
constexpr auto kI32 = DType::kI32;

Tensor scales(int64_t m, int64_t k) {
  return nowhere(kF32, {k / kScaleGroup, scale_row_stride(m)});
}

TEST(FusedRefusals, RmsNorm) {
  using Args = RmsNormArgs;
  const auto make = [](int64_t m, int64_t n) {
    return Args{.x = nowhere(kBF16, {m, n}),
                .residual = nowhere(kBF16, {m, n}),
                .weight = nowhere(kBF16, {n}),
                .eps = 1e-6f,
                .y = nowhere(kBF16, {m, n}),
                .q = nowhere(kE4M3, {m, n}),
                .scales = nowhere(kF32, {(n + 127) / 128, scale_row_stride(m)})};
  };
  const ArgsRules<Args> rules("rms_norm", rms_norm, [&] { return make(6, 256); },
                              {{.name = "x", .member = &Args::x, .rows_strided = true},
                               {.name = "residual", .member = &Args::residual, .optional = true},
                               {.name = "weight", .member = &Args::weight},
                               {.name = "y", .member = &Args::y, .optional = true, .rows_strided = true},
                               {.name = "q", .member = &Args::q, .optional = true},
                               {.name = "scales", .member = &Args::scales}});
  const std::string limit = "rms_norm: made for rows of at most 16384 channels, divisible by 8, or by 128 to quantise";
  rules.expect_refusals(
      {{[&](Args& args) { args = make(6, 16512); }, limit},
       {[&](Args& args) { args = make(6, 264); }, limit},
       {[&](Args& args) { args = make(6, 12), args.q = Tensor(); }, limit},
       {[&](Args& args) { args = make(6, 0); }, limit},
       {[](Args& args) { args.y = args.q = Tensor(); }, "rms_norm: made for an output: y, q or both"}});
  EXPECT_TRUE(rms_norm(nullptr, make(0, 256)).ok());
}

TEST(FusedRefusals, Quantize) {
  using Args = QuantizeArgs;
  const auto make = [](int64_t m) {
    return Args{.x = nowhere(kBF16, {m, 384}), .q = nowhere(kE4M3, {m, 384}), .scales = scales(m, 384)};
  };
  const ArgsRules<Args> rules("quantize_fp8", quantize_fp8, [&] { return make(6); },
                              {{.name = "x", .member = &Args::x, .rows_strided = true},
                               {.name = "q", .member = &Args::q},
                               {.name = "scales", .member = &Args::scales}});
  rules.expect_refusals({{[](Args& args) {
                            args.x = nowhere(kBF16, {6, 200});
                          },
                          "quantize_fp8: made for channels, of each head, divisible by 128"}});
  const auto make_heads = [](int64_t m) {
    return Args{.x = nowhere(kBF16, {m, 3, 192}), .q = nowhere(kE4M3, {m, 384}), .scales = scales(m, 384)};
  };
  const ArgsRules<Args> heads("quantize_fp8", quantize_fp8, [&] { return make_heads(6); },
                              {{.name = "x", .member = &Args::x},
                               {.name = "q", .member = &Args::q},
                               {.name = "scales", .member = &Args::scales}});
  heads.expect_refusals({{[](Args& args) {
                            args.x = nowhere(kBF16, {6, 3, 120});
                          },
                          "quantize_fp8: made for heads that hold k / heads, divisible by 8"}});
  EXPECT_TRUE(quantize_fp8(nullptr, make(0)).ok());
  EXPECT_TRUE(quantize_fp8(nullptr, make_heads(0)).ok());
}

TEST(FusedRefusals, SiluMulQuantize) {
  using Args = SiluMulQuantizeArgs;
  const auto masked = [](int64_t groups, int64_t room) {
    return Args{.gate_up = nowhere(kBF16, {groups * room, 512}),
                .group_rows = nowhere(kI32, {groups}),
                .q = nowhere(kE4M3, {groups * room, 256}),
                .scales = nowhere(kF32, {groups, 2, scale_row_stride(room)})};
  };
  const auto contiguous = [] {
    return Args{.gate_up = nowhere(kBF16, {256, 512}),
                .group_begin = nowhere(kI32, {3}),
                .group_rows = nowhere(kI32, {3}),
                .q = nowhere(kE4M3, {256, 256}),
                .scales = scales(256, 256)};
  };
  const std::vector<test::TensorRule<Args>> tensors = {{.name = "gate_up", .member = &Args::gate_up},
                                                       {.name = "q", .member = &Args::q},
                                                       {.name = "scales", .member = &Args::scales}};
  const ArgsRules<Args> of_masked(
      "silu_mul_quantize", silu_mul_quantize, [&] { return masked(3, 6); }, tensors);
  of_masked.expect_refusals(
      {{[&](Args& args) { args = masked(1025, 1); }, "silu_mul_quantize: made for 1 to 1024 groups"},
       {[&](Args& args) { args.group_rows = nowhere(kI32, {4}); },
        "silu_mul_quantize: made for rows divisible by the number of groups"}});
  std::vector<test::TensorRule<Args>> with_groups = tensors;
  with_groups.push_back({.name = "group_begin", .member = &Args::group_begin, .optional = true});
  with_groups.push_back({.name = "group_rows", .member = &Args::group_rows, .optional = true});
  const ArgsRules<Args> of_contiguous("silu_mul_quantize", silu_mul_quantize, contiguous, with_groups);
  of_contiguous.expect_refusals({{[](Args& args) {
                                    args.q = nowhere(kE4M3, {256, 200});
                                  },
                                  "silu_mul_quantize: made for channels divisible by 128"}});
  EXPECT_TRUE(silu_mul_quantize(nullptr, masked(3, 0)).ok());
}

TEST(FusedRefusals, RopeAppend) {
  using Args = RopeAppendArgs;
  const auto make = [](int64_t m, DType dtype) {
    return Args{.kv = nowhere(kBF16, {m, 576}),
                .norm_weight = nowhere(kBF16, {512}),
                .eps = 1e-6f,
                .q = nowhere(kBF16, {m, 2, 192}),
                .q_out = nowhere(kBF16, {m, 2, 576}),
                .table = nowhere(kF32, {100, 64}),
                .positions = nowhere(kI32, {m}),
                .slots = nowhere(kI32, {m}),
                .rows = nowhere(dtype, {40, dtype == kBF16 ? 576 : 656})};
  };
  for (const DType dtype : {kBF16, kE4M3}) {
    const ArgsRules<Args> rules("rope_append", rope_append, [&] { return make(6, dtype); },
                                {{.name = "kv", .member = &Args::kv, .rows_strided = true},
                                 {.name = "norm_weight", .member = &Args::norm_weight, .optional = true},
                                 {.name = "q", .member = &Args::q, .optional = true},
                                 {.name = "q_out", .member = &Args::q_out, .optional = true},
                                 {.name = "table", .member = &Args::table, .free_dims = {0}},
                                 {.name = "positions", .member = &Args::positions},
                                 {.name = "slots", .member = &Args::slots},
                                 {.name = "rows", .member = &Args::rows, .free_dims = {0}}});
    const std::string divisible =
        "rope_append: made for rope_dim divisible by 8, kv_lora_rank by 128 (FP8 rows: by 512)";
    rules.expect_refusals({{[](Args& args) {
                              args.table = nowhere(kF32, {100, 60});
                            },
                            divisible},
                           {[](Args& args) {
                              args.table = nowhere(kF32, {100, 1024});
                            },
                            divisible},
                           {[](Args& args) {
                              args.kv = nowhere(kBF16, {6, 2048 + 64});
                            },
                            "rope_append: made for cache rows of at most 2048 elements"},
                           {[](Args& args) {
                              args.q_out = nowhere(kBF16, {6, 2, 56});
                            },
                            "rope_append: made for heads of a width divisible by 8"}});
    EXPECT_TRUE(rope_append(nullptr, make(0, dtype)).ok());
  }
}

TEST(FusedRefusals, Gate) {
  using Args = GateArgs;
  const auto make = [](int64_t m, int64_t experts, int64_t topk) {
    return Args{.logits = nowhere(kF32, {m, experts}),
                .bias = nowhere(kF32, {experts}),
                .num_valid = nowhere(kI32, {1}),
                .scoring_func = ScoringFunc::kSigmoid,
                .topk_method = TopkMethod::kNoauxTc,
                .n_group = 4,
                .topk_group = 2,
                .norm_topk_prob = true,
                .routed_scaling_factor = 1.0f,
                .topk_ids = nowhere(kI32, {m, topk}),
                .topk_weights = nowhere(kF32, {m, topk}),
                .expert_counts = nowhere(kI32, {experts})};
  };
  const ArgsRules<Args> rules("gate", gate, [&] { return make(6, 32, 3); },
                              {{.name = "logits", .member = &Args::logits},
                               {.name = "bias", .member = &Args::bias, .optional = true},
                               {.name = "num_valid", .member = &Args::num_valid, .optional = true},
                               {.name = "topk_ids", .member = &Args::topk_ids},
                               {.name = "topk_weights", .member = &Args::topk_weights},
                               {.name = "expert_counts", .member = &Args::expert_counts, .optional = true}});
  rules.expect_refusals({{[&](Args& args) { args = make(6, 516, 8); }, "gate: made for 1 to 512 experts"},
                         {[&](Args& args) { args = make(6, 256, 33); }, "gate: made for 1 to 32 experts a token"},
                         {[&](Args& args) { args = make(6, 34, 2); }, "gate: made for groups of equal size"},
                         {[&](Args& args) { args.topk_group = 0; }, "gate: made for groups of equal size"},
                         {[&](Args& args) { args = make(6, 8, 5); },
                          "gate: made for no more experts a token than the kept groups have"}});
  EXPECT_TRUE(gate(nullptr, make(0, 32, 3)).ok());
}

TEST(FusedRefusals, ExpertRows) {
  using Args = ExpertRowsArgs;
  const auto make = [] {
    return Args{.topk_ids = nowhere(kI32, {6, 2}),
                .expert_counts = nowhere(kI32, {4}),
                .group_begin = nowhere(kI32, {4}),
                .row_experts = nowhere(kI32, {1024}),
                .row_tokens = nowhere(kI32, {1024}),
                .choice_rows = nowhere(kI32, {6, 2})};
  };
  const ArgsRules<Args> rules("expert_rows", expert_rows, make,
                              {{.name = "topk_ids", .member = &Args::topk_ids},
                               {.name = "expert_counts", .member = &Args::expert_counts},
                               {.name = "group_begin", .member = &Args::group_begin},
                               {.name = "row_experts", .member = &Args::row_experts},
                               {.name = "row_tokens", .member = &Args::row_tokens},
                               {.name = "choice_rows", .member = &Args::choice_rows}});
  rules.expect_refusals({{[](Args& args) { args.expert_counts = args.group_begin = nowhere(kI32, {1025}); },
                          "expert_rows: made for 1 to 1024 experts"},
                         {[](Args& args) {
                            args.topk_ids = nowhere(kI32, {1 << 22, 8});
                          },
                          "expert_rows: made for at most 2^24 choices"},
                         {[](Args& args) { args.row_experts = args.row_tokens = nowhere(kI32, {256}); },
                          "expert_rows: made for at least most_expert_rows rows"}});
  EXPECT_EQ(most_expert_rows(12, 4), 4 * 128);
  EXPECT_EQ(most_expert_rows(2, 4), 2 * 128);
  EXPECT_EQ(most_expert_rows(0, 4), 0);
}

TEST(FusedRefusals, Combine) {
  using Args = CombineArgs;
  const auto make = [](int64_t m) {
    return Args{.x = nowhere(kBF16, {20, 64}),
                .row_ids = nowhere(kI32, {m, 3}),
                .weights = nowhere(kF32, {m, 3}),
                .base = nowhere(kBF16, {m, 64}),
                .y = nowhere(kBF16, {m, 64})};
  };
  const ArgsRules<Args> rules("combine", combine, [&] { return make(6); },
                              {{.name = "x", .member = &Args::x, .rows_strided = true, .free_dims = {0}},
                               {.name = "row_ids", .member = &Args::row_ids},
                               {.name = "weights", .member = &Args::weights},
                               {.name = "base", .member = &Args::base, .optional = true, .rows_strided = true},
                               {.name = "y", .member = &Args::y, .rows_strided = true}});
  rules.expect_refusals({{[](Args& args) {
                            args.y = nowhere(kBF16, {6, 12});
                          },
                          "combine: made for rows of channels divisible by 8"},
                         {[](Args& args) {
                            args.row_ids = nowhere(kI32, {6, 33});
                          },
                          "combine: made for 1 to 32 experts a token"}});
  EXPECT_TRUE(combine(nullptr, make(0)).ok());
}

TEST(FusedRefusals, Embedding) {
  using Args = EmbeddingArgs;
  const auto make = [](int64_t m) {
    return Args{.table = nowhere(kBF16, {50, 64}), .ids = nowhere(kI32, {m}), .y = nowhere(kBF16, {m, 64})};
  };
  const ArgsRules<Args> rules("embedding", embedding, [&] { return make(6); },
                              {{.name = "table", .member = &Args::table, .free_dims = {0}},
                               {.name = "ids", .member = &Args::ids},
                               {.name = "y", .member = &Args::y, .rows_strided = true}});
  rules.expect_refusals({});
  EXPECT_TRUE(embedding(nullptr, make(0)).ok());
}

TEST(FusedRefusals, GatherRows) {
  using Args = GatherRowsArgs;
  const auto make = [](int64_t rows) {
    return Args{.q = nowhere(kE4M3, {6, 256}),
                .scales = scales(6, 256),
                .row_tokens = nowhere(kI32, {rows}),
                .q_out = nowhere(kE4M3, {rows, 256}),
                .scales_out = scales(rows, 256)};
  };
  const ArgsRules<Args> rules("gather_rows", gather_rows, [&] { return make(9); },
                              {{.name = "q", .member = &Args::q, .free_dims = {0}},
                               {.name = "scales", .member = &Args::scales},
                               {.name = "row_tokens", .member = &Args::row_tokens},
                               {.name = "q_out", .member = &Args::q_out},
                               {.name = "scales_out", .member = &Args::scales_out}});
  rules.expect_refusals({{[](Args& args) {
                            args.q = nowhere(kE4M3, {6, 200});
                          },
                          "gather_rows: k 200, made for multiples of 128"},
                         {[](Args& args) {
                            args.q = nowhere(kE4M3, {9, 256});
                          },
                          "gather_rows: expected scales f32 [2, 12], got f32 [2, 8]"}});
  EXPECT_TRUE(gather_rows(nullptr, make(0)).ok());
}

TEST(FusedRefusals, GatherLatents) {
  using Args = GatherLatentsArgs;
  const auto make = [](int64_t keys, DType dtype) {
    return Args{.rows = nowhere(dtype, {3 * 64, dtype == kBF16 ? 576 : 656}),
                .block_table = nowhere(kI32, {3, 5}),
                .kv_begin = nowhere(kI32, {4}),
                .rope_dim = 64,
                .q = nowhere(kE4M3, {keys, 512}),
                .scales = scales(keys, 512),
                .keys = nowhere(kBF16, {keys, 2, 192})};
  };
  for (const DType dtype : {kBF16, kE4M3}) {
    const ArgsRules<Args> rules(
        "gather_latents", gather_latents, [&] { return make(9, dtype); },
        {{.name = "rows", .member = &Args::rows, .free_dims = {0}},
         {.name = "block_table", .member = &Args::block_table, .crooked = true, .free_dims = {1}},
         {.name = "kv_begin", .member = &Args::kv_begin},
         {.name = "q", .member = &Args::q},
         {.name = "scales", .member = &Args::scales},
         {.name = "keys", .member = &Args::keys, .free_dims = {1}}});
    rules.expect_refusals(
        {{[](Args& args) { args.rope_dim = 60; }, "gather_latents: rope_dim 60, made for multiples of 8"},
         {[](Args& args) { args.rope_dim = 200; }, "gather_latents: rope_dim 200, made for 8 to 192"},
         {[](Args& args) {
            args.q = nowhere(kE4M3, {9, 1536});
          },
          "gather_latents: lora 1536, made for 0 to 1024"},
         {[](Args& args) {
            args.block_table = nowhere(kI32, {0, 5});
          },
          "gather_latents: num_seqs 0, made for 1 to 1048576"}});
    EXPECT_TRUE(gather_latents(nullptr, make(0, dtype)).ok());
  }
}

TEST(FusedRefusals, AdjustLogits) {
  using Args = AdjustLogitsArgs;
  const auto make = [](int64_t rows, int64_t vocab) {
    return Args{.logits = nowhere(kF32, {rows, vocab}),
                .seen_begin = nowhere(kI32, {rows + 1}),
                .seen_ids = nowhere(kI32, {9}),
                .seen_counts = nowhere(kI32, {9}),
                .frequency_penalties = nowhere(kF32, {rows}),
                .presence_penalties = nowhere(kF32, {rows}),
                .repetition_penalties = nowhere(kF32, {rows}),
                .allowed = nowhere(DType::kI64, {rows, (vocab + 63) / 64})};
  };
  const ArgsRules<Args> rules("adjust_logits", adjust_logits, [&] { return make(6, 100); },
                              {{.name = "logits", .member = &Args::logits, .rows_strided = true},
                               {.name = "seen_begin", .member = &Args::seen_begin, .optional = true},
                               {.name = "seen_ids", .member = &Args::seen_ids},
                               {.name = "seen_counts", .member = &Args::seen_counts},
                               {.name = "frequency_penalties", .member = &Args::frequency_penalties},
                               {.name = "presence_penalties", .member = &Args::presence_penalties},
                               {.name = "repetition_penalties", .member = &Args::repetition_penalties},
                               {.name = "allowed", .member = &Args::allowed, .optional = true}});
  rules.expect_refusals(
      {{[&](Args& args) { args = make(6, 102); }, "adjust_logits: vocab 102, made for multiples of 4"}});
  EXPECT_TRUE(adjust_logits(nullptr, make(0, 100)).ok());
}

TEST(FusedRefusals, LogProbs) {
  using Args = LogProbsArgs;
  const auto make = [](int64_t rows, int64_t vocab, int64_t ids) {
    return Args{.logits = nowhere(kF32, {rows, vocab}),
                .ids = nowhere(kI32, {rows, ids}),
                .log_probs = nowhere(kF32, {rows, ids})};
  };
  const ArgsRules<Args> rules("log_probs", log_probs, [&] { return make(6, 64, 3); },
                              {{.name = "logits", .member = &Args::logits, .rows_strided = true},
                               {.name = "ids", .member = &Args::ids},
                               {.name = "log_probs", .member = &Args::log_probs}});
  rules.expect_refusals(
      {{[&](Args& args) { args = make(6, 62, 3); }, "log_probs: vocab 62, made for multiples of 4"},
       {[&](Args& args) { args = make(6, 64, 1025); }, "log_probs: num_ids 1025, made for 1 to 1024"}});
  EXPECT_TRUE(log_probs(nullptr, make(0, 64, 3)).ok());
}

TEST(FusedRefusals, Sample) {
  using Args = SampleArgs;
  const auto make = [](int64_t rows, int64_t vocab) {
    return Args{.logits = nowhere(kF32, {rows, vocab}),
                .temperature = nowhere(kF32, {rows}),
                .top_k = nowhere(kI32, {rows}),
                .top_p = nowhere(kF32, {rows}),
                .min_p = nowhere(kF32, {rows}),
                .seeds = nowhere(DType::kI64, {rows}),
                .positions = nowhere(DType::kI64, {rows}),
                .ids = nowhere(kI32, {rows})};
  };
  const ArgsRules<Args> rules("sample", sample, [&] { return make(6, 64); },
                              {{.name = "logits", .member = &Args::logits, .rows_strided = true},
                               {.name = "temperature", .member = &Args::temperature},
                               {.name = "top_k", .member = &Args::top_k},
                               {.name = "top_p", .member = &Args::top_p},
                               {.name = "min_p", .member = &Args::min_p},
                               {.name = "seeds", .member = &Args::seeds},
                               {.name = "positions", .member = &Args::positions},
                               {.name = "ids", .member = &Args::ids}});
  const std::string limit = "sample: made for a vocabulary divisible by 4, at most 344064";
  rules.expect_refusals({{[&](Args& args) { args = make(6, 344068); }, limit},
                         {[&](Args& args) { args = make(6, 62); }, limit},
                         {[&](Args& args) { args = make(6, 0); }, limit}});
  EXPECT_TRUE(sample(nullptr, make(0, 64)).ok());
}

TEST(FusedRefusals, VerifyDrafts) {
  using Args = VerifyDraftsArgs;
  const auto make = [](int64_t seqs, int64_t depth) {
    return Args{.draft_ids = nowhere(kI32, {seqs, depth}),
                .num_drafts = nowhere(kI32, {seqs}),
                .sampled_ids = nowhere(kI32, {seqs, depth + 1}),
                .num_accepted = nowhere(kI32, {seqs}),
                .next_ids = nowhere(kI32, {seqs})};
  };
  const ArgsRules<Args> rules("verify_drafts", verify_drafts, [&] { return make(6, 3); },
                              {{.name = "draft_ids", .member = &Args::draft_ids},
                               {.name = "num_drafts", .member = &Args::num_drafts, .optional = true},
                               {.name = "sampled_ids", .member = &Args::sampled_ids},
                               {.name = "num_accepted", .member = &Args::num_accepted},
                               {.name = "next_ids", .member = &Args::next_ids}});
  rules.expect_refusals(
      {{[&](Args& args) { args = make(6, 1025); }, "verify_drafts: made for 1 to 1024 drafts a sequence"}});
  EXPECT_TRUE(verify_drafts(nullptr, make(0, 3)).ok());
}

}  // namespace
}  // namespace moesaic::cuda
