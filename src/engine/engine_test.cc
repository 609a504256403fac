// The engine with a fake model: same tokens in any company, aborts, overload, faults, ends.
#include "engine/engine.h"

#include <atomic>
#include <chrono>
#include <limits>
#include <thread>

#include "base/rng.h"
#include "base/thread.h"
#include "engine/engine_test_util.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  return std::make_unique<Engine>(options, std::make_unique<FakeExecutor>(options), nullptr, real_clock());
}

Request sampled_request(RequestId id, int prompt, int max_tokens) {
  Request request = make_request(id, make_prompt(id, prompt), max_tokens);
  request.sampling.temperature = id % 2 == 0 ? 0.0f : 1.0f;
  request.sampling.seed = id * 77;
  request.sampling.repetition_penalty = 1.1f;
  request.num_logprobs = 2;
  request.prompt_logprobs = true;
  return request;
}

using Requests = std::vector<Request>;

std::map<RequestId, Result> run_all(const EngineOptions& options, const Requests& requests, EngineStats* stats) {
  Collector collector;
  auto engine = make_engine(options);
  for (const Request& request : requests) EXPECT_TRUE(engine->submit(request, collector.sink()).ok());
  collector.wait(static_cast<int>(requests.size()));
  engine->drain(10'000);
  EXPECT_TRUE(engine->check_at_rest().ok()) << engine->check_at_rest();
  *stats = engine->stats();
  return collector.results();
}

void expect_same(const Result& a, const Result& b) {
  EXPECT_EQ(a.token_ids, b.token_ids);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    EXPECT_EQ(a.logprobs[i].logprob, b.logprobs[i].logprob);
    EXPECT_EQ(a.logprobs[i].top, b.logprobs[i].top);
  }
  ASSERT_EQ(a.prompt_logprobs.size(), b.prompt_logprobs.size());
  for (size_t i = 0; i < a.prompt_logprobs.size(); ++i) {
    EXPECT_EQ(a.prompt_logprobs[i].id, b.prompt_logprobs[i].id);
    EXPECT_EQ(a.prompt_logprobs[i].logprob, b.prompt_logprobs[i].logprob);
  }
}

TEST(EngineTest, SameTokensAloneInABatchPreemptedAndInChunks) {
  Requests requests;
  for (RequestId id = 1; id <= 12; ++id) requests.push_back(sampled_request(id, 4 * (1 + id % 3), 9));
  std::map<RequestId, Result> alone;
  EngineStats stats;
  for (const Request& request : requests) {
    EngineOptions options = small_options();
    options.num_kv_blocks = 64;
    options.max_tokens_per_step = 200;
    alone[request.id] = run_all(options, {request}, &stats)[request.id];
    EXPECT_EQ(alone[request.id].token_ids.size(), 9u);
    EXPECT_EQ(alone[request.id].prompt_logprobs.size(), request.prompt_ids.size() - 1);
    EXPECT_EQ(stats.preemptions_total, 0);
  }
  struct Case {
    int dp, blocks, running, tokens;
    bool preempts;
  };
  for (const Case c : {Case{1, 64, 12, 64, false}, Case{1, 16, 12, 64, true}, Case{1, 8, 8, 8, true},
                       Case{1, 64, 3, 3, false}, Case{3, 16, 4, 5, false}, Case{2, 9, 8, 32, true}}) {
    SCOPED_TRACE(testing::Message() << "dp " << c.dp << " blocks " << c.blocks << " tokens " << c.tokens);
    EngineOptions options = small_options();
    options.dp_size = c.dp;
    options.num_kv_blocks = c.blocks;
    options.max_running_requests = c.running;
    options.max_tokens_per_step = c.tokens;
    options.hooks.faults = {.delay_at_step = 0, .delay_ms = 20};  // so that all are there at step 1
    auto results = run_all(options, requests, &stats);
    EXPECT_EQ(stats.preemptions_total > 0, c.preempts) << stats.preemptions_total;
    for (const Request& request : requests) {
      SCOPED_TRACE(testing::Message() << "request " << request.id);
      expect_same(results[request.id], alone[request.id]);
      EXPECT_EQ(results[request.id].num_finished, 1);
      EXPECT_EQ(results[request.id].last.finish_reason, FinishReason::kLength);
      EXPECT_EQ(results[request.id].last.num_output_tokens, 9);
    }
  }
}

