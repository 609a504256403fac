// Penalties, sampling and log_sum_exp against exact distributions.
#include <algorithm>
#include <numeric>

#include "kernels/cpu/op_test_util.h"

namespace moesaic {
namespace {

struct Cuts {
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
};

// Exact probabilities by sorting.
std::vector<double> distribution(const std::vector<float>& logits, const Cuts& cuts) {
  const size_t n = logits.size();
  std::vector<int> order;
  for (size_t i = 0; i < n; ++i) {
    if (!std::isnan(logits[i])) order.push_back(static_cast<int>(i));
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
  if (cuts.top_k > 0 && cuts.top_k < static_cast<int>(order.size())) order.resize(cuts.top_k);
  std::vector<double> p(n, 0.0);
  double sum = 0;
  for (const int i : order) sum += p[i] = std::exp((double{logits[i]} - logits[order[0]]) / cuts.temperature);
  double before = 0;
  for (const int i : order) {
    const double mass = p[i];
    if ((before > 0 && before >= cuts.top_p * sum) || mass < cuts.min_p) p[i] = 0;
    before += mass;
  }
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& x : p) x /= total;
  return p;
}

SampleArgs sample_args(const std::vector<float>& logits, const Cuts& cuts, double uniform) {
  return {.logits = logits,
          .temperature = cuts.temperature,
          .top_k = cuts.top_k,
          .top_p = cuts.top_p,
          .min_p = cuts.min_p,
          .uniform = uniform};
}

class Sampling : public testing::TestWithParam<Cuts> {};

TEST_P(Sampling, FollowsTheExactDistribution) {
  test::for_each_isa([] {
    Rng rng(9);
    std::vector<float> logits(60);
    for (float& v : logits) v = test::gaussian(rng) * 2;
    logits[7] = test::kNan;
    logits[8] = -test::kInf;
    logits[20] = logits[21] = logits[22] = logits[5];
    const std::vector<double> want = distribution(logits, GetParam());
    std::vector<int> counts(logits.size());
    const int draws = 40000;
    for (int i = 0; i < draws; ++i) {
      const int32_t id = sample_token(sample_args(logits, GetParam(), rng.uniform()));
      ASSERT_TRUE(id >= 0 && id < 60);
      ++counts[id];
    }
    double chi2 = 0;
    int freedom = -1;
    for (size_t i = 0; i < logits.size(); ++i) {
      if (want[i] == 0.0) {
        EXPECT_EQ(counts[i], 0) << "token " << i << " is cut";
      }
      if (want[i] * draws < 5) continue;
      chi2 += std::pow(counts[i] - want[i] * draws, 2) / (want[i] * draws);
      ++freedom;
    }
    EXPECT_LT(chi2, freedom + 5 * std::sqrt(2.0 * freedom + 1)) << freedom << " degrees of freedom";
  });
}
INSTANTIATE_TEST_SUITE_P(Cuts, Sampling,
                         testing::Values(Cuts{1, 0, 1, 0}, Cuts{0.5f, 0, 1, 0}, Cuts{2, 0, 1, 0}, Cuts{1, 5, 1, 0},
                                         Cuts{1, 1, 1, 0}, Cuts{1, 0, 0.7f, 0}, Cuts{1, 0, 0.99f, 0},
                                         Cuts{1, 0, 1, 0.05f}, Cuts{1.3f, 12, 0.8f, 0}, Cuts{1.3f, 30, 0.9f, 0.1f},
                                         Cuts{1, 1000, 0.0f, 0}, Cuts{5, 0, 0.95f, 0.3f}));

TEST(Sampling, KeptSetIsExactOnLargeVocabularies) {
  Rng rng(10);
  std::vector<float> logits(5000);
  for (float& v : logits) v = std::round(test::gaussian(rng) * 40) / 16;  // many ties
  for (const Cuts& cuts : {Cuts{1, 50, 1, 0}, Cuts{1, 4999, 1, 0}, Cuts{0.7f, 0, 0.6f, 0}, Cuts{1, 300, 0.9f, 0.2f}}) {
    const std::vector<double> want = distribution(logits, cuts);
    // Walks the inverse cumulative function: just inside each token's interval.
    double before = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      const double middle = before + want[i] / 2;
      before += want[i];
      if (want[i] < 1e-5) continue;  // narrower than the rounding of the sums before it
      ASSERT_EQ(sample_token(sample_args(logits, cuts, middle)), static_cast<int32_t>(i));
    }
  }
}

TEST(Sampling, TemperatureZeroIsArgmaxWithTheLowestIdOnTies) {
  std::vector<float> logits = {1, 3, 2, 3, test::kNan};
  EXPECT_EQ(sample_token({.logits = logits, .temperature = 0, .uniform = 0.99}), 1);
  logits[0] = test::kInf;
  EXPECT_EQ(sample_token({.logits = logits, .temperature = 0}), 0);
  EXPECT_EQ(sample_token({.logits = logits, .temperature = 1, .uniform = 0.999}), 0);
}

TEST(Sampling, TinyTemperatureAndExtremeUniform) {
  const std::vector<float> logits = {-3, 8, 7.999f, -1e30f};
  EXPECT_EQ(sample_token({.logits = logits, .temperature = 1e-30f, .uniform = 0.999999}), 1);
  EXPECT_EQ(sample_token({.logits = logits, .temperature = 1, .uniform = 0}), 0);
  EXPECT_EQ(sample_token({.logits = logits, .temperature = 1, .uniform = std::nextafter(1.0, 0.0)}), 2);
}

TEST(Sampling, NanNeverWins) {
  const std::vector<float> all(9, test::kNan);
  EXPECT_EQ(sample_token({.logits = all}), -1);
  EXPECT_EQ(sample_token({.logits = all, .temperature = 0}), -1);
  const std::vector<float> one = {test::kNan, -5, test::kNan};
  for (const float top_p : {1.0f, 0.5f, 0.0f}) {
    EXPECT_EQ(sample_token({.logits = one, .top_k = 2, .top_p = top_p, .min_p = 1, .uniform = 0.9}), 1);
  }
  const std::vector<float> ruled_out = {test::kNan, -test::kInf, -test::kInf};
  EXPECT_EQ(sample_token({.logits = ruled_out, .uniform = 0.9}), 1);
}

TEST(LogSumExp, MatchesDouble) {
  test::for_each_isa([] {
    Rng rng(11);
    for (const int n : {1, 7, 64, 4096, 129280}) {
      std::vector<float> logits(n);
      for (float& v : logits) v = test::gaussian(rng) * 5 + 30;
      double sum = 0;
      for (const float v : logits) sum += std::exp(double{v});
      EXPECT_NEAR(log_sum_exp(logits), std::log(sum), 4e-6);
    }
    const std::vector<float> huge = {1e30f, -1e30f, test::kNan};
    EXPECT_EQ(log_sum_exp(huge), 1e30f);
    EXPECT_EQ(log_sum_exp({}), -test::kInf);
  });
}

TEST(Penalties, EachKind) {
  const std::vector<int32_t> prompt = {0, 1, 1}, output = {1, 2, 2, 2, 3};
  const std::vector<float> start = {2, -2, 4, -4, 1};
  std::vector<float> logits = start;
  apply_penalties({.logits = logits, .prompt_ids = prompt, .output_ids = output, .frequency_penalty = 0.5f});
  EXPECT_EQ(logits, (std::vector<float>{2, -2.5f, 2.5f, -4.5f, 1}));
  logits = start;
  apply_penalties({.logits = logits, .prompt_ids = prompt, .output_ids = output, .presence_penalty = 1});
  EXPECT_EQ(logits, (std::vector<float>{2, -3, 3, -5, 1}));
  logits = start;
  apply_penalties({.logits = logits, .prompt_ids = prompt, .output_ids = output, .repetition_penalty = 2});
  EXPECT_EQ(logits, (std::vector<float>{1, -4, 2, -8, 1}));
  logits = start;
  apply_penalties({.logits = logits,
                   .prompt_ids = prompt,
                   .output_ids = output,
                   .frequency_penalty = 0.5f,
                   .presence_penalty = 1,
                   .repetition_penalty = 2});
  EXPECT_EQ(logits, (std::vector<float>{1, -5.5f, -0.5f, -9.5f, 1}));
  logits = start;
  apply_penalties({.logits = logits, .prompt_ids = prompt, .output_ids = output});
  EXPECT_EQ(logits, start);
}

}  // namespace
}  // namespace moesaic
