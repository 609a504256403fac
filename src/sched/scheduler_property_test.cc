// Random schedules against a plain book-keeping of what every request must see.
#include <algorithm>
#include <map>
#include <set>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "sched/scheduler.h"

namespace moesaic {
namespace {

constexpr int kNumSchedules = 10'000;

struct Open {
  int prompt = 0;
  int max_tokens = 0;
  bool logits = false;
  std::vector<int32_t> tokens;  // prompt and output
  std::vector<bool> logits_of;  // prompt positions whose logits were asked for
  int num_computed = 0;
};

// The token at a position depends on the request alone, so replayed tokens can be checked.
int32_t token_at(RequestId id, size_t position) {
  return static_cast<int32_t>(id * 1000 + position);
}

class RandomSchedule {
 public:
  explicit RandomSchedule(uint64_t seed) : rng_(seed), scheduler_(make_options()) {}

  void run() {
    const int num_requests = 1 + below(12);
    for (int step = 0; step < 4000; ++step) {
      while (num_added_ < num_requests && below(3) != 0) add(step);
      if (below(40) == 0) abort_some();
      if (num_added_ == num_requests && open_.empty()) break;
      one_step(step);
      if (testing::Test::HasFailure()) return;
    }
    EXPECT_TRUE(open_.empty()) << open_.size() << " requests never ended";
    EXPECT_FALSE(scheduler_.has_work());
    EXPECT_EQ(num_ended_, num_added_);
    for (int group = 0; group < options_.dp_size; ++group) {
      EXPECT_TRUE(scheduler_.pool(group).check_at_rest().ok()) << scheduler_.pool(group).check_at_rest();
    }
  }

  int64_t num_preemptions() const { return scheduler_.num_preemptions(); }

 private:
  int below(int bound) { return static_cast<int>(rng_.below(bound)); }

  const SchedulerOptions& make_options() {
    options_.dp_size = 1 + below(3);
    options_.num_kv_blocks = below(8) == 0 ? 1 + below(4) : 6 + below(16);
    options_.kv_block_tokens = 1 + below(8);
    options_.max_running_requests = 1 + below(8);
    options_.max_tokens_per_step = 1 + below(40);
    options_.max_logit_rows_per_step = below(2) == 0 ? 0 : 1 + below(20);
    return options_;
  }

  void add(int step) {
    const RequestId id = ++num_added_;
    Request request;
    request.id = id;
    request.max_tokens = below(40);
    request.priority = below(3);
    request.prompt_logprobs = below(4) == 0;
    if (below(6) == 0) request.deadline_ns = step + below(60);
    const int prompt = 1 + below(below(3) == 0 ? 40 : 12);
    for (int i = 0; i < prompt; ++i) request.prompt_ids.push_back(token_at(id, i));
    open_[id] = Open{.prompt = prompt,
                     .max_tokens = request.max_tokens,
                     .logits = request.prompt_logprobs,
                     .tokens = request.prompt_ids,
                     .logits_of = std::vector<bool>(prompt, false)};
    scheduler_.add(std::move(request));
  }

  void abort_some() {
    const RequestId id = 1 + below(num_added_ + 1);
    const bool was_open = open_.erase(id) > 0;
    EXPECT_EQ(scheduler_.finish(id), was_open);
    EXPECT_FALSE(scheduler_.finish(id));
    num_ended_ += was_open ? 1 : 0;
  }

  void one_step(int now) {
    const StepPlan& plan = scheduler_.plan(now);
    ASSERT_EQ(plan.groups.size(), static_cast<size_t>(options_.dp_size));
    for (const FailedRequest& failed : scheduler_.failures()) {
      EXPECT_FALSE(failed.error.ok());
      EXPECT_EQ(open_.erase(failed.request_id), 1u) << "r" << failed.request_id << " ended twice";
      ++num_ended_;
    }
    for (int group = 0; group < options_.dp_size; ++group) {
      for (const RequestId id : plan.groups[group].preempted) open_.at(id).num_computed = 0;
      check_group(group, plan.groups[group]);
    }
    if (plan.empty()) return;
    if (below(40) == 0) abort_some();
    if (below(20) == 0) {
      scheduler_.cancel_step();
      return;
    }
    scheduler_.apply(sample(plan));
  }

