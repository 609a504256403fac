// Speculation inside the engine: the same output with it and without, whatever is guessed; rows and blocks of wrong
// guesses are given back; the depth that pays.
#include <cmath>

#include "base/clock.h"
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/engine_test_util.h"
#include "engine/speculator.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

struct Outcome {
  std::map<RequestId, Result> results;
  EngineStats stats;
  int num_wrong_draft_rows = 0;
};

Outcome run_all(const EngineOptions& options, double probability, const std::vector<Request>& requests,
                const Tokenizer* tokenizer = nullptr) {
  auto fake = std::make_unique<FakeExecutor>(options);
  const FakeExecutor* watched = fake.get();
  if (probability >= 0) fake->enable_drafts(7, probability);
  Collector collector;
  Engine engine(options, std::move(fake), tokenizer, real_clock());
  for (const Request& request : requests) EXPECT_TRUE(engine.submit(request, collector.sink()).ok());
  collector.wait(static_cast<int>(requests.size()));
  engine.drain(10'000);
  EXPECT_TRUE(engine.check_at_rest().ok()) << engine.check_at_rest();
  return {collector.results(), engine.stats(), watched->num_wrong_draft_rows()};
}

Request mixed_request(RequestId id, int prompt, int max_tokens) {
  Request request = make_request(id, make_prompt(id, prompt), max_tokens);
  request.sampling.temperature = id % 3 == 0 ? 0.0f : 0.2f * static_cast<float>(id % 5);
  request.sampling.seed = id * 77;
  request.sampling.repetition_penalty = id % 2 == 0 ? 1.1f : 1.0f;
  request.sampling.frequency_penalty = id % 4 == 0 ? 0.3f : 0.0f;
  request.num_logprobs = 2;
  request.prompt_logprobs = id % 4 == 1;
  request.use_prefix_cache = false;  // a shared block's last draft row may belong to another continuation
  return request;
}

void expect_same(const Result& a, const Result& b) {
  EXPECT_EQ(a.token_ids, b.token_ids);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.last.finish_reason, b.last.finish_reason);
  EXPECT_EQ(a.last.stop_string, b.last.stop_string);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    EXPECT_EQ(a.logprobs[i].id, b.logprobs[i].id);
    EXPECT_EQ(a.logprobs[i].logprob, b.logprobs[i].logprob);
    EXPECT_EQ(a.logprobs[i].top, b.logprobs[i].top);
  }
  EXPECT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size());
}

TEST(Speculation, OutputIsThatOfPlainDecoding) {
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 16; ++id) requests.push_back(mixed_request(id, 3 + id % 11, 1 + id % 14));
  struct Case {
    int dp, blocks, running, tokens, depth;
    double probability;
    bool preempts;
  };
  for (const Case& c :
       {Case{1, 64, 12, 64, 1, 1.0, false}, Case{1, 64, 12, 64, 3, 0.7, false}, Case{1, 8, 12, 64, 3, 0.9, true},
        Case{1, 8, 8, 9, 2, 0.5, true}, Case{3, 16, 4, 7, 7, 0.95, false}, Case{2, 9, 8, 32, 3, 0.0, true}}) {
    SCOPED_TRACE(testing::Message() << "dp " << c.dp << " blocks " << c.blocks << " depth " << c.depth << " right "
                                    << c.probability);
    EngineOptions options = small_options();
    options.dp_size = c.dp;
    options.num_kv_blocks = c.blocks;
    options.max_running_requests = c.running;
    options.max_tokens_per_step = c.tokens;
    const Outcome plain = run_all(options, -1, requests);
    options.max_draft_depth = c.depth;
    options.adaptive_draft_depth = false;
    const Outcome drafted = run_all(options, c.probability, requests);
    for (const Request& request : requests) {
      SCOPED_TRACE(testing::Message() << "request " << request.id);
      expect_same(drafted.results.at(request.id), plain.results.at(request.id));
    }
    EXPECT_FALSE(plain.stats.speculation.has_value());
    EXPECT_GT(drafted.stats.speculation->draft_tokens_total, 0);
    EXPECT_EQ(drafted.stats.output_tokens_total, plain.stats.output_tokens_total);
    EXPECT_EQ(drafted.num_wrong_draft_rows, 0);
    if (c.probability > 0.5) {
      EXPECT_GT(drafted.stats.speculation->accepted_tokens_total, 0);
    }
    if (c.probability == 0.0) {
      EXPECT_EQ(drafted.stats.speculation->accepted_tokens_total, 0);
    }
    if (c.preempts) {
      EXPECT_GT(drafted.stats.preemptions_total, 0);
    }
  }
}

