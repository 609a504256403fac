// Steps at the limits that ModelOptions promise: generated tokens that are computed again after a preemption come many
// at a time, in one chunk or in pieces, beside other sequences.
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "golden_util.h"

namespace moesaic::testing {
namespace {

constexpr int kGenerated = 40;
constexpr int kPiece = 8;
const RunOptions kOptions = {.max_tokens_per_step = 64, .max_position = 128, .max_sequences = 2};

std::vector<int32_t> some_ids() {
  std::vector<int32_t> ids(kGenerated);
  for (int i = 0; i < kGenerated; ++i) ids[i] = 2 + i * 37 % 300;
  return ids;
}

// Logits of all tokens of one step of these chunks.
std::vector<float> run_chunks(RankGroup& group, const std::vector<SequenceChunk>& chunks) {
  const std::vector<int32_t> ids = some_ids();
  std::vector<int32_t> rows(ids.size());
  std::iota(rows.begin(), rows.end(), 0);
  ForwardResult result;
  const absl::Status status =
      group.model(0).forward(group.context(0), {.token_ids = ids, .chunks = chunks, .logit_rows = rows}, &result);
  EXPECT_TRUE(status.ok()) << status;
  return {result.logits.f32(), result.logits.f32() + result.logits.num_elements()};
}

class RecomputedTokens : public ::testing::Test {
 protected:
  const std::unique_ptr<RankGroup> group_ = load_group("tests/data/micro-deepseek-v3/base", kOptions);
  const std::vector<int32_t> blocks_ = {1, 0};
};

// max_chunks counts sequences: two here, and five pieces.
TEST_F(RecomputedTokens, InMorePiecesThanSequences) {
  std::vector<SequenceChunk> pieces;
  for (int at = 0; at < kGenerated; at += kPiece) {
    pieces.push_back({.token_begin = at, .num_tokens = kPiece, .kv_begin = at, .block_table = blocks_.data()});
  }
  const std::vector<float> in_pieces = run_chunks(*group_, pieces);
  SequenceRunner runner(*group_, kOptions);
  std::vector<float> one_by_one;
  for (const int32_t id : some_ids()) {
    const std::vector<float> logits = runner.decode(id);
    one_by_one.insert(one_by_one.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(in_pieces, one_by_one);
}

TEST_F(RecomputedTokens, InOneChunk) {
  const std::vector<float> whole = run_chunks(*group_, {{.num_tokens = kGenerated, .block_table = blocks_.data()}});
  std::vector<SequenceChunk> pieces;
  for (int at = 0; at < kGenerated; at += kGenerated / 2) {
    pieces.push_back({.token_begin = at, .num_tokens = kGenerated / 2, .kv_begin = at, .block_table = blocks_.data()});
  }
  EXPECT_EQ(whole, run_chunks(*group_, pieces));
}

// A sequence that is computed again stands where the scheduler keeps it, also behind another one's prompt.
TEST_F(RecomputedTokens, BehindAPrompt) {
  constexpr int kPrompt = 15;
  const std::vector<int32_t> other = {3, 2};
  const auto chunk = [](int begin, int count, bool is_prefill, const std::vector<int32_t>& blocks) {
    return SequenceChunk{
        .token_begin = begin, .num_tokens = count, .is_prefill = is_prefill, .block_table = blocks.data()};
  };
  const int generated = kGenerated - kPrompt;
  const std::vector<float> mixed =
      run_chunks(*group_, {chunk(0, kPrompt, true, other), chunk(kPrompt, generated, false, blocks_)});
  // Each alone.
  const std::vector<int32_t> ids = some_ids();
  SequenceRunner prompt(*group_, kOptions), decode(*group_, kOptions);
  std::vector<float> apart = prompt.prefill({ids.begin(), ids.begin() + kPrompt});
  for (int i = kPrompt; i < kGenerated; ++i) {
    const std::vector<float> logits = decode.decode(ids[i]);
    apart.insert(apart.end(), logits.begin(), logits.end());
  }
  EXPECT_EQ(mixed, apart);
}

// More tokens than one slice holds: fewer heads at once, hidden layers and projections in parts, the same bits.
class LargeSteps : public ::testing::TestWithParam<std::tuple<const char*, DType>> {};

TEST_P(LargeSteps, KeepTheirBits) {
  constexpr int kTokens = 1100, kChunk = 275, kRow = 13;
  const auto& [model, kv_dtype] = GetParam();
  const RunOptions options = {
      .kv_dtype = kv_dtype, .max_tokens_per_step = kTokens, .max_position = kTokens + 64, .max_sequences = 2};
  const auto group = load_group(model, options);
  std::vector<int32_t> ids(kTokens);
  for (int i = 0; i < kTokens; ++i) ids[i] = 2 + i * kRow % 300;
  for (const bool is_prefill : {true, false}) {
    const std::vector<float> whole = SequenceRunner(*group, options).step(ids, is_prefill, A2aMode::kNormal);
    SequenceRunner parts(*group, options);
    std::vector<float> in_chunks;
    for (int at = 0; at < kTokens; at += kChunk) {
      const std::vector<float> logits =
          parts.step({ids.begin() + at, ids.begin() + at + kChunk}, is_prefill, A2aMode::kNormal);
      in_chunks.insert(in_chunks.end(), logits.begin(), logits.end());
    }
    ASSERT_EQ(whole.size(), in_chunks.size());
    EXPECT_TRUE(whole == in_chunks) << (is_prefill ? "prefill" : "replay") << ": largest difference "
                                    << max_abs_difference(whole.data(), in_chunks.data(), whole.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Models, LargeSteps,
                         ::testing::Combine(::testing::Values("tests/data/micro-deepseek-v3/base",
                                                              "tests/data/micro-deepseek-v3/no_q_lora",
                                                              "tests/data/micro-deepseek-v3/odd_dims"),
                                            ::testing::Values(DType::kF32)));
// bf16 rows take other space for decoding than f32 rows do.
INSTANTIATE_TEST_SUITE_P(KvFormats, LargeSteps,
                         ::testing::Combine(::testing::Values(kTinyModel),
                                            ::testing::Values(DType::kF32, DType::kBF16, DType::kE4M3)));

}  // namespace
}  // namespace moesaic::testing
