// Scheduler: decides what each step computes. Continuous batching per DP group inside a token budget: first the newest
// token of every decoding sequence, then prompt chunks of running sequences, then new requests in order of service.
// Full blocks of computed prompt tokens are shared through the group's prefix index. When a group's pool runs dry,
// cached blocks are evicted; then its last sequence gives its blocks back and is recomputed later. Owned by the engine
// thread; not thread-safe; no clock, no randomness, no tensors: same calls, same plans.
//
//   scheduler.add(std::move(request));
//   const StepPlan& plan = scheduler.plan(now_ns);   // then look at scheduler.failures()
//   ... execute and sample ...
//   scheduler.apply(sampled);
//
// Invariants: a group's step holds at most max_tokens_per_step tokens; at most max_running_requests sequences have
// blocks; a request leaves exactly once (through apply, finish or failures) and its blocks with it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/block_pool.h"
#include "kv/prefix_index.h"
#include "sched/placement.h"
#include "sched/sequence.h"
#include "sched/step_plan.h"

namespace moesaic {

struct SchedulerOptions {
  int dp_size = 1;
  int num_kv_blocks = 0;  // of each DP group
  int kv_block_tokens = 64;
  int max_running_requests = 64;       // of each DP group; never above max_tokens_per_step
  int64_t max_tokens_per_step = 2048;  // of each DP group
  // Of each DP group: bounds the logits of prompt logprobs and drafts. At least max_running_requests + 1; 0 = no bound.
  int64_t max_logit_rows_per_step = 0;
  bool prefix_cache = true;
  PrefixIndexOptions prefix_index;
  // Prompt chunks run in the same steps as decode tokens. Otherwise steps of prompts and of decode tokens alternate as
  // long as there are both.
  bool mixed_steps = true;
  // With several groups, while any decodes: new prompts wait until there is one for every group, at most this many
  // steps, so that the groups' prompts slow the same steps down. 0 = they never wait.
  int prefill_delay_steps = 0;
  int64_t priority_aging_steps = 1000;  // what a level of priority is worth
  Balance balance = Balance::kDecode;
};

// The result of a chunk that reaches the end of its sequence.
struct SampledTokens {
  RequestId request_id = 0;
  // The accepted tokens: those drafts that were right, then one more. Empty if the prompt was computed and nothing is
  // to be sampled (max_tokens 0). Read during apply().
  std::span<const int32_t> token_ids;
  bool finished = false;  // nothing follows
};

// A request that the scheduler itself ended: its deadline passed, or the pool can never hold it.
struct FailedRequest {
  RequestId request_id = 0;
  absl::Status error;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Queues a request. The id must be new and the prompt not empty (CHECK). The DP group is chosen, and whether the pool
  // can ever hold it shows, when its turn comes.
  void add(Request request);
  // Plans the next step; deadlines are compared with now_ns. Empty when nothing is open. Valid until the next plan();
  // apply() or cancel_step() must follow unless the plan is empty.
  const StepPlan& plan(int64_t now_ns);
  // What the last plan() ended.
  std::span<const FailedRequest> failures() const { return failures_; }
  // The step was executed: one entry for every chunk that reaches the end of its sequence (a missing one: CHECK).
  // Entries for requests that are gone are ignored. Rows of drafts that were not accepted are given up.
  void apply(std::span<const SampledTokens> sampled);
  // The step failed: nothing was computed.
  void cancel_step();
  // Between apply() and plan(): what may follow the newest token of a decoding sequence. The next step verifies as many
  // as budgets, max_tokens and free blocks allow, perhaps none; a draft never costs anybody a token or a block.
  void set_draft(RequestId id, std::span<const int32_t> token_ids);
  // Ends a request in any state; false if it is unknown or already ended. Inside a step, blocks stay until apply().
  bool finish(RequestId id);