// Each token against the probabilities that its logprobs report, given the tokens before it: Pearson's chi-square.
TEST(Speculation, SampledTokensHaveTheModelsDistribution) {
  constexpr int kTopK = 4, kBatch = 100;
  EngineOptions options = small_options();
  options.num_kv_blocks = 64;
  options.max_draft_depth = 3;
  options.adaptive_draft_depth = false;
  std::map<std::vector<int32_t>, std::map<int32_t, int>> counts;  // by the tokens before
  std::map<std::vector<int32_t>, std::map<int32_t, double>> expected;
  int64_t num_accepted = 0;
  for (RequestId first = 1; first <= 4000; first += kBatch) {
    std::vector<Request> requests;
    for (RequestId id = first; id < first + kBatch; ++id) {
      requests.push_back(make_request(id, make_prompt(1, 6), 3));
      requests.back().sampling = {.temperature = 1.0f, .top_k = kTopK, .seed = id};
      requests.back().num_logprobs = kTopK;
      requests.back().use_prefix_cache = false;
    }
    const Outcome outcome = run_all(options, 0.9, requests);
    num_accepted += outcome.stats.speculation->accepted_tokens_total;
    for (const auto& [id, result] : outcome.results) {
      std::vector<int32_t> before;
      for (const TokenLogprob& token : result.logprobs) {
        ++counts[before][token.id];
        double total = 0;
        for (const auto& [top_id, logprob] : token.top) total += std::exp(logprob);
        for (const auto& [top_id, logprob] : token.top) expected[before][top_id] = std::exp(logprob) / total;
        before.push_back(token.id);
      }
    }
  }
  double chi_square = 0;
  int freedom = 0;
  for (const auto& [before, seen] : counts) {
    int total = 0;
    for (const auto& [id, count] : seen) total += count;
    if (total < 100) continue;
    freedom += kTopK - 1;
    for (const auto& [id, probability] : expected[before]) {
      const auto found = seen.find(id);
      const double difference = (found == seen.end() ? 0 : found->second) - total * probability;
      chi_square += difference * difference / (total * probability);
    }
  }
  EXPECT_GT(num_accepted, 500);
  EXPECT_GT(freedom, 20);
  EXPECT_LT(chi_square, freedom + 5 * std::sqrt(2.0 * freedom));
  EXPECT_GT(chi_square, freedom - 5 * std::sqrt(2.0 * freedom));
}

TEST(Speculation, RightGuessesSaveSteps) {
  EngineOptions options = small_options();
  options.max_draft_depth = 3;
  options.adaptive_draft_depth = false;
  options.kv_block_tokens = 64;
  const Outcome outcome = run_all(options, 1.0, {make_request(1, make_prompt(1, 5), 41)});
  EXPECT_EQ(outcome.results.at(1).token_ids.size(), 41u);
  EXPECT_EQ(outcome.stats.steps_total, 1 + 40 / 4);  // the prompt and its token, then four tokens a step
}

