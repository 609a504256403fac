// Random schedules against plain book-keeping: what every request must see, and what every row of the pool holds.
#include <algorithm>
#include <deque>
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
  bool uses_cache = true;
  uint64_t origin = 0;          // what the first row stands on: rows of other salts differ
  std::vector<int32_t> tokens;  // prompt and output
  std::vector<bool> logits_of;  // prompt positions whose logits were asked for
  int num_computed = -1;        // -1: has no blocks, so its next chunk may begin behind cached ones
  bool started = false;
  int num_steps_passed = 0;  // while it was the first of its group
};

// The token at a position depends on the request alone, so replayed tokens can be checked.
int32_t token_at(RequestId id, size_t position) {
  return static_cast<int32_t>(id * 1000 + position);
}

// A row depends on all tokens before it and on the paths that computed them.
uint64_t row_after(uint64_t before, int32_t token, bool is_prefill) {
  return Rng(before * 0x100000001b3ull ^ static_cast<uint32_t>(token), is_prefill ? 1 : 2).next_u64();
}

struct Totals {
  int64_t preemptions = 0;
  int64_t cached_tokens = 0;
  int64_t drafts = 0;
  int64_t accepted = 0;
};

class RandomSchedule {
 public:
  RandomSchedule(uint64_t seed, Totals* totals) : rng_(seed), totals_(*totals), scheduler_(make_options()) {
    rows_.assign(options_.dp_size,
                 std::vector<uint64_t>(static_cast<size_t>(options_.num_kv_blocks) * options_.kv_block_tokens));
  }

  void run() {
    const int num_requests = 1 + below(20);
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
    totals_.preemptions += scheduler_.num_preemptions();
  }

 private:
  int below(int bound) { return static_cast<int>(rng_.below(bound)); }

  const SchedulerOptions& make_options() {
    options_.dp_size = 1 + below(3);
    options_.num_kv_blocks = below(8) == 0 ? 1 + below(4) : 6 + below(16);
    options_.kv_block_tokens = 1 + below(8);
    options_.max_running_requests = 1 + below(8);
    options_.max_tokens_per_step = 1 + below(40);
    options_.max_logit_rows_per_step = below(2) == 0 ? 0 : 1 + below(20);
    options_.prefix_cache = below(8) != 0;
    options_.prefix_index.hash_bits = below(4) == 0 ? 2 : 64;
    options_.mixed_steps = below(3) != 0;
    options_.prefill_delay_steps = below(2) == 0 ? 0 : below(20);
    options_.priority_aging_steps = below(2) == 0 ? 1000 : 1 + below(10);
    if (below(3) == 0) options_.balance = Balance::kPrefill;
    return options_;
  }

