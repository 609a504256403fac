// The planner: what fits, what is on the frontier, which instance wins; the comparisons of Perplexity's article.
#include "plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/config_fields.h"
#include "base/rng.h"
#include "cost/model_catalog.h"
#include "plan/deploy.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

// Perplexity's sweep: pplx kernels, batch 1 to 128, TP 1 to 8, MTP with 60 % acceptance, 5,000 cached tokens.
Sweep perplexity_sweep(const std::vector<std::string>& hardware, std::vector<int> ep_sizes) {
  PlanSpace space{.ep_sizes = std::move(ep_sizes), .batches = {1, 2, 4, 8, 16, 32, 64, 128}, .drafts = {1}};
  for (const std::string& name : hardware) space.hardware.push_back(*find_hardware(name));
  Deployment base;
  base.model = *find_model("deepseek-v3");
  base.comm = CommFamily::kPplx;
  return *sweep(space, base, {.phase = Phase::kDecode, .kv_len = 5000, .acceptance = 0.6});
}

DeployRequest request() {
  DeployRequest r;
  r.space.hardware = {*find_hardware("h100"), *find_hardware("h200")};
  r.space.ep_sizes = {8, 16, 32, 64, 72, 128};
  r.base.model = *find_model("deepseek-v3");
  r.base.balancedness = 0.85;
  r.traffic = {.requests_per_s = 300, .input_len = 2000, .output_len = 400};
  return r;
}