TEST(Speculation, EndsInsideAnAcceptedRun) {
  const auto tokenizer = byte_word_tokenizer();
  const std::vector<int32_t> script = ids_of({"a", "b", "ABC", "c", "HI", "d", "e", "f", "g"});
  for (const int depth : {0, 1, 2, 3, 5, 7}) {
    EngineOptions options = small_options();
    options.max_draft_depth = depth;
    options.adaptive_draft_depth = false;
    options.hooks.script = script;
    std::vector<Request> requests(4);
    for (RequestId id = 0; id < 4; ++id) requests[id] = make_request(id, {1, 2, 3}, 20);
    requests[0].stop = {"CcH"};  // across tokens
    requests[1].max_tokens = 4;
    requests[2].stop_token_ids = {ids_of({"HI"})[0]};
    const Outcome run = run_all(options, 1.0, requests, tokenizer.get());
    if (depth > 0) {
      EXPECT_GE(run.stats.speculation->accepted_tokens_total, 8);
    }
    EXPECT_EQ(run.results.at(0).text, "abAB") << depth;
    EXPECT_EQ(run.results.at(0).last.stop_string, "CcH");
    EXPECT_EQ(run.results.at(1).text, "abABCc");
    EXPECT_EQ(run.results.at(1).last.finish_reason, FinishReason::kLength);
    EXPECT_EQ(run.results.at(2).text, "abABCc");
    EXPECT_EQ(run.results.at(2).last.finish_reason, FinishReason::kStop);
    EXPECT_EQ(run.results.at(3).text, "abABCcHIdefg");
  }
}

TEST(Speculation, SyntheticAcceptanceSetsTheRate) {
  for (const double rate : {0.0, 0.6, 1.0}) {
    EngineOptions options = small_options();
    options.num_kv_blocks = 64;
    options.max_draft_depth = 2;
    options.adaptive_draft_depth = false;
    options.synthetic_acceptance = rate;
    std::vector<Request> requests;
    for (RequestId id = 1; id <= 20; ++id) {
      requests.push_back(make_request(id, make_prompt(id, 5), 60));
      requests.back().sampling.seed = id;
    }
    const EngineStats stats = run_all(options, 0.3, requests).stats;
    // Of each pair of guesses the first counts with the rate, the second with its square.
    const double expected = (rate + rate * rate) / 2;
    const double seen =
        static_cast<double>(stats.speculation->accepted_tokens_total) / stats.speculation->draft_tokens_total;
    EXPECT_NEAR(seen, expected, 0.06) << rate;
    EXPECT_EQ(stats.output_tokens_total, 20 * 60);
  }
}

// 200 short requests through a pool of 16 blocks of 4, guesses wrong and right in turn: nothing leaks.
TEST(Speculation, RejectedGuessesGiveTheirBlocksBack) {
  EngineOptions options = small_options();
  options.max_draft_depth = 3;
  options.adaptive_draft_depth = false;
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 200; ++id) requests.push_back(mixed_request(id, 1 + id % 9, 1 + id % 13));
  const Outcome run = run_all(options, 0.6, requests);
  for (const auto& [id, result] : run.results) {
    EXPECT_EQ(result.token_ids.size(), 1 + id % 13);
    EXPECT_EQ(result.num_finished, 1);
  }
  EXPECT_EQ(run.num_wrong_draft_rows, 0);
}

// The model's part of each step succeeds, the draft module's fails in the third.
class FailingDrafts final : public Executor {
 public:
  explicit FailingDrafts(const EngineOptions& options) : fake_(options) { fake_.enable_drafts(3, 1.0); }
  int max_draft_depth() const override { return 3; }
  absl::Status execute(const StepPlan& plan, StepLogits* logits) override { return fake_.execute(plan, logits); }
  absl::Status draft(const StepPlan& plan, const DraftPlan& drafts, DraftTokens* tokens) override {
    if (plan.step_id >= 2) return absl::InternalError("no draft today");
    return fake_.draft(plan, drafts, tokens);
  }

 private:
  FakeExecutor fake_;
};

