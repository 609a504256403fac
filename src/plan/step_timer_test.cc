// The cost model inside the simulator is the cost model of predict().
#include "plan/step_timer.h"

#include <gtest/gtest.h>

#include "cost/model_catalog.h"
#include "plan/predict.h"
#include "plan/simulator.h"

namespace moesaic {
namespace {

Deployment deployment(int64_t num_draft) {
  Deployment d;
  d.model = *find_model("deepseek-v3");
  d.hardware = *find_hardware("h100");
  d.layout = *ParallelLayout::make(72, 0, 1);
  d.num_redundant_experts = 32;
  d.num_draft = num_draft;
  return d;
}

// A full batch whose sequences all decode: time a token is that of predict(), with any number of drafts.
TEST(CostStepTimer, AFullBatchIsAsPredicted) {
  constexpr int64_t kBatch = 64, kInput = 1000, kOutput = 400;
  constexpr double kAcceptance = 1;  // all sequences go on together
  for (const int64_t num_draft : {0, 1, 2}) {
    const Deployment d = deployment(num_draft);
    const auto predicted =
        predict(*CostModel::make(d), {.batch = kBatch, .kv_len = kInput + kOutput / 2, .acceptance = kAcceptance}, 8);
    ASSERT_TRUE(predicted.ok()) << predicted.status();
    const SimOptions options{.engine = {.context_length = 4096,
                                        .num_kv_blocks = 4096,
                                        .max_running_requests = kBatch,
                                        .max_tokens_per_step = kBatch * (kInput + 1),
                                        .max_draft_depth = static_cast<int>(num_draft),
                                        .adaptive_draft_depth = false,
                                        .synthetic_acceptance = num_draft > 0 ? kAcceptance : -1.0}};
    const std::vector<TrafficRequest> traffic(kBatch, {.num_input = kInput, .num_output = kOutput});
    const auto result = simulate(options, traffic, *CostStepTimer::make(d));
    ASSERT_TRUE(result.ok()) << result.status();
    for (size_t i = 1; i < kBatch; ++i) {  // the first is alone in the first step
      const SimRecord& r = result->records[i];
      const double token_s = static_cast<double>(r.last_ns - r.first_ns) * 1e-9 / (r.num_output - 1);
      EXPECT_NEAR(token_s * predicted->tokens_per_s_per_user, 1, 0.02) << num_draft;
    }
  }
}

TEST(CostStepTimer, ModelsWithoutADraftModule) {
  Deployment d = deployment(0);
  d.model = *find_model("kimi-k2");
  d.num_redundant_experts = 0;
  EXPECT_TRUE(CostStepTimer::make(d).ok());
  d.num_draft = 1;
  EXPECT_EQ(CostStepTimer::make(d).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace moesaic