  void add(int step) {
    const RequestId id = ++num_added_;
    Request request;
    request.id = id;
    request.max_tokens = below(40);
    request.priority = below(3);
    request.prompt_logprobs = below(4) == 0;
    request.use_prefix_cache = below(6) != 0;
    if (below(5) == 0) request.cache_salt = below(2) == 0 ? "a" : "b";
    if (below(6) == 0) request.deadline_ns = step + below(60);
    if (below(6) == 0) request.queue_deadline_ns = step + below(60);
    const int prompt = 1 + below(below(3) == 0 ? 40 : 12);
    const RequestId family = 100 + below(2);
    const int num_common = below(2) == 0 ? prompt : below(prompt + 1);
    for (int i = 0; i < prompt; ++i) request.prompt_ids.push_back(token_at(i < num_common ? family : id, i));
    const uint64_t salt = request.cache_salt.empty() ? 10 : 10 + request.cache_salt[0];
    open_[id] = Open{.prompt = prompt,
                     .max_tokens = request.max_tokens,
                     .logits = request.prompt_logprobs,
                     .uses_cache = options_.prefix_cache && request.use_prefix_cache,
                     .origin = request.use_prefix_cache ? salt : 1000 + id,
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
    for (const GroupPlan& group : plan.groups) {
      for (const RequestId id : group.preempted) open_.at(id).num_computed = -1;
    }
    for (int group = 0; group < options_.dp_size; ++group) check_group(group, plan.groups[group]);
    check_order();
    if (plan.empty()) return;
    check_progress();
    if (below(40) == 0) abort_some();
    if (below(20) == 0) {
      scheduler_.cancel_step();
      return;
    }
    scheduler_.apply(sample(plan));
    set_drafts();
    check_blocks();
  }

  void check_group(int group, const GroupPlan& plan) {
    int64_t tokens = 0;
    int64_t logit_rows = 0;
    bool has_prompts = false;
    bool has_decode = false;
    std::set<RequestId> ids;
    for (const PlannedChunk& chunk : plan.chunks) {
      ASSERT_TRUE(open_.contains(chunk.request_id));
      EXPECT_TRUE(ids.insert(chunk.request_id).second) << "two chunks";
      check_chunk(chunk, open_.at(chunk.request_id));
      execute(group, chunk, open_.at(chunk.request_id));
      tokens += chunk.num_tokens();
      logit_rows += chunk.num_logit_rows();
      has_prompts |= chunk.is_prefill;
      has_decode |= chunk.num_draft > 0;
    }
    EXPECT_LE(tokens, options_.max_tokens_per_step);
    EXPECT_EQ(tokens, plan.num_prefill_tokens + plan.num_decode_tokens);
    EXPECT_LE(static_cast<int>(plan.chunks.size()), options_.max_running_requests);
    EXPECT_TRUE(options_.mixed_steps || !has_prompts || plan.num_decode_tokens == 0);
    EXPECT_TRUE(options_.mixed_steps || !has_decode || plan.num_prefill_tokens == 0);
    if (options_.max_logit_rows_per_step > options_.max_running_requests) {
      EXPECT_LE(logit_rows, options_.max_logit_rows_per_step);
    }
    EXPECT_TRUE(scheduler_.prefix_index(group).check_consistent().ok())
        << scheduler_.prefix_index(group).check_consistent();
  }

  void check_chunk(const PlannedChunk& chunk, Open& open) {
    ASSERT_GT(chunk.num_tokens(), 0);
    if (open.num_computed < 0) check_start(chunk, open);
    EXPECT_EQ(chunk.kv_begin, open.num_computed);
    const int known_end = chunk.kv_end() - chunk.num_draft;
    ASSERT_LE(static_cast<size_t>(known_end), open.tokens.size());
    for (int i = chunk.kv_begin; i < known_end; ++i) {
      EXPECT_EQ(chunk.token_ids[i - chunk.kv_begin], open.tokens[i]);
    }
    EXPECT_EQ(chunk.num_total, static_cast<int>(open.tokens.size()));
    EXPECT_EQ(chunk.is_prefill, chunk.kv_begin < open.prompt);
    EXPECT_TRUE(!chunk.is_prefill || chunk.kv_end() <= open.prompt);
    const bool last = known_end == chunk.num_total;
    EXPECT_EQ(chunk.samples, last && open.max_tokens > 0);
    if (chunk.num_draft == 0) return;
    EXPECT_EQ(chunk.num_tokens(), 1 + chunk.num_draft);
    EXPECT_EQ(chunk.num_logit_rows(), 1 + chunk.num_draft);
    EXPECT_LE(known_end - open.prompt + chunk.num_draft + 1, open.max_tokens);
    totals_.drafts += chunk.num_draft;
  }

  // A chunk behind cached blocks: whole ones, one prompt token at least is left, no logits are lost.
  void check_start(const PlannedChunk& chunk, Open& open) {
    open.num_computed = chunk.kv_begin;
    EXPECT_EQ(chunk.kv_begin % options_.kv_block_tokens, 0);
    EXPECT_TRUE(open.uses_cache || chunk.kv_begin == 0);
    EXPECT_LE(chunk.kv_begin, open.prompt);
    EXPECT_LT(static_cast<size_t>(chunk.kv_begin), open.tokens.size());
    const auto cached_end = open.logits_of.begin() + chunk.kv_begin;
    EXPECT_TRUE(!open.logits || std::count(open.logits_of.begin(), cached_end, false) == 0);
    const int num_cached = scheduler_.find(chunk.request_id)->num_cached_tokens;
    EXPECT_LT(num_cached, open.prompt);
    if (!open.started) {
      EXPECT_EQ(num_cached, chunk.kv_begin);
      totals_.cached_tokens += num_cached;
    }
    open.started = true;
  }

  uint64_t& row(int group, const PlannedChunk& chunk, int position) {
    const int size = options_.kv_block_tokens;
    return rows_[group][static_cast<size_t>(chunk.block_table.at(position / size)) * size + position % size];
  }

  // What is read is this request's, and what is written is nobody else's.
  void execute(int group, const PlannedChunk& chunk, const Open& open) {
    uint64_t before = open.origin;
    for (int i = 0; i < chunk.kv_begin; ++i) {
      before = row_after(before, open.tokens[i], i < open.prompt);
      ASSERT_EQ(row(group, chunk, i), before) << "r" << chunk.request_id << " row " << i;
    }
    for (int i = chunk.kv_begin; i < chunk.kv_end(); ++i) {
      const int32_t block = chunk.block_table.at(i / options_.kv_block_tokens);
      ASSERT_EQ(scheduler_.pool(group).ref_count(block), 1);
      ASSERT_FALSE(scheduler_.pool(group).is_indexed(block));
      before = row_after(before, chunk.token_ids[i - chunk.kv_begin], chunk.is_prefill);
      row(group, chunk, i) = before;
    }
  }

  std::span<const SampledTokens> sample(const StepPlan& plan) {
    sampled_.clear();
    sampled_ids_.clear();
    for (const GroupPlan& group : plan.groups) {
      for (const PlannedChunk& chunk : group.chunks) {
        const auto found = open_.find(chunk.request_id);
        if (found == open_.end()) continue;
        Open& open = found->second;
        open.num_computed = chunk.kv_end() - chunk.num_draft;
        note_logits(chunk, open);
        if (static_cast<size_t>(open.num_computed) < open.tokens.size()) continue;
        std::vector<int32_t>& ids = sampled_ids_.emplace_back();
        bool finished = !chunk.samples;
        for (int i = 0; chunk.samples && i <= chunk.num_draft && !finished; ++i) {
          ids.push_back(token_at(chunk.request_id, open.tokens.size()));
          open.tokens.push_back(ids.back());
          finished = static_cast<int>(open.tokens.size()) - open.prompt >= open.max_tokens || below(64) == 0;
          if (i == chunk.num_draft || chunk.token_ids[i + 1] != ids.back()) break;
        }
        if (chunk.samples) open.num_computed = static_cast<int>(open.tokens.size()) - 1;
        totals_.accepted += ids.empty() ? 0 : std::ssize(ids) - 1;
        sampled_.push_back({chunk.request_id, ids, finished});
        if (!finished) continue;
        EXPECT_TRUE(!open.logits || std::count(open.logits_of.begin(), open.logits_of.end(), false) == 0);
        open_.erase(found);
        ++num_ended_;
      }
    }
    return sampled_;
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

  // Drafts whose first tokens are right.
  void set_drafts() {
    for (const auto& [id, open] : open_) {
      const Sequence* sequence = scheduler_.find(id);
      if (!sequence->is_decoding() || below(3) == 0) continue;
      std::vector<int32_t> drafts;
      for (int i = below(5); i > 0; --i) {
        drafts.push_back(below(4) == 0 ? 0 : token_at(id, open.tokens.size() + drafts.size()));
      }
      scheduler_.set_draft(id, drafts);
    }
  }

  // Someone who runs still computes a block of the same beginning: r waits for it.
  bool has_twin(RequestId id) const {
    const Open& open = open_.at(id);
    const int size = options_.kv_block_tokens;
    return std::any_of(open_.begin(), open_.end(), [&](const auto& entry) {
      const Open& other = entry.second;
      const Sequence* sequence = scheduler_.find(entry.first);
      return entry.first != id && sequence->running && sequence->num_computed < other.prompt && other.uses_cache &&
             other.origin == open.origin && other.prompt >= size && open.prompt >= size &&
             std::equal(open.tokens.begin(), open.tokens.begin() + size, other.tokens.begin());
    });
  }

  // With one group, nobody starts before one who waits and comes first in order of service.
  void check_order() {
    std::set<RequestId> running;
    for (const auto& [id, open] : open_) {
      if (scheduler_.find(id)->running) running.insert(id);
    }
    for (const auto& [id, open] : open_) {
      if (options_.dp_size > 1 || running.contains(id) || has_twin(id)) continue;
      for (const RequestId other : running) {
        if (running_before_.contains(other)) continue;
        EXPECT_TRUE(ServiceOrder()(scheduler_.find(other), scheduler_.find(id))) << "r" << other << " passed r" << id;
      }
    }
    running_before_ = running;
  }

  // The first in order of service of every group is in every step, or in every second one if steps are separate.
  void check_progress() {
    std::vector<const Sequence*> first(options_.dp_size, nullptr);
    for (const auto& [id, open] : open_) {
      const Sequence* sequence = scheduler_.find(id);
      if (!sequence->running) continue;
      const Sequence*& best = first[sequence->group];
      if (best == nullptr || ServiceOrder()(sequence, best)) best = sequence;
    }
    for (auto& [id, open] : open_) {
      const Sequence* sequence = scheduler_.find(id);
      const bool is_first = std::find(first.begin(), first.end(), sequence) != first.end();
      open.num_steps_passed = is_first && !sequence->in_step ? open.num_steps_passed + 1 : 0;
      // It may have started behind prompts that took the last logit row of the step.
      EXPECT_LE(open.num_steps_passed, (options_.mixed_steps ? 0 : 1) + (open.num_computed < 0 ? 1 : 0)) << "r" << id;
    }
  }

  // No block is used but by those who run, and none longer than needed.
  void check_blocks() {
    std::vector<std::set<int32_t>> used(options_.dp_size);
    for (const auto& [id, open] : open_) {
      const Sequence* sequence = scheduler_.find(id);
      if (!sequence->running) continue;
      const BlockPool& pool = scheduler_.pool(sequence->group);
      EXPECT_LE(std::ssize(sequence->block_table), pool.blocks_for(sequence->num_tokens()));
      used[sequence->group].insert(sequence->block_table.begin(), sequence->block_table.end());
    }
    for (int group = 0; group < options_.dp_size; ++group) {
      EXPECT_EQ(std::ssize(used[group]), scheduler_.pool(group).num_used());
    }
  }

  Rng rng_;
  Totals& totals_;
  SchedulerOptions options_;
  Scheduler scheduler_;
  std::vector<std::vector<uint64_t>> rows_;  // per group: what each row of the pool holds
  std::map<RequestId, Open> open_;
  std::set<RequestId> running_before_;
  std::vector<SampledTokens> sampled_;
  std::deque<std::vector<int32_t>> sampled_ids_;
  int num_added_ = 0;
  int num_ended_ = 0;
};

TEST(SchedulerPropertyTest, RandomSchedulesKeepTheInvariants) {
  Totals totals;
  for (int seed = 0; seed < kNumSchedules; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomSchedule schedule(seed, &totals);
    schedule.run();
    if (HasFailure()) return;
  }
  EXPECT_GT(totals.preemptions, kNumSchedules / 10) << "the schedules are too easy";
  EXPECT_GT(totals.cached_tokens, kNumSchedules);
  EXPECT_GT(totals.drafts, kNumSchedules);
  EXPECT_GT(totals.accepted, kNumSchedules / 2);
  EXPECT_LT(totals.accepted, totals.drafts);
}

}  // namespace
}  // namespace moesaic
