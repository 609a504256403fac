// The same tokens through different layouts, batches and paths: the same bits where sums keep their order, the same
// numbers up to rounding where they do not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "../golden/golden_util.h"
#include "base/rng.h"

namespace moesaic::testing {
namespace {

constexpr int64_t kVocab = 4096;
constexpr int kPrompt = 40, kSteps = 8;
constexpr uint64_t kSeed = 2024;

std::vector<int32_t> random_ids(int count, uint64_t seed) {
  Rng rng(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(rng.below(kVocab));
  return ids;
}

RunOptions small(int ep_size, int tp_size = 1) {
  return {.layout = *ParallelLayout::make(ep_size, 0, tp_size),
          .max_tokens_per_step = 64,
          .max_position = 128,
          .max_sequences = 2};
}

struct Trace {
  std::vector<float> logits;  // of all prompt tokens, then of every decode step
  std::vector<int32_t> greedy;
};

void append(std::vector<float>* to, const std::vector<float>& from) {
  to->insert(to->end(), from.begin(), from.end());
}

// A prompt in chunks, then greedy decode steps; `forced` overrides what is decoded.
Trace run(RankGroup& group, const RunOptions& options, const std::vector<int32_t>& prompt, size_t chunk = 64,
          A2aMode mode = A2aMode::kLowLatency, int dp_rank = 0, const std::vector<int32_t>* forced = nullptr) {
  SequenceRunner runner(group, options, dp_rank);
  Trace result;
  for (size_t begin = 0; begin < prompt.size(); begin += chunk) {
    const size_t end = std::min(prompt.size(), begin + chunk);
    append(&result.logits, runner.prefill({prompt.begin() + begin, prompt.begin() + end}));
  }
  for (int step = 0; step < kSteps; ++step) {
    result.greedy.push_back(argmax(result.logits.data() + result.logits.size() - kVocab, kVocab));
    append(&result.logits, runner.decode(forced ? (*forced)[step] : result.greedy.back(), mode));
  }
  return result;
}

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(std::memcmp(&a[i], &b[i], sizeof(float)), 0)
        << what << ": row " << i / kVocab << ", logit " << i % kVocab << ": " << a[i] << " and " << b[i]
        << "; largest difference " << max_abs_difference(a.data(), b.data(), a.size()) << ", seed " << kSeed;
  }
}

const Trace& reference() {
  static const Trace result = run(*load_group(kTinyModel, small(1)), small(1), random_ids(kPrompt, kSeed));
  return result;
}

TEST(Equivalence, ExpertParallelSizes) {
  for (const int ep_size : {2, 3, 8, 32}) {
    const RunOptions options = small(ep_size);
    const auto group = load_group(kTinyModel, options);
    for (const int dp_rank : {0, ep_size - 1}) {
      const Trace ours = run(*group, options, random_ids(kPrompt, kSeed), 64, A2aMode::kLowLatency, dp_rank);
      expect_same_bits(ours.logits, reference().logits, str_cat("EP", ep_size, ", DP rank ", dp_rank));
    }
  }
}

TEST(Equivalence, TensorParallelSizes) {
  for (const int tp_size : {2, 4, 8}) {
    const RunOptions options = small(tp_size, tp_size);
    const Trace ours = run(*load_group(kTinyModel, options), options, random_ids(kPrompt, kSeed));
    EXPECT_EQ(ours.greedy, reference().greedy) << "TP" << tp_size;
    ASSERT_EQ(ours.logits.size(), reference().logits.size());
    EXPECT_LE(max_abs_difference(ours.logits.data(), reference().logits.data(), ours.logits.size()), 1e-3f)
        << "TP" << tp_size;
  }
}

TEST(Equivalence, DenseTensorParallelInAnyLayout) {
  const int layouts[][3] = {{2, 2, 2}, {4, 4, 2}, {8, 8, 8}, {4, 2, 2}, {8, 4, 2}};  // EP, TP, dense TP
  for (const auto& [ep_size, tp_size, dense] : layouts) {
    RunOptions options = small(ep_size, tp_size);
    options.layout = *ParallelLayout::make(ep_size, 0, tp_size, dense);
    const auto group = load_group(kTinyModel, options);
    for (const int dp_rank : {0, ep_size / tp_size - 1}) {
      const Trace ours = run(*group, options, random_ids(kPrompt, kSeed), 64, A2aMode::kLowLatency, dp_rank);
      EXPECT_EQ(ours.greedy, reference().greedy) << options.layout.to_string();
      ASSERT_EQ(ours.logits.size(), reference().logits.size());
      EXPECT_LE(max_abs_difference(ours.logits.data(), reference().logits.data(), ours.logits.size()), 1e-3f)
          << options.layout.to_string();
    }
  }
}

TEST(Equivalence, AllToAllModes) {
  for (const int ep_size : {1, 2}) {
    const auto group = load_group(kTinyModel, small(ep_size));
    const Trace normal = run(*group, small(ep_size), random_ids(kPrompt, kSeed), 64, A2aMode::kNormal);
    expect_same_bits(normal.logits, reference().logits, str_cat("normal mode, EP", ep_size));
  }
}

TEST(Equivalence, PromptWholeAndInChunks) {
  const std::vector<int32_t> prompt = random_ids(100, kSeed + 1);
  RunOptions options = small(1);
  options.max_tokens_per_step = 128;
  const auto group = load_group(kTinyModel, options);
  const Trace whole = run(*group, options, prompt, prompt.size());
  for (const size_t chunk : {1, 7, 16, 64}) {
    expect_same_bits(run(*group, options, prompt, chunk).logits, whole.logits, str_cat("chunks of ", chunk));
  }
}

TEST(Equivalence, DecodeAndPrefillPaths) {
  const auto group = load_group(kTinyModel, small(1));
  std::vector<int32_t> all = random_ids(kPrompt, kSeed);
  all.insert(all.end(), reference().greedy.begin(), reference().greedy.end());
  const std::vector<float> prefilled = SequenceRunner(*group, small(1)).prefill(all);
  ASSERT_EQ(prefilled.size(), reference().logits.size());
  EXPECT_LE(max_abs_difference(prefilled.data(), reference().logits.data(), prefilled.size()), 1e-3f);
}

// Experts that each row chose, sorted, over all layers.
using Choices = std::vector<std::vector<int32_t>>;

Trace run_and_watch(const RunOptions& options, const std::vector<int32_t>* forced, Choices* choices) {
  constexpr int kTopk = 4;
  const auto group = load_group(kTinyModel, options);
  std::map<std::string, std::vector<int32_t>> ids;  // by layer
  group->model(0).set_probe([&](const std::string& name, const Tensor& state) {
    if (!name.ends_with(".topk_ids")) return;
    ids[name].insert(ids[name].end(), state.i32(), state.i32() + state.num_elements());
  });
  const Trace trace = run(*group, options, random_ids(kPrompt, kSeed), 64, A2aMode::kLowLatency, 0, forced);
  choices->resize(kPrompt + kSteps);
  for (auto& [name, of_layer] : ids) {
    EXPECT_EQ(of_layer.size(), choices->size() * kTopk) << name;
    for (size_t row = 0; row < choices->size(); ++row) {
      const auto begin = of_layer.begin() + row * kTopk;
      std::sort(begin, begin + kTopk);
      (*choices)[row].insert((*choices)[row].end(), begin, begin + kTopk);
    }
  }
  return trace;
}

// Rounding may tip an expert choice that was nearly even, and then that row is another sum altogether; the bound holds
// where the choices agree, which must be nearly everywhere.
void expect_near_f32_cache(DType kv_dtype, float bound, int max_tipped) {
  RunOptions options = small(1);
  Choices f32_choices, our_choices;
  const Trace expected = run_and_watch(options, nullptr, &f32_choices);
  options.kv_dtype = kv_dtype;
  const Trace ours = run_and_watch(options, &expected.greedy, &our_choices);
  ASSERT_EQ(ours.logits.size(), expected.logits.size());
  int num_tipped = 0;
  float worst = 0.0f;
  std::string tipped_rows;
  for (size_t row = 0; row < f32_choices.size(); ++row) {
    const float difference = max_abs_difference(&ours.logits[row * kVocab], &expected.logits[row * kVocab], kVocab);
    if (f32_choices[row] != our_choices[row]) {
      ++num_tipped;
      tipped_rows += str_cat(" ", row, ":", difference);
      continue;
    }
    worst = std::max(worst, difference);
    EXPECT_LE(difference, bound) << "row " << row;
  }
  ::testing::Test::RecordProperty("tipped_rows", tipped_rows);
  ::testing::Test::RecordProperty("max_abs_difference", std::to_string(worst));
  EXPECT_LE(num_tipped, max_tipped) << tipped_rows;
  EXPECT_GT(worst, 0.0f) << "the cache was f32";
}

TEST(Equivalence, Bf16Cache) {
  expect_near_f32_cache(DType::kBF16, 0.2f, kPrompt / 10);
}

TEST(Equivalence, Fp8Cache) {
  expect_near_f32_cache(DType::kE4M3, 2.0f, kPrompt / 3);  // 3 bits of mantissa
}

// NaN in the rows of one sequence reaches no other row of the step, and what it leaves in cache blocks, workspace and
// exchange buffers reaches no later step.
TEST(Equivalence, ANanRowHarmsNoOther) {
  constexpr int kBad = 5, kHidden = 256;
  const std::vector<int32_t> bad = random_ids(kBad, kSeed + 50), blocks = {0, 1};
  for (const int ep_size : {1, 2}) {
    const RunOptions options = small(ep_size);
    const auto group = load_group(kTinyModel, options);
    for (const int count : {1, 2, 3, 5, 7}) {
      const std::vector<int32_t> good = random_ids(count, kSeed + 60 + count);
      const std::vector<float> expected = SequenceRunner(*group, options, 0, /*first_block=*/2).prefill(good);
      std::vector<int32_t> ids = bad, rows(count);
      ids.insert(ids.end(), good.begin(), good.end());
      std::iota(rows.begin(), rows.end(), kBad);
      const SequenceChunk chunks[] = {
          {.token_begin = 0, .num_tokens = kBad, .is_prefill = true, .block_table = &blocks[0]},
          {.token_begin = kBad, .num_tokens = count, .is_prefill = true, .block_table = &blocks[1]}};
      const ForwardBatch batch = {.token_ids = ids, .chunks = chunks, .logit_rows = rows}, idle;
      int num_poisoned = 0;
      group->model(0).set_probe([&](const std::string& name, const Tensor& state) {
        if (name != "layer1.input_norm") return;
        std::fill_n(state.f32(), kBad * kHidden, std::numeric_limits<float>::quiet_NaN());
        ++num_poisoned;
      });
      std::vector<float> ours;
      const absl::Status status = group->run([&](int rank) {
        ForwardResult result;
        const absl::Status done = group->model(rank).forward(group->context(rank), rank == 0 ? batch : idle, &result);
        if (rank == 0 && done.ok()) ours.assign(result.logits.f32(), result.logits.f32() + count * kVocab);
        return done;
      });
      group->model(0).set_probe({});
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(num_poisoned, 1);
      expect_same_bits(ours, expected, str_cat("EP", ep_size, ", ", count, " rows beside NaN"));
      expect_same_bits(SequenceRunner(*group, options).prefill(good), expected, "blocks that held NaN");
    }
  }
}

// 32 sequences of different lengths in one step, each with one cache block.
TEST(Equivalence, AloneAndInABatch) {
  constexpr int kSequences = 32;
  RunOptions options = small(1);
  options.max_sequences = kSequences;
  options.max_tokens_per_step = kSequences * kPrompt;
  const auto group = load_group(kTinyModel, options);
  std::vector<std::vector<int32_t>> prompts;
  std::vector<Trace> alone;
  for (int i = 0; i < kSequences; ++i) {
    prompts.push_back(random_ids(1 + (i * 11) % kPrompt, kSeed + 10 + i));
    alone.push_back(run(*group, options, prompts.back()));
  }
  std::vector<int32_t> blocks(kSequences), kv_len(kSequences, 0);
  std::iota(blocks.begin(), blocks.end(), 3);
  for (int step = 0; step <= kSteps; ++step) {
    std::vector<int32_t> ids, rows;
    std::vector<SequenceChunk> chunks;
    for (int i = 0; i < kSequences; ++i) {
      const std::vector<int32_t> mine = step == 0 ? prompts[i] : std::vector<int32_t>{alone[i].greedy[step - 1]};
      chunks.push_back({.token_begin = static_cast<int32_t>(ids.size()),
                        .num_tokens = static_cast<int32_t>(mine.size()),
                        .kv_begin = kv_len[i],
                        .is_prefill = step == 0,
                        .block_table = &blocks[i]});
      ids.insert(ids.end(), mine.begin(), mine.end());
      rows.push_back(static_cast<int32_t>(ids.size()) - 1);
      kv_len[i] += static_cast<int32_t>(mine.size());
    }
    ForwardResult result;
    const ForwardBatch batch = {.a2a_mode = step == 0 ? A2aMode::kNormal : A2aMode::kLowLatency,
                                .token_ids = ids,
                                .chunks = chunks,
                                .logit_rows = rows};
    ASSERT_TRUE(group->run([&](int) { return group->model(0).forward(group->context(0), batch, &result); }).ok());
    for (int i = 0; i < kSequences; ++i) {
      const float* expected = alone[i].logits.data() + (prompts[i].size() - 1 + step) * kVocab;
      const float* ours = result.logits.row<float>(i);
      expect_same_bits({ours, ours + kVocab}, {expected, expected + kVocab}, str_cat("sequence ", i, ", step ", step));
    }
  }
}

}  // namespace
}  // namespace moesaic::testing
