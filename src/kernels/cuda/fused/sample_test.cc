// Sampling against the CPU's sample_token, and the check of drafts against a plain loop.
#include "kernels/cuda/fused/sample.h"

#include <algorithm>

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"
#include "kernels/cuda/fused/verify_drafts.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

struct Cuts {
  float temperature;
  int32_t top_k;
  float top_p;
  float min_p;
};

const std::vector<Cuts> kCuts = {
    {1, 0, 1, 0},        {0.5f, 0, 1, 0},        {2, 0, 1, 0},         {1, 5, 1, 0},
    {1, 1, 1, 0},        {1, 0, 0.7f, 0},        {1, 0, 0.99f, 0},     {1, 0, 1, 0.05f},
    {1.3f, 12, 0.8f, 0}, {1.3f, 30, 0.9f, 0.1f}, {1, 1000000, 0, 0},   {5, 0, 0.95f, 0.3f},
    {0, 0, 1, 0},        {1e-30f, 7, 0.5f, 0},   {0.7f, 50, 0.95f, 0}, {1, 2000, 0.9999f, 0}};

struct Batch {
  int64_t vocab;
  std::vector<float> logits;
  std::vector<Cuts> cuts;
  std::vector<int64_t> seeds, positions;

  void add(const std::vector<float>& row, const Cuts& cut, int64_t seed, int64_t position) {
    logits.insert(logits.end(), row.begin(), row.end());
    cuts.push_back(cut), seeds.push_back(seed), positions.push_back(position);
  }
};

class Sample : public test::CudaTest {
 protected:
  std::vector<int32_t> run(const Batch& batch) {
    const int64_t rows = static_cast<int64_t>(batch.cuts.size());
    std::vector<float> temperature, top_p, min_p;
    std::vector<int32_t> top_k;
    for (const Cuts& c : batch.cuts) {
      temperature.push_back(c.temperature), top_k.push_back(c.top_k);
      top_p.push_back(c.top_p), min_p.push_back(c.min_p);
    }
    const DeviceTensor logits = test::upload(DType::kF32, {rows, batch.vocab}, batch.logits);
    const DeviceTensor t = test::upload(DType::kF32, {rows}, temperature), k = test::upload(DType::kI32, {rows}, top_k);
    const DeviceTensor p = test::upload(DType::kF32, {rows}, top_p), m = test::upload(DType::kF32, {rows}, min_p);
    const DeviceTensor seeds = test::upload(DType::kI64, {rows}, batch.seeds);
    const DeviceTensor positions = test::upload(DType::kI64, {rows}, batch.positions);
    const DeviceTensor ids = test::poisoned(DType::kI32, {rows});
    const absl::Status status = sample(stream(), {.logits = logits,
                                                  .temperature = t,
                                                  .top_k = k,
                                                  .top_p = p,
                                                  .min_p = m,
                                                  .seeds = seeds,
                                                  .positions = positions,
                                                  .ids = ids});
    EXPECT_TRUE(status.ok()) << status.message();
    return test::download<int32_t>(ids);
  }
};

int32_t cpu_sample(const Batch& batch, size_t row, double shift) {
  const Cuts& c = batch.cuts[row];
  const double u = Rng(static_cast<uint64_t>(batch.seeds[row]), batch.positions[row]).uniform();
  return sample_token({.logits = std::span(batch.logits).subspan(row * batch.vocab, batch.vocab),
                       .temperature = c.temperature,
                       .top_k = c.top_k,
                       .top_p = c.top_p,
                       .min_p = c.min_p,
                       .uniform = std::clamp(u + shift, 0.0, std::nextafter(1.0, 0.0))});
}

// Equal to the CPU's, or, at a border between two tokens, to what it gives a hundred-millionth beside.
void expect_agreement(const Batch& batch, const std::vector<int32_t>& ids) {
  int borders = 0;
  for (size_t row = 0; row < ids.size(); ++row) {
    const int32_t want = cpu_sample(batch, row, 0.0);
    if (ids[row] == want) continue;
    const bool at_border = ids[row] == cpu_sample(batch, row, 1e-8) || ids[row] == cpu_sample(batch, row, -1e-8);
    EXPECT_TRUE(at_border) << "row " << row << ": " << ids[row] << ", the CPU's " << want << ", seed "
                           << batch.seeds[row];
    ++borders;
  }
  EXPECT_LE(borders, 1 + static_cast<int>(ids.size()) / 100);
}

TEST_F(Sample, AgreesWithTheCpuOnManySmallRows) {
  for (const int64_t vocab : {4, 60, 1000, 5000}) {
    SCOPED_TRACE(testing::Message() << "vocabulary " << vocab);
    Rng rng(static_cast<uint64_t>(vocab));
    Batch batch{.vocab = vocab};
    for (int repeat = 0; repeat < 12; ++repeat) {
      for (const Cuts& cuts : kCuts) {
        std::vector<float> logits = test::gaussians(rng, vocab, 2.0f);
        if (repeat % 3 == 1) {
          for (float& v : logits) v = std::round(v * 2) / 2;  // many ties
        }
        if (repeat % 3 == 2) {
          logits[rng.below(vocab)] = test::kNan;
          logits[rng.below(vocab)] = -test::kInf;
          for (float& v : logits) v *= 30.0f;
        }
        batch.add(logits, cuts, static_cast<int64_t>(rng.next_u64()), static_cast<int64_t>(rng.below(1 << 20)));
      }
    }
    expect_agreement(batch, run(batch));
  }
}

