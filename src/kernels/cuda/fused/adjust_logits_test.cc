// Penalties and masks, bit for bit what the CPU makes of the logits.
#include "kernels/cuda/fused/adjust_logits.h"

#include <algorithm>
#include <limits>
#include <set>

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

// Rows with seen tokens and allowed ones at random; some rows have none of the former.
struct Batch {
  Batch(uint64_t seed, int64_t num_rows, int64_t vocab) : rows(num_rows), vocab(vocab), words((vocab + 63) / 64) {
    Rng rng(seed);
    logits = test::gaussians(rng, rows * vocab, 3.0f);
    for (int64_t i = 0; i < rows * vocab; i += 59) logits[i] = i % 2 == 0 ? 0.0f : -test::kInf;
    for (int64_t r = 0; r < rows; ++r) {
      frequency.push_back(r % 4 == 1 ? 0.0f : static_cast<float>(rng.uniform()));
      presence.push_back(r % 4 == 2 ? 0.0f : static_cast<float>(rng.uniform() * 2 - 1));
      repetition.push_back(r % 4 == 3 ? 1.0f : static_cast<float>(0.5 + rng.uniform()));
      std::vector<int32_t> prompt, output;
      const int64_t count = r % 5 == 0 ? 0 : static_cast<int64_t>(rng.below(2000));
      for (int64_t i = 0; i < count; ++i) {
        (rng.below(2) == 0 ? prompt : output).push_back(static_cast<int32_t>(rng.below(vocab)));
      }
      std::set<int32_t> distinct(prompt.begin(), prompt.end());
      distinct.insert(output.begin(), output.end());
      for (const int32_t id : distinct) {
        ids.push_back(id), counts.push_back(static_cast<int32_t>(std::count(output.begin(), output.end(), id)));
      }
      ids.push_back(r % 2 == 0 ? -1 : std::numeric_limits<int32_t>::max()), counts.push_back(3);  // nobody's
      begin.push_back(static_cast<int32_t>(ids.size()));
      prompts.push_back(prompt), outputs.push_back(output);
    }
    for (int64_t i = 0; i < rows * words; ++i) allowed.push_back(static_cast<int64_t>(rng.next_u64() | rng.next_u64()));
  }

  std::vector<float> expected(bool penalises, bool masks) const {
    std::vector<float> want = logits;
    for (int64_t r = 0; r < rows; ++r) {
      float* row = want.data() + r * vocab;
      if (penalises) {
        apply_penalties({.logits = {row, static_cast<size_t>(vocab)},
                         .prompt_ids = prompts[r],
                         .output_ids = outputs[r],
                         .frequency_penalty = frequency[r],
                         .presence_penalty = presence[r],
                         .repetition_penalty = repetition[r]});
      }
      for (int64_t i = 0; masks && i < vocab; ++i) {
        if ((static_cast<uint64_t>(allowed[r * words + i / 64]) >> (i % 64) & 1) == 0) row[i] = -test::kInf;
      }
    }
    return want;
  }

  int64_t rows, vocab, words;
  std::vector<float> logits, frequency, presence, repetition;
  std::vector<int32_t> begin = {0}, ids, counts;
  std::vector<std::vector<int32_t>> prompts, outputs;
  std::vector<int64_t> allowed;
};

class AdjustLogits : public test::CudaTest {};

TEST_F(AdjustLogits, AreTheCpus) {
  std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 4}, {7, 100}, {20, 5004}};
  for (const int64_t rows : token_counts(kSampleRows)) shapes.emplace_back(rows, kVocab);
  for (const auto& [rows, vocab] : shapes) {
    const Batch batch(rows + vocab, rows, vocab);
    for (const auto& [penalises, masks] : {std::pair{true, false}, {false, true}, {true, true}, {false, false}}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << vocab << (penalises ? " penalties" : "")
                                      << (masks ? " mask" : ""));
      const auto seen = static_cast<int64_t>(batch.ids.size());
      const DeviceTensor logits = test::upload(DType::kF32, {rows, vocab}, batch.logits);
      const DeviceTensor begin = test::upload(DType::kI32, {rows + 1}, batch.begin);
      const DeviceTensor ids = test::upload(DType::kI32, {seen}, batch.ids);
      const DeviceTensor counts = test::upload(DType::kI32, {seen}, batch.counts);
      const DeviceTensor frequency = test::upload(DType::kF32, {rows}, batch.frequency);
      const DeviceTensor presence = test::upload(DType::kF32, {rows}, batch.presence);
      const DeviceTensor repetition = test::upload(DType::kF32, {rows}, batch.repetition);
      const DeviceTensor allowed = test::upload(DType::kI64, {rows, batch.words}, batch.allowed);
      AdjustLogitsArgs args{.logits = logits};
      if (penalises) {
        args.seen_begin = begin, args.seen_ids = ids, args.seen_counts = counts;
        args.frequency_penalties = frequency, args.presence_penalties = presence;
        args.repetition_penalties = repetition;
      }
      if (masks) args.allowed = allowed;
      const absl::Status status = adjust_logits(stream(), args);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(test::download<float>(logits), batch.expected(penalises, masks));
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
