// Steps: properties that hold for any work, and refusals.
#include "cost/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "cost/model_catalog.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

Deployment deployment(const std::string& hardware, int ep, int tp = 1) {
  Deployment d;
  d.model = *find_model("deepseek-v3");
  d.hardware = *find_hardware(hardware);
  d.layout = *ParallelLayout::make(ep, 0, tp);
  return d;
}

GroupWork decode_work(int64_t batch, int64_t query_len, int64_t kv_len) {
  GroupWork work;
  for (int64_t i = 0; i < batch; ++i) work.add_decode(query_len, kv_len);
  return work;
}

TEST(GroupWork, PairsAgainstCounting) {
  GroupWork work;
  work.add_decode(3, 10);
  work.add_prefill(5, 7);
  double decode = 0, prefill = 0;
  for (int q = 0; q < 3; ++q) decode += 10 - 3 + 1 + q;
  for (int q = 0; q < 5; ++q) prefill += 7 + q + 1;
  EXPECT_EQ(work.decode_pairs, decode);
  EXPECT_EQ(work.prefill_pairs, prefill);
  EXPECT_EQ(work.num_tokens(), 8);
  EXPECT_EQ(work.prefill_kv_tokens, 12);
}

TEST(CostModel, PartsAddUp) {
  for (const OverlapMode mode : {OverlapMode::kNone, OverlapMode::kDispatch, OverlapMode::kTwoBatch}) {
    Deployment d = deployment("h100", 72);
    d.overlap = mode;
    d.num_draft = 1;
    const GroupWork work = decode_work(100, 2, 3000);
    const StepCost step = CostModel::make(d)->step({&work, 1});
    const LayerCost& l = step.moe_layer;
    EXPECT_NEAR(l.seconds, l.qkv + l.attention + l.output + l.shared + l.experts + l.exposed_comm, 1e-12);
    EXPECT_LE(l.exposed_comm, l.dispatch + l.combine + 1e-12);
    EXPECT_NEAR(step.moe_layers, 58 * l.seconds, 1e-9);
    EXPECT_NEAR(step.seconds, step.moe_layers + step.dense_layers + step.head + step.draft + step.waiting + step.host,
                1e-9);
    EXPECT_EQ(step.overlap, mode);
  }
}

TEST(CostModel, BestIsTheLeast) {
  for (const int64_t batch : {1, 4, 16, 64, 256}) {
    double least = 1e9;
    const GroupWork work = decode_work(batch, 1, 2000);
    Deployment d = deployment("h100", 64);
    for (const OverlapMode mode : {OverlapMode::kNone, OverlapMode::kDispatch, OverlapMode::kTwoBatch}) {
      d.overlap = mode;
      least = std::min(least, CostModel::make(d)->step({&work, 1}).seconds);
    }
    d.overlap = OverlapMode::kBest;
    EXPECT_DOUBLE_EQ(CostModel::make(d)->step({&work, 1}).seconds, least) << batch;
  }
}

// More tokens, longer contexts, less balance: never faster.
TEST(CostModel, MonotoneInWorkAndSkew) {
  const uint64_t seed = 20251;
  Rng rng(seed);
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  for (int i = 0; i < 200; ++i) {
    Deployment d = deployment(i % 2 == 0 ? "h100" : "h20", 8 << (i % 5));
    d.num_redundant_experts = i % 3 == 0 ? 32 : 0;
    d.overlap = i % 2 == 0 ? OverlapMode::kDispatch : OverlapMode::kTwoBatch;
    d.balancedness = 0.4 + 0.6 * rng.uniform();
    const int64_t batch = 1 + static_cast<int64_t>(300 * rng.uniform()),
                  kv = 100 + static_cast<int64_t>(9000 * rng.uniform());
    const auto seconds = [](const Deployment& deployment, const GroupWork& work) {
      return CostModel::make(deployment)->step({&work, 1}).seconds;
    };
    const double base = seconds(d, decode_work(batch, 1, kv));
    EXPECT_GE(seconds(d, decode_work(batch + 8, 1, kv)), base * 0.9999);
    EXPECT_GE(seconds(d, decode_work(batch, 1, kv + 500)), base);
    EXPECT_GE(seconds(d, decode_work(batch, 2, kv)), base * 0.9999);
    d.balancedness *= 0.8;
    EXPECT_GE(seconds(d, decode_work(batch, 1, kv)), base * 0.9999);
  }
}

TEST(CostModel, SlowestGroupCounts) {
  const CostModel cost = *CostModel::make(deployment("h100", 32));
  const GroupWork small = decode_work(10, 1, 1000), large = decode_work(100, 1, 4000);
  std::vector<GroupWork> groups(32, small);
  const double even = cost.step(groups).seconds;
  groups[5] = large;
  const double uneven = cost.step(groups).seconds;
  EXPECT_GT(uneven, even);
  EXPECT_LT(uneven, cost.step({&large, 1}).seconds);  // the experts see the mean
  const GroupWork idle;
  const StepCost nothing = cost.step({&idle, 1});
  EXPECT_GT(nothing.seconds, 0);
  EXPECT_EQ(nothing.moe_layers, 0);
}

TEST(CostModel, RefusesWithTheArithmetic) {
  const auto message = [](const Deployment& d) { return std::string(CostModel::make(d).status().message()); };
  EXPECT_THAT(message(deployment("h100", 288)), HasSubstr("256 experts and 0 redundant ones = 256"));
  EXPECT_THAT(message(deployment("h100", 9, 3)), HasSubstr("128"));
  Deployment d = deployment("h100", 8);
  d.balancedness = 0;
  EXPECT_THAT(message(d), HasSubstr("balancedness"));
  d.balancedness = 1;
  d.num_draft = 1;
  d.model = *find_model("kimi-k2");
  EXPECT_THAT(message(d), HasSubstr("1 drafts need an MTP module"));
}

}  // namespace
}  // namespace moesaic
