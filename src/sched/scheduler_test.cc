#include "sched/scheduler.h"

#include <algorithm>
#include <numeric>

#include "gtest/gtest.h"

namespace moesaic {
namespace {

Request make_request(RequestId id, int prompt, int max_tokens) {
  Request request;
  request.id = id;
  request.prompt_ids.assign(prompt, 1);
  request.max_tokens = max_tokens;
  return request;
}

SchedulerOptions small_options() {
  return {.num_kv_blocks = 16, .kv_block_tokens = 4, .max_running_requests = 4, .max_tokens_per_step = 8};
}

// Storage for results of one token.
std::span<const int32_t> one_token(int32_t id) {
  static const std::vector<int32_t> ids = [] {
    std::vector<int32_t> all(4096);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }();
  return std::span(ids).subspan(id, 1);
}

// Runs one step; every request samples until its max_tokens.
void step(Scheduler& scheduler) {
  const StepPlan& plan = scheduler.plan(0);
  if (plan.empty()) return;
  std::vector<SampledTokens> sampled;
  for (const GroupPlan& group : plan.groups) {
    for (const PlannedChunk& chunk : group.chunks) {
      if (!chunk.samples) continue;
      const Sequence* sequence = scheduler.find(chunk.request_id);
      const auto count = static_cast<int32_t>(sequence->output_ids.size()) + 1;
      sampled.push_back({chunk.request_id, one_token(100 + count), count == sequence->request.max_tokens});
    }
  }
  scheduler.apply(sampled);
}

void expect_empty(const Scheduler& scheduler) {
  EXPECT_FALSE(scheduler.has_work());
  EXPECT_EQ(scheduler.num_running(), 0);
  EXPECT_EQ(scheduler.num_waiting(), 0);
  EXPECT_TRUE(scheduler.pool(0).check_at_rest().ok()) << scheduler.pool(0).check_at_rest();
}

TEST(SchedulerTest, AbortTwiceInEveryState) {
  // Steps until the state is reached: queued, between prompt chunks, decoding, finished.
  for (const int num_steps : {0, 1, 3, 5, 10}) {
    SCOPED_TRACE(testing::Message() << num_steps << " steps");
    Scheduler scheduler(small_options());
    scheduler.add(make_request(7, 20, 4));
    for (int i = 0; i < num_steps; ++i) step(scheduler);
    const bool was_open = scheduler.has_work();
    EXPECT_EQ(was_open, num_steps < 10);
    EXPECT_EQ(scheduler.finish(7), was_open);
    EXPECT_FALSE(scheduler.finish(7));
    EXPECT_TRUE(scheduler.plan(0).empty());
    expect_empty(scheduler);
  }
}

TEST(SchedulerTest, BlocksStayWhileTheStepWritesThem) {
  Scheduler scheduler(small_options());
  scheduler.add(make_request(7, 20, 4));
  ASSERT_FALSE(scheduler.plan(0).empty());
  EXPECT_TRUE(scheduler.finish(7));
  EXPECT_FALSE(scheduler.finish(7));
  EXPECT_EQ(scheduler.find(7), nullptr);
  EXPECT_EQ(scheduler.pool(0).num_used(), 5);
  scheduler.apply({});
  expect_empty(scheduler);
}

TEST(SchedulerTest, CancelledStepComputesNothing) {
  Scheduler scheduler(small_options());
  scheduler.add(make_request(7, 6, 4));
  scheduler.add(make_request(8, 2, 4));
  const std::string before = scheduler.plan(0).to_string();
  scheduler.finish(8);
  scheduler.cancel_step();
  EXPECT_EQ(scheduler.find(7)->num_computed, 0);
  EXPECT_EQ(scheduler.plan(0).to_string(), "step 1 dp0: prefill r7[0,6) of 6\n") << "after " << before;
  scheduler.finish(7);
  scheduler.cancel_step();
  expect_empty(scheduler);
}

TEST(SchedulerTest, AbortedWhilePreempted) {
  SchedulerOptions options = small_options();
  options.num_kv_blocks = 4;
  options.max_tokens_per_step = 16;
  Scheduler scheduler(options);
  scheduler.add(make_request(1, 4, 8));
  scheduler.add(make_request(2, 4, 8));
  for (int i = 0; i < 20 && scheduler.num_preemptions() == 0; ++i) step(scheduler);
  ASSERT_GT(scheduler.num_preemptions(), 0);
  ASSERT_FALSE(scheduler.find(2)->running);
  EXPECT_FALSE(scheduler.find(2)->output_ids.empty());
  EXPECT_TRUE(scheduler.finish(2));
  EXPECT_FALSE(scheduler.finish(2));
  while (scheduler.has_work()) step(scheduler);
  expect_empty(scheduler);
}

TEST(SchedulerTest, PreemptedOutputIsReplayedAndGoesOn) {
  SchedulerOptions options = small_options();
  options.num_kv_blocks = 4;
  Scheduler scheduler(options);
  scheduler.add(make_request(1, 4, 8));
  scheduler.add(make_request(2, 4, 8));
  std::vector<int32_t> outputs;
  bool replayed = false;
  for (int i = 0; i < 100 && scheduler.has_work(); ++i) {
    const StepPlan& plan = scheduler.plan(0);
    std::vector<SampledTokens> sampled;
    for (const PlannedChunk& chunk : plan.groups[0].chunks) {
      if (chunk.request_id == 2 && !chunk.is_prefill && chunk.num_tokens() > 1) {
        replayed = true;
        EXPECT_EQ(chunk.kv_begin, 4);
        for (int j = 0; j < chunk.num_tokens(); ++j) EXPECT_EQ(chunk.token_ids[j], outputs[j]);
      }
      if (!chunk.samples) continue;
      const auto count = static_cast<int32_t>(scheduler.find(chunk.request_id)->output_ids.size()) + 1;
      if (chunk.request_id == 2) outputs.push_back(100 + count);
      sampled.push_back({chunk.request_id, one_token(100 + count), count == 8});
    }
    scheduler.apply(sampled);
  }
  EXPECT_TRUE(replayed);
  EXPECT_EQ(outputs, (std::vector<int32_t>{101, 102, 103, 104, 105, 106, 107, 108}));
  expect_empty(scheduler);
}

// A stream of requests of higher priority, more than the engine can serve. Without aging r1 would wait for ever; with
// it nobody who came more than 20 steps after r1 is served before r1.
TEST(SchedulerTest, NobodyStarvesBehindHigherPriorities) {
  SchedulerOptions options = small_options();
  options.max_running_requests = 1;
  options.priority_aging_steps = 10;
  Scheduler scheduler(options);
  scheduler.add(make_request(1, 4, 2));
  int64_t started = -1;
  for (int64_t i = 0; i < 200 && started < 0; ++i) {
    Request rival = make_request(100 + i, 4, 2);
    rival.priority = 2;
    scheduler.add(std::move(rival));
    const int64_t now = scheduler.num_steps();
    const StepPlan& plan = scheduler.plan(0);
    std::vector<SampledTokens> sampled;
    for (const PlannedChunk& chunk : plan.groups[0].chunks) {
      if (chunk.request_id == 1) started = now;
      const auto count = static_cast<int32_t>(scheduler.find(chunk.request_id)->output_ids.size()) + 1;
      sampled.push_back({chunk.request_id, one_token(count), count == 2});
    }
    scheduler.apply(sampled);
  }
  // 20 rivals with 2 steps each came in time; the 21st, of step 20, ties with r1 and came later.
  EXPECT_EQ(started, 40);
}

// Small requests keep both groups full. The large one needs the whole pool of a group; the group that is reserved for
// it empties within the life of a small one.
TEST(SchedulerTest, ALargeRequestIsNotPassedForEver) {
  SchedulerOptions options = small_options();
  options.dp_size = 2;
  options.max_tokens_per_step = 64;
  Scheduler scheduler(options);
  constexpr int kLongestLife = 11;  // steps of a small request; they end at different times
  int64_t started = -1;
  RequestId next_id = 100;
  for (int i = 0; i < 200 && started < 0; ++i) {
    for (; scheduler.num_waiting() < 8; ++next_id) {
      scheduler.add(make_request(next_id, 4, kLongestLife - static_cast<int>(next_id % 7)));
    }
    if (i == 20) scheduler.add(make_request(1, 64, 1));
    const int64_t now = scheduler.num_steps();
    step(scheduler);
    const bool was_added = i >= 20;
    if (was_added && scheduler.find(1) == nullptr) started = now;
  }
  EXPECT_GE(started, 20);
  // 8 are before it in the queue; then one group ends what it has.
  EXPECT_LE(started, 20 + 3 * kLongestLife);
}

TEST(SchedulerTest, DraftsOfUnknownAndQueuedRequestsAreIgnored) {
  Scheduler scheduler(small_options());
  const std::vector<int32_t> drafts = {1, 2};
  scheduler.set_draft(9, drafts);
  scheduler.add(make_request(1, 4, 4));
  scheduler.set_draft(1, drafts);
  step(scheduler);
  EXPECT_EQ(scheduler.plan(0).to_string(), "step 1 dp0: decode r1@4\n");
}

// Drafts of 3 with 0, 1, 2, 3 accepted in turn, 200 short requests: what was reserved for them always returns.
TEST(SchedulerTest, RejectedDraftsLeaveNothingBehind) {
  SchedulerOptions options = small_options();
  options.max_tokens_per_step = 16;
  Scheduler scheduler(options);
  const std::vector<int32_t> drafts = {0, 0, 0};
  const std::vector<int32_t> accepted(4, 5);
  for (RequestId id = 1; id <= 200; ++id) {
    SCOPED_TRACE(testing::Message() << "request " << id);
    scheduler.add(make_request(id, 1 + static_cast<int>(id % 9), 12));
    for (size_t turn = id; scheduler.has_work(); ++turn) {
      const StepPlan& plan = scheduler.plan(0);
      const PlannedChunk& chunk = plan.groups[0].chunks.at(0);
      if (chunk.kv_end() < chunk.num_total) {
        scheduler.apply({});
        continue;
      }
      const size_t count = 1 + std::min<size_t>(turn % 4, chunk.num_draft);
      const bool finished = scheduler.find(id)->output_ids.size() + count == 12;
      const SampledTokens result{id, std::span(accepted).first(count), finished};
      scheduler.apply({&result, 1});
      if (!finished) {
        const Sequence& sequence = *scheduler.find(id);
        EXPECT_LE(std::ssize(sequence.block_table), scheduler.pool(0).blocks_for(sequence.num_tokens()));
      }
      scheduler.set_draft(id, drafts);
    }
    ASSERT_TRUE(scheduler.pool(0).check_at_rest().ok()) << scheduler.pool(0).check_at_rest();
  }
}

// Random prompts that force preemption are no hits; the same prompts again are.
TEST(SchedulerTest, RecomputationIsNoHit) {
  SchedulerOptions options = small_options();
  options.max_tokens_per_step = 32;
  Scheduler scheduler(options);
  const auto serve = [&](RequestId first, RequestId last) {
    int64_t num_cached = 0;
    std::vector<RequestId> open;
    for (RequestId id = first; id <= last; ++id) {
      Request request = make_request(id, 12, 12);
      std::iota(request.prompt_ids.begin(), request.prompt_ids.end(), static_cast<int32_t>(id % 100 * 50));
      scheduler.add(std::move(request));
      open.push_back(id);
    }
    while (scheduler.has_work()) {
      step(scheduler);
      for (const RequestId id : open) {
        const Sequence* sequence = scheduler.find(id);
        if (sequence == nullptr) continue;
        EXPECT_LT(sequence->num_cached_tokens, 12);
        num_cached = std::max<int64_t>(num_cached, sequence->num_cached_tokens);
      }
    }
    return num_cached;
  };
  EXPECT_EQ(serve(1, 6), 0);
  EXPECT_GT(scheduler.num_preemptions(), 0);
  EXPECT_GT(serve(105, 106), 0);
}

TEST(SchedulerDeathTest, ForgottenResultIsABug) {
  Scheduler scheduler(small_options());
  scheduler.add(make_request(7, 4, 4));
  ASSERT_FALSE(scheduler.plan(0).empty());
  EXPECT_DEATH(scheduler.apply({}), "awaited_");
}

}  // namespace
}  // namespace moesaic
