#include "plan/expert_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cost/hardware.h"
#include "cost/model_catalog.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

ExpertsQuestion question(int ep, const ExpertSkew& skew) {
  ExpertsQuestion q;
  q.deployment.model = *find_model("deepseek-v3");
  q.deployment.hardware = *find_hardware("h800");
  q.deployment.layout = *ParallelLayout::make(ep, ep, 1);
  q.point = {.phase = Phase::kDecode, .batch = 64, .kv_len = 4096};
  const ExpertLoads loads = generate_loads(58, 256, skew, 1);
  q.loads = {loads, shift_loads(loads, skew, kOtherTraffic, 2)};
  q.max_extra_slots = 2;
  return q;
}

TEST(ExpertBalance, PlacementHelpsAndOtherTrafficCosts) {
  const auto answer = answer_experts(question(72, kDecodeSkew), nullptr);
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->rows.size(), 3u);
  EXPECT_EQ(answer->rows[0].redundant(), 32);  // 4 slots a rank hold 288
  for (const RedundancyRow& row : answer->rows) {
    ASSERT_EQ(row.balance.in.size(), 58u);
    for (size_t layer = 0; layer < 58; ++layer) {
      const LayerBalance& in = row.balance.in[layer];
      EXPECT_GT(in.planned, in.natural);
      EXPECT_GE(in.planned, in.published * (1 - 1e-9));
      EXPECT_LT(row.balance.out[layer].planned, in.planned + 1e-9);
    }
    EXPECT_LT(row.balance.mean_out.planned, row.balance.mean_in.planned - 0.1);
  }
  const Prediction& best = answer->rows[answer->best].prediction;
  EXPECT_GT(best.tokens_per_s_per_node, 1.2 * answer->unplaced.tokens_per_s_per_node);
  for (size_t i = 1; i <= answer->best; ++i) {
    EXPECT_TRUE(answer->rows[i].prediction.fits);
    EXPECT_GE(answer->rows[i].prediction.tokens_per_s_per_node,
              1.01 * answer->rows[i - 1].prediction.tokens_per_s_per_node);
  }
}

TEST(ExpertBalance, RedundancyPaysInPrefillAtEp32) {
  ExpertsQuestion q = question(32, kPrefillSkew);
  q.point = {.phase = Phase::kPrefill, .prompt_len = 4096, .chunk_tokens = 16384};
  const auto answer = answer_experts(q, nullptr);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->rows[0].redundant(), 0);
  EXPECT_GE(answer->best, 1u) << "32 redundant experts, as DeepSeek's prefill has them";
}

TEST(ExpertBalance, OneRecordIsMeasuredOnItself) {
  ExpertsQuestion q = question(32, kPrefillSkew);
  q.loads.pop_back();
  q.is_recorded = true;
  q.max_extra_slots = 0;
  const auto answer = answer_experts(q, nullptr);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_FALSE(answer->has_other());
  EXPECT_EQ(answer->rows[0].balance.mean_in.planned, answer->rows[0].balance.mean_out.planned);
  const auto json = nlohmann::json::parse(experts_json(*answer));
  EXPECT_EQ(json["loads"], "recorded");
  EXPECT_EQ(json["layers"].size(), 58u);
  EXPECT_FALSE(json["layers"][0].contains("out"));
  EXPECT_EQ(json["by_ep"].size(), 7u);
}

TEST(ExpertBalance, TextAndPageSayWhatIsSimulated) {
  const auto answer = answer_experts(question(144, kDecodeSkew), nullptr);
  ASSERT_TRUE(answer.ok()) << answer.status();
  const std::string text = experts_text(*answer);
  EXPECT_THAT(text, HasSubstr("simulated loads"));
  EXPECT_THAT(text, HasSubstr("(predicted)"));
  const std::string page = report_html(experts_report(*answer, "moesaic plan experts"));
  EXPECT_THAT(page, HasSubstr("<svg"));
  EXPECT_THAT(page, HasSubstr("simulated"));
}

TEST(ExpertBalance, LoadsOfAnotherModelAreRefused) {
  ExpertsQuestion q = question(32, kPrefillSkew);
  q.loads = {generate_loads(58, 128, kPrefillSkew, 1)};
  const auto answer = answer_experts(q, nullptr);
  ASSERT_FALSE(answer.ok());
  EXPECT_THAT(str_cat(answer.status().message()), HasSubstr("58 x 128"));
}

}  // namespace
}  // namespace moesaic
