// The gate against the CPU's, and its traps: ties, NaN rows, padding, infinite logits, the bias.
#include "kernels/cuda/fused/gate.h"

#include <numeric>

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

struct GateCase {
  int64_t experts, n_group, topk_group, topk;
  ScoringFunc func;
  TopkMethod method;
  bool norm, bias;
  int64_t tokens = 300;
};

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<int32_t> counts;
};

constexpr float kScaling = 2.5f;

Routed cpu_gate(const GateCase& c, std::vector<float> logits, std::vector<float> bias) {
  const int64_t tokens = static_cast<int64_t>(logits.size()) / c.experts;
  Routed out{std::vector<int32_t>(tokens * c.topk), std::vector<float>(tokens * c.topk), {}};
  test::CpuStream cpu;
  moesaic::gate(cpu.stream, {.logits = test::f32_view(logits, {tokens, c.experts}),
                             .bias = c.bias ? test::f32_view(bias, {c.experts}) : Tensor(),
                             .scoring_func = c.func,
                             .topk_method = c.method,
                             .n_group = c.n_group,
                             .topk_group = c.topk_group,
                             .norm_topk_prob = c.norm,
                             .routed_scaling_factor = kScaling,
                             .topk_ids = {out.ids.data(), DType::kI32, {tokens, c.topk}},
                             .topk_weights = test::f32_view(out.weights, {tokens, c.topk})});
  return out;
}

class Gate : public test::CudaTest {
 protected:
  // `num_valid` < 0: not given.
  Routed run(const GateCase& c, const std::vector<float>& logits, const std::vector<float>& bias, int num_valid = -1) {
    const int64_t tokens = static_cast<int64_t>(logits.size()) / c.experts;
    const DeviceTensor in = test::upload(DType::kF32, {tokens, c.experts}, logits);
    const DeviceTensor b = test::upload(DType::kF32, {c.experts}, c.bias ? bias : std::vector<float>(c.experts));
    const DeviceTensor valid = test::upload(DType::kI32, {1}, std::vector<int32_t>{num_valid});
    const DeviceTensor counts = test::upload(DType::kI32, {c.experts}, std::vector<int32_t>(c.experts, 5));
    const DeviceTensor ids = test::poisoned(DType::kI32, {tokens, c.topk});
    const DeviceTensor weights = test::poisoned(DType::kF32, {tokens, c.topk});
    const absl::Status status = gate(stream(), {.logits = in,
                                                .bias = c.bias ? b.tensor : Tensor(),
                                                .num_valid = num_valid < 0 ? Tensor() : valid.tensor,
                                                .scoring_func = c.func,
                                                .topk_method = c.method,
                                                .n_group = c.n_group,
                                                .topk_group = c.topk_group,
                                                .norm_topk_prob = c.norm,
                                                .routed_scaling_factor = kScaling,
                                                .topk_ids = ids,
                                                .topk_weights = weights,
                                                .expert_counts = counts});
    EXPECT_TRUE(status.ok()) << status.message();
    return {test::download<int32_t>(ids), test::download<float>(weights), test::download<int32_t>(counts)};
  }
};

class GateShapes : public Gate, public testing::WithParamInterface<GateCase> {};

// True if the CPU itself routes one token otherwise when its logits move by a millionth.
bool is_close_call(const GateCase& c, const float* logits, const std::vector<float>& bias, const int32_t* ids) {
  Rng rng(99);
  for (int attempt = 0; attempt < 50; ++attempt) {
    std::vector<float> moved(logits, logits + c.experts);
    for (float& v : moved) v += static_cast<float>(2e-6 * (rng.uniform() - 0.5) * std::max(1.0f, std::fabs(v)));
    if (!std::equal(ids, ids + c.topk, cpu_gate(c, moved, bias).ids.begin())) return true;
  }
  return false;
}

