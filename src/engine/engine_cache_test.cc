// The prefix cache inside the engine: the same tokens with it and without, in any company, and honest counts. The fake
// model's logits depend on every row and on the path that computed it, so a wrong block changes the tokens.
#include "base/rng.h"
#include "engine/engine.h"
#include "engine/engine_test_util.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  return std::make_unique<Engine>(options, std::make_unique<FakeExecutor>(options), nullptr, real_clock());
}

// One at a time, so that later requests find what earlier ones left.
std::map<RequestId, Result> run_in_turn(const EngineOptions& options, const std::vector<Request>& requests) {
  Collector collector;
  auto engine = make_engine(options);
  int num_done = 0;
  for (const Request& request : requests) {
    EXPECT_TRUE(engine->submit(request, collector.sink()).ok());
    collector.wait(++num_done);
  }
  engine->drain(10'000);
  EXPECT_TRUE(engine->check_at_rest().ok()) << engine->check_at_rest();
  return collector.results();
}

Request with_prompt(RequestId id, int common, int length, int32_t max_tokens) {
  std::vector<int32_t> prompt = make_prompt(77, common);
  const std::vector<int32_t> rest = make_prompt(id, length - common);
  prompt.insert(prompt.end(), rest.begin(), rest.end());
  return make_request(id, prompt, max_tokens);
}

TEST(EngineCacheTest, SaltsDoNotShare) {
  std::vector<Request> requests;
  RequestId id = 1;
  for (const char* salt : {"A", "B", "", "A", "B", ""}) {
    Request& request = requests.emplace_back(make_request(id++, make_prompt(5, 10), 3));
    request.cache_salt = salt;
  }
  Request& apart = requests.emplace_back(make_request(id++, make_prompt(5, 10), 3));
  apart.use_prefix_cache = false;
  EngineOptions options = small_options();
  options.num_kv_blocks = 64;
  auto results = run_in_turn(options, requests);
  for (RequestId i = 1; i <= 7; ++i) {
    EXPECT_EQ(results[i].last.num_cached_tokens, i >= 4 && i <= 6 ? 8 : 0) << "request " << i;
    EXPECT_EQ(results[i].token_ids, results[1].token_ids);
  }
}

// Cached lengths and chunk borders in every position to each other; also with prompt logprobs, which need all rows.
TEST(EngineCacheTest, ChunksBehindTheCacheGiveTheSameTokens) {
  std::vector<Request> requests;
  RequestId id = 1;
  for (const auto& [common, length] : {std::pair{32, 32}, {32, 33}, {8, 16}, {8, 8}, {9, 9}, {32, 40}, {31, 60}}) {
    for (const bool logprobs : {false, true}) {
      Request& request = requests.emplace_back(with_prompt(id++, common, length, 1));
      request.prompt_logprobs = logprobs;
      if (logprobs) request.num_logprobs = 2;
    }
  }
  EngineOptions options = small_options();
  options.num_kv_blocks = 64;
  options.max_tokens_per_step = 200;
  options.prefix_cache = false;
  auto plain = run_in_turn(options, requests);
  for (const int tokens : {1, 3, 8, 200}) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens a step");
    options.prefix_cache = true;
    options.max_tokens_per_step = tokens;
    auto cached = run_in_turn(options, requests);
    for (const Request& request : requests) {
      Result& result = cached[request.id];
      SCOPED_TRACE(testing::Message() << "request " << request.id);
      EXPECT_EQ(result.token_ids, plain[request.id].token_ids);
      EXPECT_EQ(result.prompt_logprobs.size(), plain[request.id].prompt_logprobs.size());
      EXPECT_LT(result.last.num_cached_tokens, result.last.num_prompt_tokens);
      EXPECT_EQ(plain[request.id].last.num_cached_tokens, 0);
      if (request.prompt_logprobs) {
        EXPECT_EQ(result.last.num_cached_tokens, 0);
      }
    }
    EXPECT_EQ(cached[3].last.num_cached_tokens, 32);
    EXPECT_EQ(cached[5].last.num_cached_tokens, 8);
  }
}