  // Null once it has ended.
  const Sequence* find(RequestId id) const;
  // Whose chunk it is: `chunk` counts those of the group in the last plan(). Until apply() or cancel_step().
  const Sequence& planned(int group, size_t chunk) const { return *groups_[group].planned[chunk]; }
  bool has_work() const { return !sequences_.empty(); }
  int num_running() const;
  int num_waiting() const { return static_cast<int>(waiting_.size()); }
  int dp_size() const { return options_.dp_size; }
  const BlockPool& pool(int group) const { return groups_[group].pool; }
  const PrefixIndex& prefix_index(int group) const { return groups_[group].index; }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_steps() const { return next_step_id_; }

 private:
  // What is left of a group's step while it is planned.
  struct Budget {
    int64_t tokens = 0;
    int64_t draft_tokens = 0;      // one token is set aside for each sequence that may run
    int64_t extra_logit_rows = 0;  // one row is set aside likewise
  };
  // The prefix of the queue's first sequences, looked up again only when it may have changed.
  struct Match {
    uint64_t ordinal = ~uint64_t{0};
    int64_t version = -1;
    size_t limit = 0;
    std::vector<int32_t> blocks;
  };
  struct Group {
    explicit Group(const SchedulerOptions& options);
    BlockPool pool;
    PrefixIndex index;
    std::vector<Sequence*> running;  // in order of service
    // Of the step that is planned or executed.
    std::vector<Sequence*> planned;  // of the plan's chunks
    Budget budget;
    GroupLoad load;
    bool admits = false;
    Match match;
  };

  // scheduler_plan.cc
  void begin_step();
  void expire(int64_t now_ns);
  void plan_decode();
  void plan_prompts();
  bool make_room(int group, Sequence* sequence);
  void add_decode_chunk(int group, Sequence* sequence);
  bool add_prompt_chunk(int group, Sequence* sequence);
  int32_t num_draft_that_fits(Group& group, const Sequence& sequence) const;
  PlannedChunk& new_chunk(int group, Sequence* sequence, int32_t num_tokens);
  void preempt(int group, Sequence* sequence);
  bool any_decoding() const;

  // scheduler_admission.cc
  bool admission_is_open() const;
  void admit();
  bool open_admission(int group);
  bool has_room(const Group& group) const;
  bool fail_if_too_large(Sequence* sequence);
  int choose_group(Sequence* sequence);
  size_t num_cacheable_tokens(const Sequence& sequence) const;
  void prefetch_matches(const Sequence& sequence, size_t limit) const;
  void look_up(Group& group, const Sequence& sequence, size_t limit);
  bool twin_is_ahead(const Group& group, const Sequence& sequence) const;
  int64_t num_missing_blocks(const Group& group, const Sequence& sequence) const;
  void start(int group, Sequence* sequence);

  void index_prompt(Group& group, Sequence* sequence);
  Sequence* find_awaited(RequestId id, size_t* next) const;
  void take_result(const SampledTokens& result, Sequence* sequence);
  void give_up_drafts(Sequence* sequence);
  void enqueue(Sequence* sequence);
  void fail(Sequence* sequence, absl::Status error);
  void remove(Sequence* sequence);

  SchedulerOptions options_;
  std::deque<Group> groups_;  // never moves: an index points to its pool
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::set<Sequence*, ServiceOrder> waiting_;
  StepPlan plan_;
  std::vector<PlannedChunk> spare_chunks_;  // keeps their memory from step to step
  std::vector<Candidate> candidates_;
  std::vector<FailedRequest> failures_;
  uint64_t next_ordinal_ = 0;
  int64_t next_step_id_ = 0;
  int64_t num_preemptions_ = 0;
  int64_t next_deadline_ns_;        // none is earlier
  std::vector<Sequence*> awaited_;  // inside apply(): whose results must come, in the plan's order
  bool in_step_ = false;
  bool last_had_prompts_ = false;
};

}  // namespace moesaic