// Also of requests that ended in the step, or got tokens: these come first, then the error.
TEST(Speculation, AFailedDraftEndsEveryRequestOnce) {
  EngineOptions options = small_options();
  options.max_draft_depth = 3;
  options.adaptive_draft_depth = false;
  options.hooks.faults = {.delay_at_step = 0, .delay_ms = 20};  // so that all are there at step 1
  Collector collector;
  Engine engine(options, std::make_unique<FailingDrafts>(options), nullptr, real_clock());
  for (RequestId id = 1; id <= 6; ++id) {
    ASSERT_TRUE(engine.submit(make_request(id, {1, 2, 3}, 2 + 3 * static_cast<int32_t>(id)), collector.sink()).ok());
  }
  collector.wait(6);
  engine.drain(10'000);
  for (const auto& [id, result] : collector.results()) {
    EXPECT_EQ(result.num_finished, 1) << id;
    EXPECT_TRUE(result.last.finish_reason == FinishReason::kLength || result.last.error.ToString().ends_with("today"))
        << result.last.error;
  }
  EXPECT_EQ(engine.stats().requests_finished_total, 6);
  EXPECT_FALSE(engine.healthy());
  EXPECT_TRUE(engine.check_at_rest().ok()) << engine.check_at_rest();
}

// One sequence that decodes, step after step, guesses right with `probability`.
int settled_depth(double probability, const StepTable::Linear& seconds, int num_sequences) {
  Speculator speculator(3, 1, 64, 4096, std::make_shared<const StepTable>(StepTable::linear(seconds)));
  Sequence sequence;
  sequence.request.prompt_ids = {1, 2, 3};
  sequence.request.max_tokens = 1'000'000;
  sequence.output_ids = {4};
  FakeExecutor fake(small_options());
  fake.enable_drafts(3, 0.0);
  Rng rng(5);
  std::vector<int32_t> draft_rows(num_sequences, 3);
  for (int step = 0; step < 600; ++step) {
    StepPlan plan;
    plan.groups.resize(1);
    for (int i = 0; i < num_sequences; ++i) {
      PlannedChunk& chunk = plan.groups[0].chunks.emplace_back();
      chunk.kv_begin = 3;
      chunk.num_total = 4;
      chunk.num_draft = speculator.depth();
      chunk.token_ids.assign(1 + chunk.num_draft, 4);
      chunk.block_table = {0, 1, 2, 3};
    }
    speculator.begin(plan);
    for (int i = 0; i < num_sequences; ++i) {
      const PlannedChunk& chunk = plan.groups[0].chunks[i];
      size_t num_right = 0;
      while (num_right < static_cast<size_t>(chunk.num_draft) && rng.uniform() < probability) ++num_right;
      const std::vector<int32_t> accepted(num_right + 1, 4);
      draft_rows[i] = 3;
      speculator.add(0, i, chunk, sequence, accepted, false, &draft_rows[i]);
    }
    EXPECT_TRUE(speculator.draft(plan, fake).ok());
  }
  return speculator.depth();
}

TEST(Speculator, DepthIsWhatPays) {
  // A step costs 1, each row 0.05, a level of drafts 0.2: at 0.95 the third guess pays, at 0.05 none does.
  const StepTable::Linear cheap{.step = 1.0, .decode_token = 0.05, .draft_level = 0.2, .draft_token = 0.01};
  EXPECT_EQ(settled_depth(0.95, cheap, 1), 3);
  EXPECT_EQ(settled_depth(0.45, cheap, 1), 1);
  EXPECT_EQ(settled_depth(0.05, cheap, 1), 0);
  // Rows cost as much as the step: nothing is gained by more of them.
  const StepTable::Linear full{.step = 0.01, .decode_token = 0.1, .draft_level = 0.01, .draft_token = 0.02};
  EXPECT_EQ(settled_depth(0.99, full, 8), 0);
}

}  // namespace
}  // namespace moesaic