TEST_P(GateShapes, RoutesAsTheCpu) {
  const GateCase c = GetParam();
  Rng rng(7);
  const int64_t tokens = c.tokens;
  std::vector<float> logits = test::gaussians(rng, tokens * c.experts, 2.0f);
  for (int64_t i = 0; i < tokens / 2 * c.experts; ++i) logits[i] = std::round(logits[i] * 4) / 4;  // ties
  const std::vector<float> bias = test::gaussians(rng, c.experts, 0.3f);
  const Routed got = run(c, logits, bias), want = cpu_gate(c, logits, bias);
  int close_calls = 0;
  for (int64_t t = 0; t < tokens; ++t) {
    const int32_t* ids = want.ids.data() + t * c.topk;
    if (!std::equal(ids, ids + c.topk, got.ids.begin() + t * c.topk)) {
      ASSERT_TRUE(is_close_call(c, logits.data() + t * c.experts, bias, ids)) << "token " << t;
      ++close_calls;
      continue;
    }
    for (int64_t i = t * c.topk; i < (t + 1) * c.topk; ++i) {
      EXPECT_NEAR(got.weights[i], want.weights[i], 2e-6 * std::max(1.0f, want.weights[i])) << "token " << t;
    }
  }
  EXPECT_LE(close_calls, tokens / 50 + 1);
  std::vector<int32_t> counts(c.experts, 5);
  for (const int32_t id : got.ids) ++counts[id];
  EXPECT_EQ(got.counts, counts);
  const Routed again = run(c, logits, bias);
  EXPECT_EQ(again.ids, got.ids);
  EXPECT_EQ(again.weights, got.weights);
}

constexpr auto kSigmoid = ScoringFunc::kSigmoid;
constexpr auto kSoftmax = ScoringFunc::kSoftmax;
constexpr auto kNoaux = TopkMethod::kNoauxTc;
constexpr auto kLimited = TopkMethod::kGroupLimitedGreedy;
constexpr auto kGreedy = TopkMethod::kGreedy;
INSTANTIATE_TEST_SUITE_P(
    Sizes, GateShapes,
    testing::Values(
        GateCase{256, 8, 4, 8, kSigmoid, kNoaux, true, true}, GateCase{256, 8, 4, 8, kSigmoid, kNoaux, true, false},
        GateCase{256, 8, 4, 32, kSoftmax, kLimited, false, false}, GateCase{256, 8, 3, 6, kSigmoid, kNoaux, true, true},
        GateCase{256, 1, 1, 8, kSigmoid, kNoaux, true, true}, GateCase{32, 8, 4, 4, kSigmoid, kNoaux, true, true},
        GateCase{8, 1, 1, 2, kSigmoid, kNoaux, true, true}, GateCase{12, 1, 1, 8, kSigmoid, kNoaux, true, true},
        GateCase{384, 1, 1, 8, kSigmoid, kNoaux, true, true}, GateCase{512, 16, 5, 9, kSigmoid, kNoaux, true, true},
        GateCase{64, 8, 4, 6, kSigmoid, kNoaux, false, true}, GateCase{8, 4, 2, 2, kSigmoid, kNoaux, true, false},
        GateCase{160, 8, 3, 6, kSoftmax, kLimited, false, false},
        GateCase{64, 1, 1, 6, kSoftmax, kGreedy, false, false}, GateCase{8, 1, 1, 2, kSoftmax, kGreedy, true, false},
        GateCase{1, 1, 1, 1, kSoftmax, kGreedy, true, false}, GateCase{7, 1, 1, 7, kSoftmax, kGreedy, true, true}));