TEST_F(Sample, AgreesWithTheCpuAtFullSize) {
  for (const int64_t rows : token_counts(kSampleRows)) {
    SCOPED_TRACE(testing::Message() << rows << " rows");
    Rng rng(rows);
    Batch batch{.vocab = kVocab};
    // The narrowest: a cut falls among more than a thousand logits that lie close together.
    const float scales[] = {0.05f, 1.0f, 4.0f};
    for (int64_t i = 0; i < rows; ++i) {
      std::vector<float> logits = test::gaussians(rng, batch.vocab, scales[i % 3]);
      for (float& v : logits) v = bf16_to_f32(f32_to_bf16(v));  // ties everywhere
      batch.add(logits, kCuts[i % kCuts.size()], static_cast<int64_t>(rng.next_u64()), i);
    }
    const std::vector<int32_t> ids = run(batch);
    expect_agreement(batch, ids);
    EXPECT_EQ(run(batch), ids);
  }
}

TEST_F(Sample, FollowsTheDistributionOverManyRows) {
  const int draws = 20000;
  Batch batch{.vocab = 8};
  const std::vector<float> logits = {0, 1, 2, 1, test::kNan, -1, 2, -test::kInf};
  for (int i = 0; i < draws; ++i) batch.add(logits, {1, 4, 1, 0}, 77, i);
  std::vector<int> counts(8);
  for (const int32_t id : run(batch)) {
    ASSERT_TRUE(id >= 0 && id < 8);
    ++counts[id];
  }
  const double total = 2 * std::exp(2.0) + 2 * std::exp(1.0);  // top 4: ids 2, 6, 1, 3
  for (int id = 0; id < 8; ++id) {
    const double p = id == 2 || id == 6 ? std::exp(2.0) / total : id == 1 || id == 3 ? std::exp(1.0) / total : 0.0;
    EXPECT_NEAR(counts[id], p * draws, 5 * std::sqrt(p * (1 - p) * draws)) << id;
  }
}

TEST_F(Sample, TiesNanAndInfinity) {
  Batch batch{.vocab = 8};
  const auto add = [&](const std::vector<float>& logits, const Cuts& cuts) { batch.add(logits, cuts, 3, 9); };
  const float nan = test::kNan, inf = test::kInf;
  add({1, 3, 2, 3, nan, 0, 0, 0}, {0, 0, 1, 0});      // argmax, the lowest id
  add({inf, 3, 2, inf, nan, 0, 0, 0}, {1, 0, 1, 0});  // an infinite logit wins
  add(std::vector<float>(8, nan), {1, 0, 1, 0});      // nothing to sample
  add(std::vector<float>(8, nan), {0, 0, 1, 0});
  add({nan, -inf, -inf, nan, -inf, nan, nan, nan}, {1, 3, 0.5f, 0});  // all ruled out
  add({nan, -5, nan, nan, nan, nan, nan, nan}, {1, 2, 0.0f, 1});      // one left
  add({-0.0f, 0, -0.0f, 0, -9, -9, -9, -9}, {1, 1, 1, 0});            // -0 and 0 tie
  add({1, 1, 1, 1, 1, 1, 1, 1}, {1, 8, 0.01f, 0});                    // top_p of equals: the first
  EXPECT_EQ(run(batch), (std::vector<int32_t>{1, 0, -1, -1, 1, 1, 0, 0}));
}

class VerifyDrafts : public test::CudaTest {};

TEST_F(VerifyDrafts, MatchesALoop) {
  Rng rng(6);
  for (const int64_t depth : {1, 3}) {
    const int64_t seqs = 300;
    std::vector<int32_t> drafts(seqs * depth), sampled(seqs * (depth + 1)), limits(seqs);
    for (int32_t& id : drafts) id = static_cast<int32_t>(rng.below(3)) - 1;
    for (int32_t& id : sampled) id = static_cast<int32_t>(rng.below(3)) - 1;
    for (int32_t& limit : limits) limit = static_cast<int32_t>(rng.below(depth + 1));
    for (const bool limited : {false, true}) {
      const DeviceTensor d = test::upload(DType::kI32, {seqs, depth}, drafts);
      const DeviceTensor s = test::upload(DType::kI32, {seqs, depth + 1}, sampled);
      const DeviceTensor l = test::upload(DType::kI32, {seqs}, limits);
      const DeviceTensor accepted = test::poisoned(DType::kI32, {seqs}), next = test::poisoned(DType::kI32, {seqs});
      ASSERT_TRUE(verify_drafts(stream(), {.draft_ids = d,
                                           .num_drafts = limited ? l.tensor : Tensor(),
                                           .sampled_ids = s,
                                           .num_accepted = accepted,
                                           .next_ids = next})
                      .ok());
      std::vector<int32_t> want_accepted(seqs), want_next(seqs);
      for (int64_t i = 0; i < seqs; ++i) {
        int32_t n = 0;
        while (n < (limited ? limits[i] : depth) && sampled[i * (depth + 1) + n] >= 0 &&
               drafts[i * depth + n] == sampled[i * (depth + 1) + n]) {
          ++n;
        }
        want_accepted[i] = n, want_next[i] = sampled[i * (depth + 1) + n];
      }
      EXPECT_EQ(test::download<int32_t>(accepted), want_accepted);
      EXPECT_EQ(test::download<int32_t>(next), want_next);
    }
  }
}

}  // namespace
}  // namespace moesaic::cuda
