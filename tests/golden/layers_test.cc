// Every layer's states for one short prompt: names the first state that differs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "golden_util.h"

namespace moesaic::testing {
namespace {

// Expert ids come in any order; sort each row by id, weights along.
void sort_rows(std::vector<int32_t>* ids, std::vector<float>* weights, size_t k) {
  for (size_t row = 0; row < ids->size(); row += k) {
    std::vector<std::pair<int32_t, float>> pairs;
    for (size_t i = 0; i < k; ++i) pairs.emplace_back((*ids)[row + i], (*weights)[row + i]);
    std::sort(pairs.begin(), pairs.end());
    for (size_t i = 0; i < k; ++i) std::tie((*ids)[row + i], (*weights)[row + i]) = pairs[i];
  }
}

TEST(Layers, EveryStateOfTheDemoCheckpoint) {
  const Golden golden(std::string(kTinyGolden) + "/layers.safetensors");
  const RunOptions options = {.max_tokens_per_step = 64, .max_position = 128, .max_sequences = 2, .load_mtp = true};
  const auto group = load_group(kTinyModel, options);
  std::string first_difference;
  int num_compared = 0;
  std::vector<int32_t> topk_ids;
  const auto compare = [&](const std::string& name, const std::vector<float>& ours) {
    const std::vector<float> expected = golden.f32(name);
    ASSERT_EQ(ours.size(), expected.size()) << name;
    ++num_compared;
    const float worst = max_abs_difference(ours.data(), expected.data(), expected.size());
    const float scale = std::max(1.0f, std::fabs(*std::max_element(expected.begin(), expected.end())));
    if (!(worst <= 2e-4f * scale) && first_difference.empty()) {
      first_difference = name + " by " + std::to_string(worst) + ", largest value " + std::to_string(scale);
    }
  };
  group->model(0).set_probe([&](const std::string& name, const Tensor& state) {
    if (!golden.contains(name)) return;
    if (state.dtype() == DType::kI32) {
      topk_ids.assign(state.i32(), state.i32() + state.num_elements());
      return;
    }
    std::vector<float> ours(state.f32(), state.f32() + state.num_elements());
    if (!name.ends_with("topk_weights")) return compare(name, ours);
    std::vector<int32_t> expected_ids = golden.i32(name.substr(0, name.size() - 7) + "ids");
    std::vector<float> expected = golden.f32(name);
    sort_rows(&topk_ids, &ours, 4);
    sort_rows(&expected_ids, &expected, 4);
    if (topk_ids != expected_ids && first_difference.empty()) first_difference = name + " (expert ids)";
    const float worst = max_abs_difference(ours.data(), expected.data(), expected.size());
    if (!(worst <= 1e-3f) && first_difference.empty()) first_difference = name + " by " + std::to_string(worst);
    ++num_compared;
  });
  SequenceRunner runner(*group, options);
  const std::vector<int32_t> ids = golden.i32("ids");
  compare("logits", runner.prefill(ids));
  compare("mtp.logits", runner.mtp(ids));
  EXPECT_EQ(first_difference, "") << "the first state that differs";
  EXPECT_GE(num_compared, 5 * 5 + 4 + 5);
}

}  // namespace
}  // namespace moesaic::testing