std::vector<GateCase> bench_cases() {
  std::vector<GateCase> cases;
  for (const int64_t m : token_counts(kGateTokens)) {
    cases.push_back({kExperts, 8, 4, kTopk, kSigmoid, kNoaux, true, true, m});
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(FullSize, GateShapes, testing::ValuesIn(bench_cases()));

// Both kernels: DeepSeek-V3's shape, and another of the same size.
const GateCase kBoth[] = {{256, 8, 4, 8, kSigmoid, kNoaux, true, true}, {256, 4, 2, 8, kSigmoid, kNoaux, true, true}};

TEST_F(Gate, NanRowsAndPaddingRouteNowhereAndHarmNoOtherRow) {
  for (const GateCase& c : kBoth) {
    Rng rng(8);
    std::vector<float> logits = test::gaussians(rng, 12 * 256);
    const std::vector<float> bias(256, 0.0f);
    const Routed clean = run(c, logits, bias);
    logits[256 + 255] = test::kNan;
    std::fill_n(logits.begin() + 256 * 4, 256, test::kNan);
    std::fill(logits.begin() + 256 * 9, logits.end(), test::kNan);  // what lies in padding rows
    const Routed got = run(c, logits, bias, 9);
    std::vector<int32_t> counts(256, 5);
    for (int t = 0; t < 12; ++t) {
      const bool routed = t != 1 && t != 4 && t < 9;
      for (int i = t * 8; i < t * 8 + 8; ++i) {
        EXPECT_EQ(got.ids[i], routed ? clean.ids[i] : -1) << "token " << t;
        EXPECT_EQ(got.weights[i], routed ? clean.weights[i] : 0.0f) << "token " << t;
        if (routed) ++counts[clean.ids[i]];
      }
    }
    EXPECT_EQ(got.counts, counts);
  }
}

TEST_F(Gate, TiesGoToTheLowerExpert) {
  const std::vector<float> logits(256, 0.25f), bias(256, -0.0f);
  for (const GateCase& c : kBoth) {
    const Routed got = run(c, logits, bias);
    EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
    for (const float w : got.weights) EXPECT_NEAR(w, kScaling / 8, 1e-6);
  }
}

// Equal choices within a lane and across lanes and groups, negative ones, few that may be chosen: the ids are the
// CPU's.
TEST_F(Gate, RoutesAsTheCpuWhereChoicesAreEqualNegativeOrFew) {
  for (const GateCase& c : kBoth) {
    Rng rng(31);
    for (const float shift : {0.0f, -0.9f, -3.0f}) {
      for (const int levels : {2, 20, 300}) {
        for (const int finite : {256, 40, 9}) {
          std::vector<float> logits(200 * 256), bias(256);
          for (float& v : logits) v = static_cast<float>(rng.below(levels)) / static_cast<float>(levels);
          for (float& b : bias) b = static_cast<int>(rng.below(256)) < finite ? shift : -test::kInf;
          EXPECT_EQ(run(c, logits, bias).ids, cpu_gate(c, logits, bias).ids) << shift << " " << levels << " " << finite;
        }
      }
    }
  }
}

TEST_F(Gate, BiasSelectsButNeverWeighsAndKeepsItsPrecision) {
  for (const GateCase& c : kBoth) {
    std::vector<float> logits(256, -30.0f), bias(256, 0.0f);
    logits[130] = -17.0f, logits[131] = -17.5f;
    for (int i = 130; i < 138; ++i) bias[i] = 12.0f;
    bias[137] = 12.01f;
    const Routed got = run(c, logits, bias);
    EXPECT_EQ(got.ids, (std::vector<int32_t>{137, 130, 131, 132, 133, 134, 135, 136}));
    EXPECT_NEAR(got.weights[1] / kScaling, .6225, 1e-4);
    EXPECT_NEAR(got.weights[2] / kScaling, .3775, 1e-4);
  }
}

TEST_F(Gate, InfiniteLogitsGiveNoNan) {
  for (const GateCase& c : kBoth) {
    std::vector<float> logits(256, -500.0f);
    logits[0] = -test::kInf, logits[7] = 500.0f, logits[200] = test::kInf;
    const Routed got = run(c, logits, std::vector<float>(256, 0.0f));
    EXPECT_EQ(got.ids[0], 7);
    EXPECT_EQ(got.ids[1], 200);
    EXPECT_EQ(got.weights[0], kScaling * 0.5f);
    EXPECT_EQ(got.weights[2], 0.0f);
  }
  const Routed none = run({256, 8, 4, 8, kSigmoid, kNoaux, true, true}, std::vector<float>(256, 1.0f),
                          std::vector<float>(256, -test::kInf));
  EXPECT_EQ(none.ids, std::vector<int32_t>(8, -1));
  EXPECT_EQ(none.weights, std::vector<float>(8, 0.0f));
}

}  // namespace
}  // namespace moesaic::cuda