TEST(EngineTest, RandomAbortsLeaveNothingBehind) {
  constexpr uint64_t kSeed = 11;
  Rng rng(kSeed);
  EngineOptions options = small_options();
  auto engine = make_engine(options);
  RequestId next_id = 1;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << kSeed << " round " << round);
    Collector collector;
    const int count = 1 + static_cast<int>(rng.below(6));
    const RequestId first = next_id;
    for (int i = 0; i < count; ++i) {
      const RequestId id = next_id++;
      const int prompt = 1 + static_cast<int>(rng.below(20));
      const RequestId family = rng.below(4);  // prompts of a family begin alike and share blocks
      ASSERT_TRUE(engine->submit(make_request(id, make_prompt(family, prompt), 30), collector.sink()).ok());
    }
    const RequestId victim = first + rng.below(count);
    if (rng.below(2) == 0) collector.wait_for_token(victim);
    for (RequestId id = first; id < next_id; ++id) {
      engine->abort(id);
      engine->abort(id);
    }
    collector.wait(count);
    for (const auto& [id, result] : collector.results()) {
      EXPECT_EQ(result.num_finished, 1);
      EXPECT_TRUE(result.last.finish_reason == FinishReason::kAbort ||
                  result.last.finish_reason == FinishReason::kLength);
    }
    while (engine->stats().requests_finished_total < static_cast<int64_t>(next_id - 1)) std::this_thread::yield();
    engine->abort(victim);
    const EngineStats stats = engine->stats();
    ASSERT_EQ(stats.kv_blocks_free + stats.kv_blocks_cached, stats.kv_blocks_total);
  }
  engine->drain(1000);
  EXPECT_TRUE(engine->check_at_rest().ok()) << engine->check_at_rest();
}

TEST(EngineTest, FullQueueRefusesAndTheRestIsServed) {
  EngineOptions options = small_options();
  options.max_running_requests = 2;
  options.max_queued_requests = 3;
  options.hooks.faults.delay_ms = 5;
  auto engine = make_engine(options);
  Collector collector;
  int num_accepted = 0;
  absl::Status refused;
  for (RequestId id = 1; id <= 20; ++id) {
    const absl::Status status = engine->submit(make_request(id, {1, 2}, 10), collector.sink());
    if (status.ok()) {
      ++num_accepted;
    } else {
      refused = status;
    }
  }
  EXPECT_GE(num_accepted, 3);
  EXPECT_LE(num_accepted, 6);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.ToString().find("max_queued_requests"), std::string::npos) << refused;
  collector.wait(num_accepted);
  EXPECT_EQ(collector.results().size(), static_cast<size_t>(num_accepted));
}

// Many long prompts are more memory than many requests: their tokens are bounded too, and come back.
TEST(EngineTest, PromptsOfAFullQueueAreBoundedTogether) {
  EngineOptions options = small_options();
  options.max_prompt_tokens = 10;
  options.hooks.faults.delay_ms = 20;
  Collector collector;
  auto engine = make_engine(options);
  ASSERT_TRUE(engine->submit(make_request(1, {1, 2, 3, 4, 5, 6}, 4), collector.sink()).ok());
  ASSERT_TRUE(engine->submit(make_request(2, {1, 2, 3, 4}, 4), collector.sink()).ok());
  const absl::Status refused = engine->submit(make_request(3, {1}, 4), collector.sink());
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(refused.ToString().find("2 open requests have 10 tokens, this one 1, and 10 fit together"),
            std::string::npos)
      << refused;
  collector.wait(2);
  while (engine->stats().requests_finished_total < 2) std::this_thread::yield();
  std::vector<int32_t> prompt(12, 1);  // alone, more than the bound
  absl::Status alone = absl::ResourceExhaustedError("not yet");
  for (RequestId id = 4; !alone.ok() && id < 1000; ++id) {  // the last output comes before the request is forgotten
    alone = engine->submit(make_request(id, prompt, 2), collector.sink());
    std::this_thread::yield();
  }
  EXPECT_TRUE(alone.ok()) << alone;
  collector.wait(3);
}

// A client may send its next request as soon as it has the last output, though the old one is not forgotten yet.
TEST(EngineTest, AnEndedRequestDoesNotWaitInTheQueue) {
  EngineOptions options = small_options();
  options.max_running_requests = 1;
  options.max_queued_requests = 1;
  auto engine = make_engine(options);
  Collector collector;
  const OutputSink collect = collector.sink();
  constexpr RequestId kCount = 50;
  std::function<void(RequestId)> submit = [&](RequestId id) {
    const absl::Status status = engine->submit(make_request(id, {1, 2}, 2), [&, id](RequestOutput output) {
      const bool ended = output.finish_reason != FinishReason::kNone;
      if (ended && id < kCount) submit(id + 1);
      collect(std::move(output));
    });
    EXPECT_TRUE(status.ok()) << "request " << id << ": " << status;
  };
  submit(1);
  collector.wait(kCount);
}

