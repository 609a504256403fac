// Instances with queues beside instances by means.
#include "plan/deploy_queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cost/model_catalog.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

DeployRequest request(double requests_per_s) {
  DeployRequest r;
  r.space.hardware = {*find_hardware("h100")};
  r.space.ep_sizes = {32};
  r.space.tp_sizes = {1};
  r.base.model = *find_model("deepseek-v3");
  r.base.balancedness = 0.85;
  r.traffic = {.requests_per_s = requests_per_s, .input_len = 2000, .output_len = 400};
  return r;
}

struct Checked {
  DeployPlan plan;
  DeployQueues queues;
};

Checked check(const DeployRequest& r) {
  Checked out{.plan = *plan_deployment(r)};
  auto queues = check_queues(r, out.plan, 5, {});
  EXPECT_TRUE(queues.ok()) << queues.status();
  if (queues.ok()) out.queues = *std::move(queues);
  return out;
}

// The rate at which `role` is used so much.
double rate_at(InstancePlan DeployPlan::*role, double utilisation, int64_t num_instances) {
  const InstancePlan plan = (*plan_deployment(request(1))).*role;  // one instance
  return utilisation / plan.utilisation * static_cast<double>(num_instances);
}

const QueueTrial& chosen(const RoleQueues& role) {
  return role.trials.at(role.chosen.value());
}

TEST(DeployQueues, LightLoadNeedsNoMoreThanByMeans) {
  const double rate = std::min(rate_at(&DeployPlan::decode, 0.3, 1), rate_at(&DeployPlan::prefill, 0.3, 1));
  const Checked c = check(request(rate));
  ASSERT_TRUE(c.queues.decode.chosen && c.queues.prefill.chosen);
  EXPECT_EQ(c.queues.decode.trials.size(), 1u);
  EXPECT_EQ(c.queues.prefill.trials.size(), 1u);
  EXPECT_EQ(chosen(c.queues.decode).num_instances, c.plan.decode.num_instances);
  EXPECT_EQ(chosen(c.queues.prefill).num_instances, c.plan.prefill.num_instances);
  EXPECT_EQ(c.queues.dollars_per_hour, c.plan.dollars_per_hour);
  EXPECT_EQ(c.queues.cost_per_million_output_tokens, c.plan.cost_per_million_output_tokens);
}

TEST(DeployQueues, HeavyLoadNeedsMore) {
  for (InstancePlan DeployPlan::*role : {&DeployPlan::decode, &DeployPlan::prefill}) {
    DeployRequest r = request(rate_at(role, 0.95, 2));
    r.traffic.range_ratio = 0.9;
    const Checked c = check(r);
    const bool decode = role == &DeployPlan::decode;
    const RoleQueues& queues = decode ? c.queues.decode : c.queues.prefill;
    EXPECT_NEAR((c.plan.*role).utilisation, 0.95, 1e-6);
    ASSERT_TRUE(queues.chosen);
    EXPECT_GT(chosen(queues).num_instances, (c.plan.*role).num_instances);
    EXPECT_GT(c.queues.dollars_per_hour, c.plan.dollars_per_hour);
    // Which goal is missed, and by how much.
    EXPECT_THAT(queues.trials[0].missed, HasSubstr(decode ? "TPOT P99" : "TTFT P99"));
    EXPECT_THAT(queues.trials[0].missed, HasSubstr("above"));
  }
}

TEST(DeployQueues, TheFirstThatHoldsIsTheCheapestTried) {
  DeployRequest r = request(500);
  r.space.ep_sizes = {16, 32, 64};
  r.space.tp_sizes = {1, 2};
  r.traffic.range_ratio = 0.9;
  const Checked c = check(r);
  for (const RoleQueues* role : {&c.queues.decode, &c.queues.prefill}) {
    ASSERT_TRUE(role->chosen);
    EXPECT_EQ(*role->chosen, role->trials.size() - 1);
    for (size_t i = 0; i < role->trials.size(); ++i) {
      EXPECT_EQ(role->trials[i].missed.empty(), i == *role->chosen);
      EXPECT_GE(role->trials[i].dollars_per_hour, role->trials[i > 0 ? i - 1 : 0].dollars_per_hour);
    }
  }
}

TEST(DeployQueues, SaturationIsFound) {
  DeployRequest r = request(rate_at(&DeployPlan::prefill, 0.99, 1));
  r.goals.most_ttft_s = 60;  // the queue grows, however long one waits
  r.traffic.range_ratio = 1;
  const Checked c = check(r);
  EXPECT_THAT(c.queues.prefill.trials.at(0).missed, HasSubstr("saturated"));
  ASSERT_TRUE(c.queues.prefill.chosen);
  EXPECT_GT(chosen(c.queues.prefill).num_instances, c.plan.prefill.num_instances);
}

TEST(DeployQueues, AGoalThatOneSequenceMissesIsRefusedWithTheArithmetic) {
  DeployRequest r = request(50);
  const DeployPlan plan = *plan_deployment(r);
  r.goals.least_tokens_per_s_per_user = 200;
  EXPECT_THAT(std::string(check_queues(r, plan, 0, {}).status().message()),
              HasSubstr("and the goal is 5.00 ms: no number of instances reaches it"));
  const std::string by_means(plan_deployment(r).status().message());
  EXPECT_THAT(by_means, HasSubstr("nothing reaches 200.0 tok/s per user, 5.00 ms a token"));
  EXPECT_THAT(by_means, HasSubstr("more instances do not change that"));
  r = request(50);
  r.goals.most_ttft_s = 0.01;
  EXPECT_THAT(std::string(plan_deployment(r).status().message()), HasSubstr("waits for half a step"));
}

TEST(DeployQueues, SameSeedSameTrials) {
  DeployRequest r = request(150);
  r.traffic.range_ratio = 0.5;
  std::vector<std::string> shown;
  const DeployPlan plan = *plan_deployment(r);
  const auto a = check_queues(r, plan, 9, [&](const std::string& text) { shown.push_back(text); });
  const auto b = check_queues(r, plan, 9, {});
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(shown.size(), a->decode.trials.size() + a->prefill.trials.size());
  for (RoleQueues DeployQueues::*role : {&DeployQueues::decode, &DeployQueues::prefill}) {
    ASSERT_EQ(((*a).*role).trials.size(), ((*b).*role).trials.size());
    for (size_t i = 0; i < ((*a).*role).trials.size(); ++i) {
      EXPECT_EQ(((*a).*role).trials[i].figures.p99_ms, ((*b).*role).trials[i].figures.p99_ms);
    }
  }
}

}  // namespace
}  // namespace moesaic
