// The memory plan against what is allocated, byte for byte, and the work space against what steps use.
#include <gtest/gtest.h>

#include "../golden/golden_util.h"
#include "model/memory_plan.h"

namespace moesaic::testing {
namespace {

struct Case {
  const char* name;
  const char* model;
  int ep_size, tp_size;
  DType kv_dtype = DType::kF32;
  ActivationMode activations = ActivationMode::kF32;
  int64_t max_tokens = 64;
  bool load_mtp = false;
  int dense_tp = 1;
};

void PrintTo(const Case& test, std::ostream* out) {
  *out << test.name;
}

class MemoryPlanOf : public ::testing::TestWithParam<Case> {};

TEST_P(MemoryPlanOf, EqualsWhatIsAllocated) {
  const Case& test = GetParam();
  const std::string dir = source_path(test.model);
  RankGroupOptions options;
  options.model_dir = dir;
  options.model = {.layout = *ParallelLayout::make(test.ep_size, 0, test.tp_size, test.dense_tp),
                   .activations = test.activations,
                   .kv_dtype = test.kv_dtype,
                   .num_kv_blocks = 5,
                   .max_tokens_per_step = test.max_tokens,
                   .max_position = 300,
                   .max_chunks = 4,
                   .max_decode_tokens = 3,
                   .max_logit_rows = 7,
                   .load_mtp = test.load_mtp};
  const auto config = ModelConfig::load(dir);
  const auto checkpoint = Checkpoint::open(dir);
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  const int64_t before = Buffer::live_bytes();
  const auto plan = plan_memory(**checkpoint, *config, options.model);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(Buffer::live_bytes(), before) << "a plan takes no memory";
  const auto group = RankGroup::load(options);
  ASSERT_TRUE(group.ok()) << group.status();
  EXPECT_EQ(Buffer::live_bytes() - before, plan->process_bytes());
  for (int rank = 0; rank < (*group)->size(); ++rank) {
    const DeepseekModel& model = (*group)->model(rank);
    const auto planned = [&](MemoryKind kind) {
      int64_t total = 0;
      for (const MemoryBuffer& buffer : plan->ranks[rank]) total += buffer.kind == kind ? buffer.num_bytes : 0;
      return total;
    };
    EXPECT_EQ(planned(MemoryKind::kWeights), model.weight_bytes()) << "rank " << rank;
    EXPECT_EQ(planned(MemoryKind::kKvCache), model.kv_cache_bytes());
    EXPECT_EQ(planned(MemoryKind::kWorkspace), model.workspace_bytes());
    for (const MemoryBuffer& buffer : plan->ranks[rank]) {
      EXPECT_GT(buffer.num_bytes, 0) << buffer.name;
      int64_t widest = buffer.uses.empty() ? buffer.num_bytes : 0;
      for (const auto& [name, num_bytes] : buffer.uses) widest = std::max(widest, num_bytes);
      EXPECT_EQ(buffer.num_bytes, widest) << buffer.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, MemoryPlanOf,
    ::testing::Values(
        Case{.name = "ep1", .model = kTinyModel, .ep_size = 1, .tp_size = 1},
        Case{.name = "ep4_mtp", .model = kTinyModel, .ep_size = 4, .tp_size = 1, .max_tokens = 2048, .load_mtp = true},
        Case{.name = "ep3_bf16", .model = kTinyModel, .ep_size = 3, .tp_size = 1, .kv_dtype = DType::kBF16},
        Case{.name = "tp2_fp8", .model = kTinyModel, .ep_size = 2, .tp_size = 2, .kv_dtype = DType::kE4M3},
        Case{.name = "dp2_tp4_fp8_activations",
             .model = kTinyModel,
             .ep_size = 8,
             .tp_size = 4,
             .activations = ActivationMode::kFp8,
             .max_tokens = 1000,
             .load_mtp = true,
             .dense_tp = 2},
        Case{.name = "v2", .model = "tests/data/micro-deepseek-v2/v2_lite", .ep_size = 2, .tp_size = 1},
        Case{.name = "odd", .model = "tests/data/micro-deepseek-v3/odd_dims", .ep_size = 2, .tp_size = 1},
        Case{.name = "dense", .model = "tests/data/micro-deepseek-v3/all_dense", .ep_size = 1, .tp_size = 1}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace moesaic::testing
