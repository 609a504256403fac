// Adaptive drafts against none, in virtual time: steps of known times, guesses that are right with a given probability.
// What exploring costs counts.
#include <algorithm>
#include <cmath>
#include <memory>

#include "base/rng.h"
#include "engine/speculator.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

constexpr int kMaxDepth = 3;
constexpr int64_t kContext = 1 << 20;

struct Case {
  const char* name;
  StepTable::Linear seconds;
};
// Of a step of one row: a level of drafts costs a fifth, and rows a twentieth, nearly nothing, or as much as all else.
constexpr Case kCases[] = {
    {"balanced", {.step = 1000, .decode_token = 50, .draft_level = 200, .draft_token = 10}},
    {"bound by weights", {.step = 1000, .decode_token = 2, .draft_level = 30, .draft_token = 1}},
    {"bound by rows", {.step = 10, .decode_token = 100, .draft_level = 10, .draft_token = 20}},
    {"dear drafts", {.step = 1000, .decode_token = 10, .draft_level = 900, .draft_token = 50}},
};

// A service that is always full: `batch` sequences of up to `max_length` tokens; who ends is replaced at once. Prompts
// cost nothing here.
class Service final : public Executor {
 public:
  Service(const StepTable::Linear& seconds, int batch, int max_length, double probability)
      : seconds_(seconds), max_length_(max_length), probability_(probability), sequences_(batch) {
    plan_.groups.resize(1);
    for (Running& running : sequences_) {
      restart(&running);
      running.num_output = static_cast<int64_t>(rng_.below(running.sequence.request.max_tokens));
      running.draft_rows = static_cast<int32_t>(running.num_output);  // of the one prompt token and all outputs but one
    }
  }

  // Tokens a second.
  double run(int64_t num_steps, Speculator* speculator) {
    double tokens = 0, time_s = 0;
    for (int64_t step = 0; step < num_steps; ++step) {
      tokens += plan_step(&time_s);
      draft_s_ = 0;
      speculator->begin(plan_);
      for (size_t i = 0; i < sequences_.size(); ++i) {
        Running& running = sequences_[i];
        speculator->add(0, static_cast<int32_t>(i), plan_.groups[0].chunks[i], running.sequence, running.accepted,
                        running.finished, &running.draft_rows);
        running.num_draft = 0;
      }
      EXPECT_TRUE(speculator->draft(plan_, *this).ok());
      time_s += draft_s_;
    }
    return tokens / time_s;
  }

 private:
  struct Running {
    Sequence sequence;
    int64_t num_output = 0;  // before the step
    int32_t draft_rows = 0;
    int32_t num_draft = 0;
    std::vector<int32_t> accepted;
    bool finished = true;
  };

  void restart(Running* running) {
    running->sequence.request.prompt_ids = {1};
    running->sequence.output_ids.clear();
    running->sequence.request.max_tokens = static_cast<int32_t>(1 + rng_.below(max_length_));
    running->num_output = 0;
    running->draft_rows = 0;
    running->num_draft = 0;
    running->finished = false;
  }

  // Takes all sequences one step on; the tokens that it yields.
  double plan_step(double* time_s) {
    std::vector<PlannedChunk>& chunks = plan_.groups[0].chunks;
    chunks.assign(sequences_.size(), {});
    double rows = 0, tokens = 0;
    for (Running& running : sequences_) {
      if (running.finished) restart(&running);
    }
    // As the scheduler has it.
    std::stable_partition(sequences_.begin(), sequences_.end(), [](const Running& r) { return r.num_output > 0; });
    for (size_t i = 0; i < sequences_.size(); ++i) {
      Running& running = sequences_[i];
      PlannedChunk& chunk = chunks[i];
      chunk.is_prefill = running.num_output == 0;
      chunk.kv_begin = static_cast<int32_t>(running.num_output);
      chunk.num_total = chunk.kv_begin + 1;
      chunk.num_draft = running.num_draft;
      chunk.token_ids.assign(1 + running.num_draft, 1);
      chunk.block_table.assign(1 + (chunk.kv_begin + 8) / 64, 0);
      int num_right = 0;
      while (num_right < running.num_draft && rng_.uniform() < probability_) ++num_right;
      const int64_t left = running.sequence.request.max_tokens - running.num_output;
      running.accepted.assign(std::min<int64_t>(num_right + 1, left), 1);
      running.num_output += static_cast<int64_t>(running.accepted.size());
      running.sequence.output_ids.resize(running.num_output, 1);
      running.finished = running.num_output >= running.sequence.request.max_tokens;
      rows += 1 + running.num_draft;
      tokens += static_cast<double>(running.accepted.size());
    }
    *time_s += seconds_.step + rows * seconds_.decode_token;
    return tokens;
  }