TEST(EngineTest, SlowSinkLosesNothing) {
  auto engine = make_engine(small_options());
  Collector collector;
  const OutputSink inner = collector.sink();
  for (RequestId id = 1; id <= 3; ++id) {
    const OutputSink slow = [&inner](RequestOutput output) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      inner(std::move(output));
    };
    ASSERT_TRUE(engine->submit(make_request(id, {1, 2}, 10), slow).ok());
  }
  collector.wait(3);
  for (const auto& [id, result] : collector.results()) EXPECT_EQ(result.token_ids.size(), 10u);
}

TEST(EngineTest, SinkMaySubmitAndAbort) {
  auto engine = make_engine(small_options());
  Collector collector;
  const OutputSink inner = collector.sink();
  std::atomic<bool> submitted{false};
  const OutputSink sink = [&](RequestOutput output) {
    if (!submitted.exchange(true)) {
      EXPECT_TRUE(engine->submit(make_request(2, {3}, 4), inner).ok());
      engine->abort(1);
    }
    inner(std::move(output));
  };
  ASSERT_TRUE(engine->submit(make_request(1, {1, 2}, 50), sink).ok());
  collector.wait(2);
  EXPECT_EQ(collector.results()[1].last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(collector.results()[2].last.finish_reason, FinishReason::kLength);
}

TEST(EngineTest, DrainServesWhatIsOpenThenAbortsWhatIsLeft) {
  EngineOptions options = small_options();
  {
    auto engine = make_engine(options);
    Collector collector;
    ASSERT_TRUE(engine->submit(make_request(1, {1}, 20), collector.sink()).ok());
    engine->drain(30'000);
    EXPECT_EQ(collector.results()[1].last.finish_reason, FinishReason::kLength);
    const absl::Status late = engine->submit(make_request(2, {1}, 20), collector.sink());
    EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  }
  options.hooks.faults.delay_ms = 50;
  auto engine = make_engine(options);
  Collector collector;
  ASSERT_TRUE(engine->submit(make_request(1, {1}, 60), collector.sink()).ok());
  engine->drain(10);
  EXPECT_EQ(collector.results()[1].last.finish_reason, FinishReason::kAbort);
  EXPECT_TRUE(engine->check_at_rest().ok()) << engine->check_at_rest();
}

TEST(EngineTest, DestructionAbortsOpenRequests) {
  Collector collector;
  auto engine = make_engine(small_options());
  ASSERT_TRUE(engine->submit(make_request(1, {1}, 60), collector.sink()).ok());
  engine.reset();
  EXPECT_EQ(collector.results()[1].num_finished, 1);
}

TEST(EngineTest, ExecutorErrorEndsEverythingWithItsMessage) {
  for (const int fail_at_step : {0, 3}) {
    EngineOptions options = small_options();
    options.hooks.faults.fail_at_step = fail_at_step;
    options.hooks.faults.delay_ms = 10;
    auto engine = make_engine(options);
    Collector collector;
    for (RequestId id = 1; id <= 3; ++id) {
      ASSERT_TRUE(engine->submit(make_request(id, {1, 2}, 20), collector.sink()).ok());
    }
    collector.wait(3);
    for (const auto& [id, result] : collector.results()) {
      EXPECT_EQ(result.num_finished, 1);
      EXPECT_EQ(result.last.finish_reason, FinishReason::kError);
      EXPECT_NE(result.last.error.ToString().find("injected fault"), std::string::npos) << result.last.error;
    }
    EXPECT_FALSE(engine->healthy());
    const absl::Status late = engine->submit(make_request(9, {1}, 2), collector.sink());
    EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(late.ToString().find("injected fault"), std::string::npos);
    engine->drain(1000);
    EXPECT_TRUE(engine->check_at_rest().ok()) << engine->check_at_rest();
  }
}

// A request that the scheduler ends in the very step that fails keeps its own end, and gets no second one.
TEST(EngineTest, AStepThatFailsEndsNobodyTwice) {
  EngineOptions options = small_options();
  options.hooks.faults.fail_at_step = 1;
  auto fake = std::make_unique<FakeExecutor>(options);
  FakeExecutor* executor = fake.get();
  Collector collector;  // outlives the engine's thread: both hold the error
  Engine engine(options, std::move(fake), nullptr, real_clock());
  executor->on_step = [&](const StepPlan&) {
    Request late = make_request(2, {1}, 20);
    late.deadline_ns = 1;
    EXPECT_TRUE(engine.submit(late, collector.sink()).ok());
  };
  ASSERT_TRUE(engine.submit(make_request(1, {1}, 20), collector.sink()).ok());
  collector.wait(2);
  engine.drain(10'000);
  auto results = collector.results();
  EXPECT_EQ(results[1].last.error.code(), absl::StatusCode::kInternal) << results[1].last.error;
  EXPECT_EQ(results[2].last.error.code(), absl::StatusCode::kDeadlineExceeded) << results[2].last.error;
  for (const RequestId id : {1, 2}) EXPECT_EQ(results[id].num_finished, 1) << id;
  EXPECT_EQ(engine.stats().requests_finished_total, 2);
  EXPECT_TRUE(engine.check_at_rest().ok()) << engine.check_at_rest();
}

TEST(EngineTest, RefusalsNameBothNumbers) {
  auto engine = make_engine(small_options());
  const auto message = [&](const Request& request) {
    const absl::Status status = engine->submit(request, [](RequestOutput) { FAIL() << "sink of a refused request"; });
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message().data(), status.message().size());
  };
  EXPECT_NE(message(make_request(1, make_prompt(1, 250), 7))
                .find("256 tokens (context_length); the prompt has 250 and "
                      "max_tokens asks for 7"),
            std::string::npos);
  EXPECT_NE(message(make_request(1, make_prompt(1, 60), 6)).find("holds 64 tokens"), std::string::npos);
  EXPECT_NE(message(make_request(1, {}, 6)).find("empty"), std::string::npos);
  EXPECT_NE(message(make_request(1, {-1}, 6)).find("token id -1 is outside the vocabulary [0, 301)"),
            std::string::npos);
  EXPECT_NE(message(make_request(1, {301}, 6)).find("301"), std::string::npos);
  EXPECT_NE(message(make_request(1, {1}, -1)).find("max_tokens"), std::string::npos);
  Request request = make_request(1, {1}, 4);
  request.stop_token_ids = {151645};
  EXPECT_NE(message(request).find("stop_token_ids"), std::string::npos);
  request = make_request(1, {1}, 4);
  request.sampling.logit_bias = {{99999999, 5.0f}};
  EXPECT_NE(message(request).find("logit_bias"), std::string::npos);
  request = make_request(1, {1}, 4);
  request.sampling.temperature = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(message(request).find("temperature"), std::string::npos);
  request = make_request(1, {1}, 4);
  request.stop = {"x"};
  EXPECT_NE(message(request).find("tokenizer"), std::string::npos);
}

TEST(EngineTest, PromptOnly) {
  auto engine = make_engine(small_options());
  Collector collector;
  ASSERT_TRUE(engine->submit(make_request(1, make_prompt(1, 40), 0), collector.sink()).ok());
  Request with_logprobs = make_request(2, make_prompt(2, 40), 0);
  with_logprobs.prompt_logprobs = true;
  with_logprobs.num_logprobs = 3;
  ASSERT_TRUE(engine->submit(with_logprobs, collector.sink()).ok());
  ASSERT_TRUE(engine->submit(make_request(3, {1}, 2), collector.sink()).ok());
  collector.wait(3);
  auto results = collector.results();
  for (const RequestId id : {1, 2}) {
    EXPECT_EQ(results[id].last.finish_reason, FinishReason::kLength);
    EXPECT_EQ(results[id].num_outputs, 1);
    EXPECT_EQ(results[id].last.num_output_tokens, 0);
    EXPECT_TRUE(results[id].token_ids.empty());
  }
  ASSERT_EQ(results[2].prompt_logprobs.size(), 39u);
  for (size_t i = 0; i < 39; ++i) {
    EXPECT_EQ(results[2].prompt_logprobs[i].id, with_logprobs.prompt_ids[i + 1]);
    EXPECT_EQ(results[2].prompt_logprobs[i].top.size(), 3u);
  }
  EXPECT_EQ(results[3].token_ids.size(), 2u);
}

TEST(EngineTest, DeadlineEndsARequestWithAnError) {
  EngineOptions options = small_options();
  options.hooks.faults.delay_ms = 5;
  auto engine = make_engine(options);
  Collector collector;
  Request request = make_request(1, {1}, 60);
  request.deadline_ns = real_clock().now_ns() + 30'000'000;
  ASSERT_TRUE(engine->submit(request, collector.sink()).ok());
  ASSERT_TRUE(engine->submit(make_request(2, {1}, 20), collector.sink()).ok());
  collector.wait(2);
  EXPECT_EQ(collector.results()[1].last.finish_reason, FinishReason::kError);
  EXPECT_EQ(collector.results()[1].last.error.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(collector.results()[2].last.finish_reason, FinishReason::kLength);
}

TEST(EngineTest, ManyCallers) {
  auto engine = make_engine(small_options());
  Collector collector;
  {
    std::vector<Thread> callers;
    for (int caller = 0; caller < 4; ++caller) {
      callers.emplace_back("caller", [&, caller] {
        for (int i = 0; i < 25; ++i) {
          const RequestId id = caller * 100 + i;
          EXPECT_TRUE(engine->submit(make_request(id, make_prompt(id, 5), 6), collector.sink()).ok());
          if (i % 3 == 0) engine->abort(id);
          EXPECT_GE(engine->stats().kv_blocks_free, 0);
        }
      });
    }
  }
  collector.wait(100);
  engine->drain(1000);
  EXPECT_TRUE(engine->check_at_rest().ok()) << engine->check_at_rest();
}

// Figures of one moment, and none goes back, whenever they are read.
TEST(EngineTest, StatsAreWholeWhileStepsRun) {
  constexpr RequestId kCount = 200;
  Collector collector;  // outlives the engine: figures come before the last sinks are called
  auto engine = make_engine(small_options());
  std::atomic<int> num_wrong{0};
  std::atomic<int> num_seen{0};
  {
    std::vector<Thread> readers;
    for (int i = 0; i < 3; ++i) {
      readers.emplace_back("reader", [&] {
        EngineStats last;
        while (last.requests_finished_total < static_cast<int64_t>(kCount)) {
          const EngineStats now = engine->stats();
          const bool whole = now.kv_blocks_free + now.kv_blocks_used + now.kv_blocks_cached == now.kv_blocks_total &&
                             now.prompt_tokens_total == 5 * now.requests_finished_total;
          const bool goes_on =
              now.steps_total >= last.steps_total && now.output_tokens_total >= last.output_tokens_total;
          num_wrong += whole && goes_on ? 0 : 1;
          num_seen += now.steps_total != last.steps_total;
          last = now;
        }
      });
    }
    for (RequestId id = 1; id <= kCount; ++id) {
      ASSERT_TRUE(engine->submit(make_request(id, make_prompt(id, 5), 6), collector.sink()).ok());
    }
  }
  EXPECT_EQ(num_wrong.load(), 0);
  EXPECT_GE(num_seen.load(), 3);
}

// Also of requests that are preempted: the first admission and the first token stay.
TEST(Engine, TimesOfARequestAreInOrderAndStay) {
  EngineOptions options = small_options();
  std::mutex mutex;
  std::map<RequestId, std::vector<RequestOutput>> outputs;
  Collector collector;
  Engine engine(options, std::make_unique<FakeExecutor>(options), nullptr, real_clock());
  const int64_t before_ns = real_clock().now_ns();
  for (RequestId id = 1; id <= 8; ++id) {
    Request request = make_request(id, make_prompt(id, 20), id == 8 ? 0 : 20);
    request.ignore_eos = true;
    request.arrival_ns = id == 1 ? before_ns : 0;
    ASSERT_TRUE(engine
                    .submit(std::move(request),
                            [&, next = collector.sink()](RequestOutput output) {
                              {
                                const std::lock_guard lock(mutex);
                                outputs[output.id].push_back(output);
                              }
                              next(std::move(output));
                            })
                    .ok());
  }
  collector.wait(8);
  EXPECT_GT(engine.stats().preemptions_total, 0);
  const std::lock_guard lock(mutex);
  for (const auto& [id, list] : outputs) {
    const RequestTimes& first = list.front().times;
    EXPECT_EQ(id == 1, first.arrival_ns == before_ns);
    EXPECT_LE(before_ns, first.arrival_ns);
    EXPECT_LE(first.arrival_ns, first.queued_ns);
    EXPECT_LE(first.queued_ns, first.admitted_ns);
    EXPECT_LE(first.admitted_ns, first.prompt_done_ns);
    EXPECT_EQ(first.prompt_done_ns, first.output_ns);
    int64_t last_ns = 0;
    for (const RequestOutput& output : list) {
      EXPECT_EQ(output.times.admitted_ns, first.admitted_ns);
      EXPECT_EQ(output.times.prompt_done_ns, first.prompt_done_ns);
      EXPECT_LT(last_ns, output.times.output_ns);
      last_ns = output.times.output_ns;
    }
  }
}

}  // namespace
}  // namespace moesaic
