// Scheduler: decides what each step computes. Continuous batching per DP group inside a token budget: first one token
// for every decoding sequence, then prompt chunks of running sequences, then new requests, highest priority and first
// come first. When the pool of a group runs dry, its lowest and newest sequence gives its blocks back and is recomputed
// later. Owned by the engine thread; not thread-safe; no clock, no randomness, no tensors: same calls, same plans.
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
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "kv/block_pool.h"
#include "sched/sequence.h"
#include "sched/step_plan.h"

namespace moesaic {

struct SchedulerOptions {
  int dp_size = 1;
  int num_kv_blocks = 0;  // of each DP group
  int kv_block_tokens = 64;
  int max_running_requests = 64;       // of each DP group; never above max_tokens_per_step
  int64_t max_tokens_per_step = 2048;  // of each DP group
  // Of each DP group: bounds the logits of prompt logprobs. At least max_running_requests + 1; 0 = no bound.
  int64_t max_logit_rows_per_step = 0;
};

struct SampledToken {
  RequestId request_id = 0;
  int32_t token_id = -1;  // -1: the prompt was computed and nothing is to be sampled (max_tokens 0)
  bool finished = false;  // it was the last one
};

// A request that the scheduler itself ended: its deadline passed, or the pool can never hold it.
struct FailedRequest {
  RequestId request_id = 0;
  absl::Status error;
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);

  // Queues a request on the least loaded DP group. The id must be new and the prompt not empty (CHECK). Whether the
  // pool can ever hold it shows when its turn comes.
  void add(Request request);
  // Plans the next step; deadlines are compared with now_ns. Empty when nothing is open. Valid until the next plan();
  // apply() or cancel_step() must follow unless the plan is empty.
  const StepPlan& plan(int64_t now_ns);
  // What the last plan() ended.
  std::span<const FailedRequest> failures() const { return failures_; }
  // The step was executed: one entry for every chunk that reaches the end of its sequence (a missing one: CHECK).
  // Entries for requests that are gone are ignored.
  void apply(std::span<const SampledToken> sampled);
  // The step failed: nothing was computed.
  void cancel_step();
  // Ends a request in any state; false if it is unknown or already ended. Inside a step, blocks stay until apply().
  bool finish(RequestId id);

  // Null once it has ended.
  const Sequence* find(RequestId id) const;
  bool has_work() const { return !sequences_.empty(); }
  int num_running() const;
  int num_waiting() const;
  int dp_size() const { return options_.dp_size; }
  const BlockPool& pool(int group) const { return groups_[group].pool; }
  int64_t num_preemptions() const { return num_preemptions_; }
  int64_t num_steps() const { return next_step_id_; }

 private:
  struct Group {
    BlockPool pool;
    std::set<Sequence*, ServiceOrder> waiting;
    std::vector<Sequence*> running;  // in order of service
    int64_t waiting_tokens = 0;
  };
  // What is left of a group's step while it is planned.
  struct Budget {
    int64_t tokens = 0;
    int64_t prompt_logit_rows = 0;  // one row for each running sequence is set aside
  };

  int least_loaded_group() const;
  void expire(int64_t now_ns);
  void plan_group(int group_index);
  void plan_decode(Group& group, GroupPlan& plan, Budget& budget);
  bool make_room(Group& group, GroupPlan& plan, Sequence* sequence);
  void admit(Group& group, GroupPlan& plan, Budget& budget);
  void fail_what_never_fits(Group& group);
  bool add_chunk(GroupPlan& plan, Budget& budget, Sequence* sequence);
  void enqueue(Group& group, Sequence* sequence);
  void preempt(Group& group, GroupPlan& plan, Sequence* sequence);
  void fail(Sequence* sequence, absl::Status error);
  void remove(Sequence* sequence);
  void check_progress() const;

  SchedulerOptions options_;
  std::vector<Group> groups_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  StepPlan plan_;
  std::vector<PlannedChunk> spare_chunks_;  // keeps their memory from step to step
  std::vector<FailedRequest> failures_;
  uint64_t next_ordinal_ = 0;
  int64_t next_step_id_ = 0;
  int64_t num_preemptions_ = 0;
  int64_t next_deadline_ns_;  // none is earlier
  bool in_step_ = false;
};

}  // namespace moesaic