  absl::Status execute(const StepPlan&, StepLogits*) override { return absl::OkStatus(); }
  absl::Status draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) override {
    tokens->groups.assign(1, std::vector<int32_t>(drafts.groups[0].chunks.size() * drafts.depth, 1));
    int num_decoding = 0;
    for (const DraftChunk& chunk : drafts.groups[0].chunks) {
      sequences_[chunk.chunk].num_draft = chunk.depth;
      num_decoding += plan.groups[0].chunks[chunk.chunk].is_prefill && chunk.depth == 0 ? 0 : 1;
    }
    if (num_decoding > 0)
      draft_s_ = (seconds_.draft_level + num_decoding * seconds_.draft_token) * std::max(drafts.depth, 1);
    return absl::OkStatus();
  }

  const StepTable::Linear seconds_;
  const int64_t max_length_;
  const double probability_;
  Rng rng_{7};
  std::vector<Running> sequences_;
  StepPlan plan_;
  double draft_s_ = 0;
};

// Tokens a second with adaptive drafts, as a share of those without.
double gain(const StepTable::Linear& seconds, int batch, int max_length, double probability) {
  constexpr int64_t kSteps = 8000;
  Speculator speculator(kMaxDepth, 1, 64, kContext, std::make_shared<const StepTable>(StepTable::linear(seconds)));
  const double plain = batch / (seconds.step + batch * seconds.decode_token);
  return Service(seconds, batch, max_length, probability).run(kSteps, &speculator) / plain;
}

TEST(SpeculationGain, NeverMoreThanTwoPercentBelowPlainDecoding) {
  for (const Case& test : kCases) {
    for (const int max_length : {100, 2000}) {
      for (const int batch : {1, 2, 4, 8, 16, 32}) {
        for (int tenths = 0; tenths <= 10; ++tenths) {
          EXPECT_GE(gain(test.seconds, batch, max_length, tenths / 10.0), 0.98)
              << test.name << ", batch " << batch << ", up to " << max_length << " tokens, right " << tenths << " / 10";
        }
      }
    }
  }
}

TEST(SpeculationGain, NorWithAnyCosts) {
  constexpr uint64_t kSeed = 3;
  Rng rng(kSeed);
  for (int i = 0; i < 150; ++i) {
    const auto up_to = [&](double most) { return most * std::exp2(-10 * rng.uniform()); };
    const StepTable::Linear seconds{
        .step = 1000, .decode_token = up_to(1000), .draft_level = up_to(1000), .draft_token = up_to(300)};
    const int batch = static_cast<int>(1 + rng.below(32)), max_length = static_cast<int>(20 + rng.below(1000));
    const double probability = rng.uniform();
    EXPECT_GE(gain(seconds, batch, max_length, probability), 0.98)
        << "seed " << kSeed << ", case " << i << ": batch " << batch << ", up to " << max_length << " tokens, right "
        << probability << ", row " << seconds.decode_token << ", draft " << seconds.draft_level << " + "
        << seconds.draft_token;
  }
}

// What pays is used.
TEST(SpeculationGain, IsLargeWhereGuessesAreRight) {
  EXPECT_GT(gain(kCases[0].seconds, 1, 2000, 0.9), 1.8);
  EXPECT_GT(gain(kCases[0].seconds, 8, 2000, 0.9), 1.25);
  EXPECT_GT(gain(kCases[1].seconds, 32, 2000, 0.9), 2.3);
}

}  // namespace
}  // namespace moesaic
