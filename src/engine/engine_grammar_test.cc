// Constrained outputs through the engine: what ends is a text of the grammar, what is cut is the beginning of one,
// alone and in company, preempted or not.
#include <cmath>

#include "base/rng.h"
#include "engine/engine_test_util.h"
#include "gtest/gtest.h"
#include "text/grammar_states.h"
#include "text/output_grammar.h"

namespace moesaic {
namespace {

std::shared_ptr<const Grammar> regex(std::string_view pattern, std::string_view tag = "") {
  auto grammar = output_grammar({.kind = OutputFormat::Kind::kRegex, .text = std::string(pattern)}, tag);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return *grammar;
}

const Tokenizer& tokenizer() {
  static const std::unique_ptr<Tokenizer> made = byte_word_tokenizer();
  return *made;
}

std::map<RequestId, Result> run_all(const std::vector<Request>& requests, EngineOptions options = small_options()) {
  Collector collector;
  Engine engine(options, std::make_unique<FakeExecutor>(options), &tokenizer(), real_clock());
  for (const Request& request : requests) {
    const absl::Status status = engine.submit(request, collector.sink());
    EXPECT_TRUE(status.ok()) << status;
  }
  collector.wait(static_cast<int>(requests.size()));
  engine.drain(10'000);
  EXPECT_TRUE(engine.check_at_rest().ok());
  return collector.results();
}

void expect_follows(const Request& request, const Result& result) {
  GrammarStates states(request.grammar);
  GrammarStates::State state = states.start();
  states.allow_work(1 << 20);
  std::string bytes;
  for (const int32_t id : result.token_ids) bytes += id == kEos ? "" : tokenizer().token_bytes(id);
  for (const char byte : bytes) state = states.step(state, static_cast<uint8_t>(byte));
  ASSERT_NE(state, GrammarStates::kDead) << bytes;
  ASSERT_EQ(result.num_finished, 1);
  if (result.last.finish_reason == FinishReason::kStop) {
    EXPECT_TRUE(states.complete(state)) << bytes;
    EXPECT_EQ(result.text, bytes);
    EXPECT_EQ(result.last.stop_token_id >= 0, result.token_ids.back() == kEos);
  } else {
    ASSERT_EQ(result.last.finish_reason, FinishReason::kLength) << result.last.error;
    EXPECT_EQ(static_cast<int>(result.token_ids.size()), request.max_tokens);
  }
}

TEST(EngineGrammarTest, OutputsFollowTheirGrammars) {
  const char* const kPatterns[] = {"(yes|no)", "[a-f]{3,30}", "(é|世|[0-9])*;", "\\d+(\\.\\d{2})?", "[^A-Z]{1,12}"};
  std::vector<Request> requests;
  Rng rng(1);
  for (RequestId id = 1; id <= 40; ++id) {
    Request request = make_request(id, make_prompt(id, 1 + id % 9), 1 + static_cast<int32_t>(rng.below(24)));
    request.grammar = regex(kPatterns[id % std::size(kPatterns)], id % 7 == 0 ? "E" : "");
    request.sampling.temperature = id % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = id;
    request.sampling.top_k = id % 3 == 0 ? 4 : 0;
    request.sampling.top_p = id % 5 == 0 ? 0.7f : 1.0f;
    request.ignore_eos = id % 4 == 0;
    requests.push_back(std::move(request));
  }
  const auto together = run_all(requests);  // the pool is small: some are preempted
  int num_stopped = 0;
  for (const Request& request : requests) {
    SCOPED_TRACE(request.id);
    const Result& result = together.at(request.id);
    expect_follows(request, result);
    num_stopped += result.last.finish_reason == FinishReason::kStop;
    const auto alone = run_all({request});
    EXPECT_EQ(result.token_ids, alone.at(request.id).token_ids);
  }
  EXPECT_GT(num_stopped, 10);
}

TEST(EngineGrammarTest, EndsAtOnceWhereNothingCanFollow) {
  Request request = make_request(1, {65}, 20);
  request.grammar = regex("(abc|xyz)");
  request.ignore_eos = true;
  request.sampling.min_tokens = 15;  // cannot be met
  const Result result = run_all({request}).at(1);
  EXPECT_TRUE(result.text == "abc" || result.text == "xyz") << result.text;
  EXPECT_EQ(result.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(result.last.stop_token_id, -1);
}

TEST(EngineGrammarTest, LogprobsAreThoseOfTheAllowedTokens) {
  Request request = make_request(1, {65}, 8);
  request.grammar = regex("[01]{8}");
  request.num_logprobs = 5;
  const Result result = run_all({request}).at(1);
  ASSERT_EQ(result.logprobs.size(), 8u);
  for (const TokenLogprob& logprob : result.logprobs) {
    double total = 0;
    for (const auto& [id, value] : logprob.top) {
      EXPECT_TRUE(id == '0' || id == '1');
      total += std::exp(value);
    }
    EXPECT_NEAR(total, 1.0, 1e-5);
  }
}

// Where min_tokens forbids to end, it goes on as long as the grammar lets it.
TEST(EngineGrammarTest, MinTokensAndStopTokens) {
  Request request = make_request(1, {65}, 30);
  request.grammar = regex("a*");
  request.sampling.min_tokens = 10;
  request.sampling.logit_bias = {{kEos, 100.0f}};
  Result result = run_all({request}).at(1);
  EXPECT_EQ(result.text, std::string(10, 'a'));
  EXPECT_EQ(result.last.stop_token_id, kEos);
  request.grammar = regex("b{5}c*");
  request.sampling.min_tokens = 0;
  request.stop_token_ids = {'z'};
  request.sampling.logit_bias = {{'z', 100.0f}};
  result = run_all({request}).at(1);
  EXPECT_EQ(result.text, "bbbbb");  // only there may a stop token come
  EXPECT_EQ(result.last.stop_token_id, 'z');
}

TEST(EngineGrammarTest, WhatCannotBeFollowedIsAnError) {
  Request request = make_request(1, {65}, 20);
  request.grammar = regex("((((a?){1,100}){1,100}){1,100}){1,100}b");
  const Result result = run_all({request}).at(1);
  EXPECT_EQ(result.last.finish_reason, FinishReason::kError);
  EXPECT_NE(result.last.error.message().find("too ambiguous"), std::string::npos) << result.last.error;
  Collector collector;
  Engine engine(small_options(), std::make_unique<FakeExecutor>(small_options()), nullptr, real_clock());
  EXPECT_EQ(engine.submit(request, collector.sink()).code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace moesaic