TEST(Frontier, AgainstEveryPair) {
  const uint64_t seed = 7;
  Rng rng(seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (int round = 0; round < 50; ++round) {
    std::vector<LayoutCandidate> all(40);
    std::vector<const LayoutCandidate*> pointers;
    for (LayoutCandidate& c : all) {
      c.prediction.tokens_per_s_per_user = static_cast<double>(rng.below(12));
      c.prediction.tokens_per_s_per_node = static_cast<double>(rng.below(12));
      pointers.push_back(&c);
    }
    const auto line = frontier(pointers);
    for (const LayoutCandidate& c : all) {
      bool is_beaten_or_on = false;
      for (const LayoutCandidate* point : line) {
        is_beaten_or_on =
            is_beaten_or_on || (point->prediction.tokens_per_s_per_user >= c.prediction.tokens_per_s_per_user &&
                                point->prediction.tokens_per_s_per_node >= c.prediction.tokens_per_s_per_node);
      }
      EXPECT_TRUE(is_beaten_or_on);
    }
    for (size_t i = 1; i < line.size(); ++i) {
      EXPECT_LT(line[i]->prediction.tokens_per_s_per_user, line[i - 1]->prediction.tokens_per_s_per_user);
      EXPECT_GT(line[i]->prediction.tokens_per_s_per_node, line[i - 1]->prediction.tokens_per_s_per_node);
    }
  }
}

TEST(Perplexity, MoreNodesAreBetterAtEverySpeed) {
  const Sweep all = perplexity_sweep({"h100"}, {16, 32, 64, 128});
  for (double speed = 25; speed <= 60; speed += 5) {
    double last = 0;
    for (const int ep : {16, 32, 64, 128}) {
      const double throughput = throughput_at_speed(select(all, "h100", ep), speed);
      EXPECT_GE(throughput, last) << "EP" << ep << " at " << speed;
      last = throughput;
    }
  }
}

TEST(Perplexity, ManyNodesAgainstOneAtEqualSpeed) {
  const Sweep all = perplexity_sweep({"h100", "h200"}, {8, 128});
  EXPECT_TRUE(select(all, "h100", 8).empty());  // 80 GB do not hold it
  double most = 0;
  for (double speed = 40; speed <= 80; speed += 1) {
    const double one_node = throughput_at_speed(select(all, "h200", 8), speed);
    if (one_node > 0) most = std::max(most, throughput_at_speed(select(all, "h100", 128), speed) / one_node);
  }
  EXPECT_GE(most, 3.5);  // published: about 5
}

TEST(Perplexity, OneNodeIsBetterAtBatch64) {
  const auto throughput = [](const char* hardware, int ep) {
    const Sweep all = perplexity_sweep({hardware}, {ep});
    double most = 0;
    for (const LayoutCandidate& c : all.fits) {
      if (c.point.batch == 64 && c.deployment.layout.tp_size == 1) {
        most = std::max(most, c.prediction.tokens_per_s_per_node);
      }
    }
    return most;
  };
  const double one = throughput("h200", 8), many = throughput("h100", 128);
  EXPECT_GT(one, many);
  EXPECT_LT(one, many * 1.3);  // "slightly higher"
}

TEST(Perplexity, MemoryOfOneNode) {
  const Sweep all = perplexity_sweep({"h200"}, {8});
  bool refused = false;
  for (const Refusal& refusal : all.refused) {
    if (!refusal.label.starts_with("h200 EP8 DP8 TP1 batch 128")) continue;
    refused = true;
    EXPECT_THAT(refusal.reason, HasSubstr("of 141 GB"));
  }
  EXPECT_TRUE(refused);  // published: batch 128 does not fit
}

TEST(Deploy, WinnerReachesTheGoalsAndNoneIsCheaper) {
  const DeployRequest r = request();
  const auto plan = plan_deployment(r);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const double output_rate = 300 * 400, input_rate = 300 * 2000;
  EXPECT_GE(plan->decode.candidate.prediction.tokens_per_s_per_user, r.goals.least_tokens_per_s_per_user);
  EXPECT_LE(ttft_seconds(plan->prefill.candidate), r.goals.most_ttft_s);
  for (const auto& [instance, rate] : {std::pair{&plan->decode, output_rate}, std::pair{&plan->prefill, input_rate}}) {
    const double capacity =
        instance->candidate.prediction.tokens_per_s_per_gpu * static_cast<double>(instance->num_gpus);
    EXPECT_GE(capacity, rate);
    EXPECT_NEAR(instance->utilisation, rate / capacity, 1e-9);
    EXPECT_NEAR(instance->cost_per_million_tokens,
                static_cast<double>(instance->num_gpus) * instance->candidate.deployment.hardware.price_per_gpu_hour /
                    3600 / rate * 1e6,
                1e-9);
    EXPECT_TRUE(instance->candidate.prediction.fits);
    EXPECT_GE(instance->neighbours.size(), 5u);
    double sum = 0;
    for (const auto& [name, share] : instance->shares) sum += share;
    EXPECT_NEAR(sum, 1, 1e-9);
  }
  for (const EpFrontier& line : plan->frontiers) {
    for (const LayoutCandidate& c : line.points) {
      if (c.prediction.tokens_per_s_per_user < r.goals.least_tokens_per_s_per_user) continue;
      EXPECT_GE(dollars_per_hour(c, output_rate), dollars_per_hour(plan->decode.candidate, output_rate));
    }
  }
}

TEST(Deploy, ServeConfigNamesRealSettings) {
  const DeployRequest r = request();
  const auto plan = plan_deployment(r);
  ASSERT_TRUE(plan.ok());
  for (const InstancePlan* instance : {&plan->decode, &plan->prefill}) {
    const std::string text = serve_config(instance->candidate, 1, "model", 2400);
    const auto entries = parse_config_text(text, "serve.toml");
    ASSERT_TRUE(entries.ok()) << entries.status();
    EXPECT_THAT(text, HasSubstr(str_cat("ep-size = ", instance->candidate.deployment.layout.ep_size())));
    EXPECT_THAT(text, HasSubstr("model-path = \"model\""));
  }
}

TEST(Deploy, UnreachableGoalsNameTheNearest) {
  DeployRequest r = request();
  r.goals.least_tokens_per_s_per_user = 1000;
  EXPECT_THAT(std::string(plan_deployment(r).status().message()), HasSubstr("nothing reaches 1000.0 tok/s per user"));
  r.space.ep_sizes = {8};
  r.space.hardware = {*find_hardware("h100")};
  EXPECT_THAT(std::string(plan_deployment(r).status().message()), HasSubstr("of 80 GB"));
  r.traffic.requests_per_s = 0;
  EXPECT_EQ(plan_deployment(r).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Predict, NoLongerThanTheModelTakes) {
  Deployment d;
  d.model = *find_model("deepseek-v3");
  d.hardware = *find_hardware("h200");
  d.layout = *ParallelLayout::make(8, 8, 1);
  const auto decoded = evaluate(d, {.phase = Phase::kDecode, .batch = 1, .kv_len = 200000});
  EXPECT_THAT(std::string(decoded.status().message()),
              HasSubstr("200000 tokens of a request; the model takes at most 163840"));
  const auto prefilled = evaluate(d, {.phase = Phase::kPrefill, .prompt_len = 200000, .chunk_tokens = 4096});
  EXPECT_THAT(std::string(prefilled.status().message()), HasSubstr("163840"));
}

TEST(Predict, TokensPerVerify) {
  EXPECT_DOUBLE_EQ(tokens_per_verify(0, 0.6), 1);
  EXPECT_DOUBLE_EQ(tokens_per_verify(1, 0.6), 1.6);
  EXPECT_NEAR(tokens_per_verify(3, 0.5), 1 + 0.5 + 0.25 + 0.125, 1e-12);
}

TEST(Predict, PromptsLongerThanTheChunk) {
  const OperatingPoint point{.phase = Phase::kPrefill, .prompt_len = 10000, .chunk_tokens = 4000};
  const GroupWork work = uniform_work(point, 0);
  EXPECT_EQ(work.num_prefill_tokens, 4000);
  // The mean chunk of the prompt sees (10,000 - 4,000) / 2 cached tokens.
  EXPECT_EQ(work.prefill_pairs, 4000.0 * 3000 + 4000.0 * 4001 / 2);
  const OperatingPoint several{.phase = Phase::kPrefill, .prompt_len = 1000, .chunk_tokens = 4000, .cached_len = 0};
  EXPECT_EQ(uniform_work(several, 0).num_prefill_seqs, 4);
}

}  // namespace
}  // namespace moesaic