  void check_group(int group, const GroupPlan& plan) {
    int64_t tokens = 0;
    int64_t prompt_logit_rows = 0;
    int64_t logit_rows = 0;
    std::set<int32_t> blocks;
    std::set<RequestId> ids;
    for (const PlannedChunk& chunk : plan.chunks) {
      ASSERT_TRUE(open_.contains(chunk.request_id));
      EXPECT_TRUE(ids.insert(chunk.request_id).second) << "two chunks";
      check_chunk(chunk, open_.at(chunk.request_id));
      tokens += chunk.num_tokens();
      logit_rows += chunk.num_logit_rows();
      if (chunk.all_logits) prompt_logit_rows += chunk.num_tokens();
      EXPECT_GE(chunk.block_table.size() * options_.kv_block_tokens, static_cast<size_t>(chunk.kv_end()));
      for (const int32_t block : chunk.block_table) EXPECT_TRUE(blocks.insert(block).second) << "block shared";
    }
    EXPECT_LE(tokens, options_.max_tokens_per_step);
    EXPECT_EQ(tokens, plan.num_prefill_tokens + plan.num_decode_tokens);
    EXPECT_LE(static_cast<int>(plan.chunks.size()), options_.max_running_requests);
    if (options_.max_logit_rows_per_step > options_.max_running_requests) {
      EXPECT_LE(logit_rows, options_.max_logit_rows_per_step);
    }
    EXPECT_LE(static_cast<int>(blocks.size()), scheduler_.pool(group).num_used());
    EXPECT_TRUE(scheduler_.pool(group).check_consistent().ok());
  }

  void check_chunk(const PlannedChunk& chunk, const Open& open) {
    ASSERT_GT(chunk.num_tokens(), 0);
    EXPECT_EQ(chunk.kv_begin, open.num_computed);
    ASSERT_LE(static_cast<size_t>(chunk.kv_end()), open.tokens.size());
    for (int i = 0; i < chunk.num_tokens(); ++i) EXPECT_EQ(chunk.token_ids[i], open.tokens[chunk.kv_begin + i]);
    EXPECT_EQ(chunk.is_prefill, chunk.kv_begin < open.prompt);
    EXPECT_TRUE(!chunk.is_prefill || chunk.kv_end() <= open.prompt);
    const bool last = static_cast<size_t>(chunk.kv_end()) == open.tokens.size();
    EXPECT_EQ(chunk.samples, last && open.max_tokens > 0);
  }

  std::vector<SampledToken> sample(const StepPlan& plan) {
    std::vector<SampledToken> sampled;
    for (const GroupPlan& group : plan.groups) {
      for (const PlannedChunk& chunk : group.chunks) {
        const auto found = open_.find(chunk.request_id);
        if (found == open_.end()) continue;
        Open& open = found->second;
        open.num_computed = chunk.kv_end();
        note_logits(chunk, open);
        if (static_cast<size_t>(chunk.kv_end()) < open.tokens.size()) continue;
        SampledToken token{.request_id = chunk.request_id};
        if (chunk.samples) {
          token.token_id = token_at(chunk.request_id, open.tokens.size());
          open.tokens.push_back(token.token_id);
        }
        token.finished = static_cast<int>(open.tokens.size()) - open.prompt >= open.max_tokens || below(64) == 0;
        sampled.push_back(token);
        if (!token.finished) continue;
        EXPECT_TRUE(!open.logits || std::count(open.logits_of.begin(), open.logits_of.end(), false) == 0);
        open_.erase(found);
        ++num_ended_;
      }
    }
    return sampled;
  }

  void note_logits(const PlannedChunk& chunk, Open& open) {
    if (!chunk.all_logits) return;
    EXPECT_TRUE(open.logits && chunk.is_prefill);
    bool news = false;
    for (int i = chunk.kv_begin; i < chunk.kv_end(); ++i) {
      news |= !open.logits_of[i];
      open.logits_of[i] = true;
    }
    EXPECT_TRUE(news) << "logits asked for again";
  }

  Rng rng_;
  SchedulerOptions options_;
  Scheduler scheduler_;
  std::map<RequestId, Open> open_;
  int num_added_ = 0;
  int num_ended_ = 0;
};

TEST(SchedulerPropertyTest, RandomSchedulesKeepTheInvariants) {
  int64_t num_preemptions = 0;
  for (int seed = 0; seed < kNumSchedules; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomSchedule schedule(seed);
    schedule.run();
    num_preemptions += schedule.num_preemptions();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_preemptions, kNumSchedules / 10) << "the schedules are too easy";
}

}  // namespace
}  // namespace moesaic
