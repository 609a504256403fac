// The gate against a plain double-precision reading of the reference, and its known traps.
#include <algorithm>
#include <numeric>

#include "kernels/cpu/op_test_util.h"

namespace moesaic {
namespace {

using test::Owned;

struct GateCase {
  int64_t experts, n_group, topk_group, topk;
  ScoringFunc func;
  TopkMethod method;
  bool norm;
  bool bias;
};

double logit(double score) {
  return std::log(score / (1 - score));
}

struct Routed {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routed run_gate(const GateCase& c, const std::vector<float>& logits, std::vector<float> bias, float scale,
                int threads) {
  ThreadPool pool(threads);
  Stream stream(pool);
  const int64_t tokens = static_cast<int64_t>(logits.size()) / c.experts;
  std::vector<float> in = logits;
  Routed out{std::vector<int32_t>(tokens * c.topk, 99), std::vector<float>(tokens * c.topk, test::kNan)};
  gate(stream, {.logits = {in.data(), DType::kF32, {tokens, c.experts}},
                .bias = bias.empty() ? Tensor() : Tensor(bias.data(), DType::kF32, {c.experts}),
                .scoring_func = c.func,
                .topk_method = c.method,
                .n_group = c.n_group,
                .topk_group = c.topk_group,
                .norm_topk_prob = c.norm,
                .routed_scaling_factor = scale,
                .topk_ids = {out.ids.data(), DType::kI32, {tokens, c.topk}},
                .topk_weights = {out.weights.data(), DType::kF32, {tokens, c.topk}}});
  return out;
}

std::vector<int> best_first(const std::vector<double>& values) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  return order;
}

// One token, as the reference does it. `margin` is the smallest gap that decided anything.
void reference(const GateCase& c, const float* logits, const std::vector<float>& bias, float scale,
               std::vector<int>& ids, std::vector<double>& weights, double& margin) {
  std::vector<double> score(c.experts), choice;
  double max = -1e30, sum = 0;
  for (int64_t e = 0; e < c.experts; ++e) max = std::max(max, double{logits[e]});
  for (int64_t e = 0; e < c.experts; ++e) {
    score[e] = c.func == ScoringFunc::kSigmoid ? 1 / (1 + std::exp(-double{logits[e]})) : std::exp(logits[e] - max);
    sum += score[e];
  }
  if (c.func == ScoringFunc::kSoftmax) {
    for (double& s : score) s /= sum;
  }
  choice = score;
  for (int64_t e = 0; e < c.experts && !bias.empty(); ++e) choice[e] += bias[e];
  margin = 1e30;
  const auto gap = [&](const std::vector<double>& v, const std::vector<int>& order, int64_t count) {
    for (int64_t i = 0; i < count && i + 1 < static_cast<int64_t>(order.size()); ++i) {
      if (!std::isinf(v[order[i + 1]])) margin = std::min(margin, v[order[i]] - v[order[i + 1]]);
    }
  };
  if (c.method != TopkMethod::kGreedy) {
    const int64_t size = c.experts / c.n_group;
    std::vector<double> group(c.n_group);
    for (int64_t g = 0; g < c.n_group; ++g) {
      std::vector<double> in(choice.begin() + g * size, choice.begin() + (g + 1) * size);
      std::sort(in.rbegin(), in.rend());
      group[g] = c.method == TopkMethod::kNoauxTc ? in[0] + in[1] : in[0];
    }
    const std::vector<int> order = best_first(group);
    gap(group, order, c.topk_group);
    for (int64_t g = c.topk_group; g < c.n_group; ++g) {
      std::fill_n(choice.begin() + order[g] * size, size, -INFINITY);
    }
  }
  ids = best_first(choice);
  gap(choice, ids, c.topk);
  ids.resize(c.topk);
  double total = 1e-20;
  for (const int e : ids) total += score[e];
  weights.clear();
  for (const int e : ids) weights.push_back(score[e] / (c.norm ? total : 1.0) * scale);
}

class Gate : public testing::TestWithParam<GateCase> {};

TEST_P(Gate, MatchesReference) {
  const GateCase c = GetParam();
  Rng rng(7);
  const int64_t tokens = 60;
  std::vector<float> logits(tokens * c.experts), bias(c.bias ? c.experts : 0);
  for (float& v : logits) v = test::gaussian(rng) * 2;
  for (float& v : bias) v = test::gaussian(rng) * 0.3f;
  test::for_each_isa([&] {
    const Routed got = run_gate(c, logits, bias, 2.5f, 1);
    int checked = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      std::vector<int> ids;
      std::vector<double> weights;
      double margin;
      reference(c, logits.data() + t * c.experts, bias, 2.5f, ids, weights, margin);
      if (margin < 1e-6) continue;
      ++checked;
      for (int64_t i = 0; i < c.topk; ++i) {
        EXPECT_EQ(got.ids[t * c.topk + i], ids[i]) << "token " << t;
        EXPECT_NEAR(got.weights[t * c.topk + i], weights[i], 1e-6 * std::max(1.0, weights[i]));
      }
    }
    EXPECT_GT(checked, 40);
    for (const int threads : {2, 3}) {
      const Routed again = run_gate(c, logits, bias, 2.5f, threads);
      EXPECT_EQ(again.ids, got.ids);
      EXPECT_EQ(again.weights, got.weights);
    }
  });
}

constexpr auto kSigmoid = ScoringFunc::kSigmoid;
constexpr auto kSoftmax = ScoringFunc::kSoftmax;
constexpr auto kNoaux = TopkMethod::kNoauxTc;
constexpr auto kLimited = TopkMethod::kGroupLimitedGreedy;
constexpr auto kGreedy = TopkMethod::kGreedy;
INSTANTIATE_TEST_SUITE_P(
    Sizes, Gate,
    testing::Values(
        GateCase{256, 8, 4, 8, kSigmoid, kNoaux, true, true}, GateCase{32, 8, 4, 4, kSigmoid, kNoaux, true, true},
        GateCase{8, 1, 1, 2, kSigmoid, kNoaux, true, true}, GateCase{12, 1, 1, 8, kSigmoid, kNoaux, true, true},
        GateCase{384, 1, 1, 8, kSigmoid, kNoaux, true, true}, GateCase{64, 8, 4, 6, kSigmoid, kNoaux, false, true},
        GateCase{8, 4, 2, 2, kSigmoid, kNoaux, true, false}, GateCase{160, 8, 3, 6, kSoftmax, kLimited, false, false},
        GateCase{64, 1, 1, 6, kSoftmax, kGreedy, false, false}, GateCase{8, 1, 1, 2, kSoftmax, kGreedy, true, false},
        GateCase{1, 1, 1, 1, kSoftmax, kGreedy, true, false}, GateCase{7, 1, 1, 7, kSoftmax, kGreedy, true, true}));

TEST(GateTraps, BiasSelectsButNeverWeighs) {
  const double scores[] = {.9, 1e-9, .6, .5, .55, .54, .8, .05};
  std::vector<float> logits, bias(8, 0.0f);
  for (const double s : scores) logits.push_back(static_cast<float>(logit(s)));
  bias[2] = 0.3f;
  const Routed got = run_gate({8, 4, 2, 2, kSigmoid, kNoaux, true, true}, logits, bias, 1.0f, 1);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{2, 4}));
  EXPECT_NEAR(got.weights[0], .5217, 1e-4);
  EXPECT_NEAR(got.weights[1], .4783, 1e-4);
}