// Conversations over a pool that is too small for them: hits, evictions, preemptions, aborts, three groups.
TEST(EngineCacheTest, SameTokensUnderPressure) {
  std::vector<Request> requests;
  Rng rng(21);
  for (RequestId id = 1; id <= 60; ++id) {
    const int common = static_cast<int>(rng.below(25));
    Request& request = requests.emplace_back(with_prompt(id, common, common + 1 + static_cast<int>(rng.below(12)), 10));
    request.sampling.temperature = id % 2 == 0 ? 0.0f : 1.0f;
    request.sampling.seed = id;
  }
  EngineOptions options = small_options();
  options.num_kv_blocks = 64;
  options.prefix_cache = false;
  auto plain = run_in_turn(options, requests);
  for (const bool mixed : {true, false}) {
    for (const int dp : {1, 3}) {
      SCOPED_TRACE(testing::Message() << "mixed " << mixed << " dp " << dp);
      options.prefix_cache = true;
      options.mixed_steps = mixed;
      options.prefill_delay_steps = 3;
      options.num_kv_blocks = 14;
      options.dp_size = dp;
      options.max_tokens_per_step = 20;
      Collector collector;
      auto engine = make_engine(options);
      for (const Request& request : requests) ASSERT_TRUE(engine->submit(request, collector.sink()).ok());
      for (RequestId id = 7; id <= 60; id += 10) engine->abort(id);
      collector.wait(60);
      engine->drain(10'000);
      EXPECT_TRUE(engine->check_at_rest().ok()) << engine->check_at_rest();
      EXPECT_GT(engine->stats().preemptions_total, 0);
      EXPECT_GT(engine->stats().kv_blocks_cached, 0);
      int64_t num_cached = 0;
      for (auto& [id, result] : collector.results()) {
        if (result.last.finish_reason == FinishReason::kAbort) continue;
        EXPECT_EQ(result.token_ids, plain[id].token_ids) << "request " << id;
        num_cached += result.last.num_cached_tokens;
      }
      EXPECT_GT(num_cached, 0);
    }
  }
}

// 6 requests that reach a block border in the same step, in a pool of 16 blocks that cannot hold the next one for all.
TEST(EngineCacheTest, PreemptionCountsWholeBlocks) {
  std::vector<Request> requests;
  for (RequestId id = 1; id <= 6; ++id) requests.push_back(make_request(id, make_prompt(id, 4), 12));
  EngineOptions options = small_options();
  auto alone = run_in_turn(options, requests);
  options.hooks.faults = {.delay_at_step = 0, .delay_ms = 20};  // so that all are there at step 1
  Collector collector;
  auto engine = make_engine(options);
  for (const Request& request : requests) ASSERT_TRUE(engine->submit(request, collector.sink()).ok());
  collector.wait(6);
  EXPECT_GT(engine->stats().preemptions_total, 0);
  for (auto& [id, result] : collector.results()) {
    EXPECT_EQ(result.token_ids, alone[id].token_ids);
    EXPECT_EQ(result.last.num_cached_tokens, 0);
  }
}

TEST(EngineCacheTest, ARequestThatNeverStartedSaysSo) {
  EngineOptions options = small_options();
  options.max_running_requests = 1;
  options.queue_timeout_ms = 30;
  options.hooks.faults.delay_ms = 5;
  auto engine = make_engine(options);
  Collector collector;
  ASSERT_TRUE(engine->submit(make_request(1, {1}, 60), collector.sink()).ok());
  ASSERT_TRUE(engine->submit(make_request(2, {1}, 60), collector.sink()).ok());
  collector.wait(2);
  auto results = collector.results();
  EXPECT_EQ(results[1].last.finish_reason, FinishReason::kLength);
  EXPECT_EQ(results[2].last.finish_reason, FinishReason::kError);
  EXPECT_EQ(results[2].last.error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(results[2].last.error.ToString().find("queued"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
