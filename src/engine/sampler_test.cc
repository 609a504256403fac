#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rng.h"
#include "engine/engine.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

std::vector<float> random_logits(uint64_t seed, int count) {
  Rng rng(seed);
  std::vector<float> logits;
  for (int i = 0; i < count; ++i) logits.push_back(static_cast<float>(rng.uniform() * 6.0 - 3.0));
  return logits;
}

Request greedy() {
  Request request;
  request.prompt_ids = {1};
  request.max_tokens = 100;
  request.sampling.temperature = 0.0f;
  return request;
}

TEST(SamplerTest, BiasAndBan) {
  const Sampler sampler({2}, {});
  Request request = greedy();
  std::vector<float> logits = {0, 1, 9, 3, 2};
  EXPECT_EQ(sampler.sample(request, {}, {}, logits), 2);
  request.sampling.min_tokens = 1;
  EXPECT_EQ(sampler.sample(request, {}, {}, logits), 3);
  logits = {0, 1, 9, 3, 2};
  const std::vector<int32_t> one = {0};
  EXPECT_EQ(sampler.sample(request, one, {}, logits), 2);
  request.stop_token_ids = {3};
  EXPECT_EQ(sampler.sample(request, {}, {}, logits), 4);
  logits = {0, 1, 9, 3, 2};
  request.ignore_eos = true;
  EXPECT_EQ(sampler.sample(request, {}, {}, logits), 2);
  request = greedy();
  request.sampling.logit_bias = {{0, 100.0f}, {2, -100.0f}};
  logits = {0, 1, 9, 3, 2};
  EXPECT_EQ(sampler.sample(request, {}, {}, logits), 0);
}

TEST(SamplerTest, PositionAndSeedDecideTheNumber) {
  const Sampler sampler({}, {});
  Request request = greedy();
  request.sampling.temperature = 1.0f;
  std::vector<std::vector<int32_t>> texts;
  for (const uint64_t seed : {5, 5, 6}) {
    request.sampling.seed = seed;
    std::vector<int32_t>& output = texts.emplace_back();
    for (int i = 0; i < 50; ++i) {
      std::vector<float> logits = random_logits(i, 100);
      output.push_back(sampler.sample(request, output, {}, logits));
    }
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(texts[0], texts[2]);
}

TEST(SamplerTest, MaskBansTokens) {
  const Sampler sampler({}, {});
  for (const int count : {64, 100, 200}) {
    for (const float temperature : {0.0f, 1.0f}) {
      Rng rng(count);
      Request request = greedy();
      request.sampling.temperature = temperature;
      for (int round = 0; round < 50; ++round) {
        std::vector<uint64_t> allowed((count + 63) / 64);
        for (uint64_t& word : allowed) word = rng.below(3) == 0 ? ~uint64_t{0} : rng.next_u64() & rng.next_u64();
        std::vector<float> logits = random_logits(round, count);
        const std::vector<float> before = logits;
        request.sampling.seed = round;
        const int32_t id = sampler.sample(request, {}, allowed, logits);
        ASSERT_TRUE(id >= 0 && (allowed[id / 64] >> (id % 64) & 1) != 0) << count << " round " << round;
        for (int i = 0; i < count; ++i) {
          const bool is_allowed = (allowed[i / 64] >> (i % 64) & 1) != 0;
          ASSERT_EQ(logits[i], is_allowed ? before[i] : -std::numeric_limits<float>::infinity());
          ASSERT_FALSE(temperature == 0.0f && is_allowed && before[i] > before[id]);
        }
      }
    }
  }
  std::vector<float> logits = random_logits(1, 64);
  EXPECT_EQ(sampler.sample(greedy(), {}, std::vector<uint64_t>{0}, logits), -1);
}

TEST(SamplerTest, AllNanHasNoToken) {
  const Sampler sampler({}, {});
  std::vector<float> logits(5, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(sampler.sample(greedy(), {}, {}, logits), -1);
}

TEST(SamplerTest, LogprobsAgreeWithASort) {
  std::vector<float> logits = random_logits(9, 50);
  logits[7] = logits[8] = logits[9] = 4.0f;
  logits[10] = -std::numeric_limits<float>::infinity();
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit));
  std::vector<std::pair<float, int32_t>> sorted;
  for (int32_t i = 0; i < 50; ++i) sorted.push_back({-logits[i], i});
  std::sort(sorted.begin(), sorted.end());
  TokenLogprob logprob;
  for (const int num_top : {0, 1, 2, 5, 50}) {
    fill_logprob(logits, 3, num_top, &logprob);
    EXPECT_NEAR(logprob.logprob, logits[3] - std::log(total), 1e-5);
    ASSERT_EQ(static_cast<int>(logprob.top.size()), std::min(num_top, 49));
    for (size_t i = 0; i < logprob.top.size(); ++i) {
      EXPECT_EQ(logprob.top[i].first, sorted[i].second);
      EXPECT_NEAR(logprob.top[i].second, -sorted[i].first - std::log(total), 1e-5);
    }
  }
}

}  // namespace
}  // namespace moesaic