TEST(GateTraps, TinyScoresUnderALargeBias) {
  std::vector<float> logits(8, -30.0f), bias(8, 0.0f);
  logits[3] = -17.0f, logits[5] = -17.5f;
  bias[3] = bias[5] = 12.0f;
  const Routed got = run_gate({8, 1, 1, 2, kSigmoid, kNoaux, true, true}, logits, bias, 1.0f, 1);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{3, 5}));
  EXPECT_NEAR(got.weights[0], .6225, 1e-4);
  EXPECT_NEAR(got.weights[1], .3775, 1e-4);
}

TEST(GateTraps, BiasKeepsItsPrecision) {
  const Routed got = run_gate({2, 1, 1, 1, kSigmoid, kNoaux, true, true}, {0.5f, 0.5f}, {6.990f, 7.010f}, 1.0f, 1);
  EXPECT_EQ(got.ids[0], 1);
}

TEST(GateTraps, TiesGoToTheLowerExpert) {
  const std::vector<float> logits(16, 0.25f);
  const Routed got = run_gate({16, 4, 2, 4, kSigmoid, kNoaux, true, false}, logits, {}, 1.0f, 1);
  EXPECT_EQ(got.ids, (std::vector<int32_t>{0, 1, 2, 3}));
  for (const float w : got.weights) EXPECT_NEAR(w, 0.25f, 1e-6);
}

TEST(GateTraps, NanRowsRouteNowhereAndHarmNoOtherRow) {
  Rng rng(8);
  test::for_each_isa([&] {
    for (const auto func : {kSigmoid, kSoftmax}) {
      const GateCase c{33, 1, 1, 5, func, kNoaux, true, false};
      std::vector<float> logits(33 * 6);
      for (float& v : logits) v = test::gaussian(rng);
      const Routed clean = run_gate(c, logits, {}, 2.5f, 2);
      logits[33 + 32] = test::kNan;
      std::fill_n(logits.begin() + 33 * 4, 33, test::kNan);
      const Routed got = run_gate(c, logits, {}, 2.5f, 2);
      for (int t = 0; t < 6; ++t) {
        for (int i = t * 5; i < t * 5 + 5; ++i) {
          EXPECT_EQ(got.ids[i], t == 1 || t == 4 ? -1 : clean.ids[i]);
          EXPECT_EQ(got.weights[i], t == 1 || t == 4 ? 0.0f : clean.weights[i]);
        }
      }
    }
  });
}

TEST(GateTraps, InfiniteLogitsGiveNoNan) {
  test::for_each_isa([&] {
    const Routed got =
        run_gate({4, 1, 1, 2, kSigmoid, kNoaux, true, false}, {-test::kInf, -500, 500, test::kInf}, {}, 1, 1);
    EXPECT_EQ(got.ids, (std::vector<int32_t>{2, 3}));
    EXPECT_EQ(got.weights[0], 0.5f);
    const Routed soft =
        run_gate({4, 1, 1, 2, kSoftmax, kGreedy, true, false}, {-test::kInf, 1, -test::kInf, 1}, {}, 1, 1);
    EXPECT_EQ(soft.ids, (std::vector<int32_t>{1, 3}));
    EXPECT_EQ(soft.weights[0], 0.5f);
  });
}

TEST(GateTraps, NoTokens) {
  EXPECT_TRUE(run_gate({8, 1, 1, 2, kSigmoid, kNoaux, true, false}, {}, {}, 1, 2).ids.empty());
}

}  // namespace
}  // namespace moesaic
