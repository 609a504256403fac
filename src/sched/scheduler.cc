#include "sched/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace moesaic {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options) : options_(options), next_deadline_ns_(kNever) {
  MOESAIC_CHECK_GE(options.dp_size, 1);
  MOESAIC_CHECK_GE(options.max_tokens_per_step, 1);
  MOESAIC_CHECK_GE(options.max_running_requests, 1);
  // Every running sequence gets its token in every step.
  options_.max_running_requests =
      static_cast<int>(std::min<int64_t>(options.max_running_requests, options.max_tokens_per_step));
  if (options_.max_logit_rows_per_step == 0) {
    options_.max_logit_rows_per_step = options.max_tokens_per_step + options_.max_running_requests;
  }
  options_.max_logit_rows_per_step =
      std::max<int64_t>(options_.max_logit_rows_per_step, options_.max_running_requests + 1);
  for (int group = 0; group < options.dp_size; ++group) {
    groups_.push_back(Group{.pool = BlockPool(options.num_kv_blocks, options.kv_block_tokens)});
  }
  plan_.groups.resize(options.dp_size);
}

void Scheduler::add(Request request) {
  MOESAIC_CHECK(!request.prompt_ids.empty());
  const RequestId id = request.id;
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  sequence->ordinal = next_ordinal_++;
  sequence->group = least_loaded_group();
  next_deadline_ns_ = std::min(next_deadline_ns_, sequence->request.deadline_ns);
  enqueue(groups_[sequence->group], sequence.get());
  const bool is_new = sequences_.emplace(id, std::move(sequence)).second;
  MOESAIC_CHECK(is_new);
}

// Load = rows that are held plus tokens that wait to be computed; then the number of sequences; then the lower rank.
int Scheduler::least_loaded_group() const {
  int best = 0;
  std::pair<int64_t, size_t> best_load{kNever, 0};
  for (int i = 0; i < dp_size(); ++i) {
    const Group& group = groups_[i];
    const std::pair<int64_t, size_t> load{
        static_cast<int64_t>(group.pool.num_used()) * options_.kv_block_tokens + group.waiting_tokens,
        group.running.size() + group.waiting.size()};
    if (load < best_load) {
      best = i;
      best_load = load;
    }
  }
  return best;
}

const StepPlan& Scheduler::plan(int64_t now_ns) {
  MOESAIC_CHECK(!in_step_);
  failures_.clear();
  plan_.step_id = next_step_id_;
  for (GroupPlan& group : plan_.groups) {
    std::move(group.chunks.begin(), group.chunks.end(), std::back_inserter(spare_chunks_));
    group.chunks.clear();
    group.preempted.clear();
    group.num_prefill_tokens = 0;
    group.num_decode_tokens = 0;
  }
  if (now_ns >= next_deadline_ns_) expire(now_ns);
  for (int group = 0; group < dp_size(); ++group) plan_group(group);
  if (plan_.empty()) return plan_;
  in_step_ = true;
  ++next_step_id_;
  return plan_;
}

void Scheduler::expire(int64_t now_ns) {
  std::vector<Sequence*> late;
  next_deadline_ns_ = kNever;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->request.deadline_ns <= now_ns) {
      late.push_back(sequence.get());
    } else {
      next_deadline_ns_ = std::min(next_deadline_ns_, sequence->request.deadline_ns);
    }
  }
  std::sort(late.begin(), late.end(), [](const Sequence* a, const Sequence* b) { return a->ordinal < b->ordinal; });
  for (Sequence* sequence : late) {
    fail(sequence,
         absl::DeadlineExceededError(str_cat(
             "the request's deadline passed while it was ", sequence->running ? "running" : "queued", ", after ",
             sequence->output_ids.size(), " of at most ", sequence->request.max_tokens, " output tokens")));
  }
}

void Scheduler::plan_group(int group_index) {
  Group& group = groups_[group_index];
  GroupPlan& plan = plan_.groups[group_index];
  Budget budget{.tokens = options_.max_tokens_per_step,
                .prompt_logit_rows = options_.max_logit_rows_per_step - options_.max_running_requests};
  plan_decode(group, plan, budget);
  for (Sequence* sequence : group.running) {
    if (!sequence->in_step) add_chunk(plan, budget, sequence);
  }
  // A group that has just taken blocks away has none to give.
  if (plan.preempted.empty()) admit(group, plan, budget);
}

void Scheduler::plan_decode(Group& group, GroupPlan& plan, Budget& budget) {
  // Victims come from the end of `running`, so those already planned in this loop are never touched.
  for (size_t i = 0; i < group.running.size();) {
    Sequence* sequence = group.running[i];
    if (sequence->is_decoding()) {
      if (!make_room(group, plan, sequence)) continue;  // it has left `running`
      add_chunk(plan, budget, sequence);
    }
    ++i;
  }
}

// Blocks for the sequence's next token, taken from later sequences if need be; false if it had to give way itself.
bool Scheduler::make_room(Group& group, GroupPlan& plan, Sequence* sequence) {
  const int num_needed =
      group.pool.blocks_for(sequence->num_computed + 1) - static_cast<int>(sequence->block_table.size());
  if (num_needed <= 0) return true;
  while (!group.pool.allocate(num_needed, &sequence->block_table)) {
    Sequence* victim = group.running.back();
    if (victim == sequence && group.running.size() == 1) {
      fail(sequence,
           absl::ResourceExhaustedError(str_cat(
               "the sequence needs ", group.pool.blocks_for(sequence->num_computed + 1), " KV blocks of ",
               options_.kv_block_tokens, " tokens and the pool has ", group.pool.num_blocks(), " (num_kv_blocks)")));
      return false;
    }
    preempt(group, plan, victim);
    if (victim == sequence) return false;
  }
  return true;
}

void Scheduler::admit(Group& group, GroupPlan& plan, Budget& budget) {
  while (budget.tokens > 0 && !group.waiting.empty() &&
         static_cast<int>(group.running.size()) < options_.max_running_requests) {
    Sequence* sequence = *group.waiting.begin();
    const int num_needed = group.pool.blocks_for(sequence->num_tokens());
    // One block stays free for each running sequence to grow into, or the newcomer would soon be thrown out again.
    const int num_kept = static_cast<int>(group.running.size());
    if (group.pool.num_free() < num_needed + num_kept) break;
    // All blocks of the prompt at once: a half-computed prompt never waits for blocks.
    const bool allocated = group.pool.allocate(num_needed, &sequence->block_table);
    MOESAIC_CHECK(allocated);
    group.waiting.erase(group.waiting.begin());
    group.waiting_tokens -= sequence->num_tokens();
    sequence->running = true;
    group.running.insert(std::upper_bound(group.running.begin(), group.running.end(), sequence, ServiceOrder()),
                         sequence);
    if (!add_chunk(plan, budget, sequence)) break;
  }
  if (group.running.empty() && !group.waiting.empty()) {
    fail_what_never_fits(group);
    if (!group.waiting.empty()) admit(group, plan, budget);
  }
}

// Nothing runs, so the whole pool is free, and still the first in the queue did not fit.
void Scheduler::fail_what_never_fits(Group& group) {
  while (!group.waiting.empty()) {
    Sequence* sequence = *group.waiting.begin();
    const int num_needed = group.pool.blocks_for(sequence->num_tokens());
    if (num_needed <= group.pool.num_free()) return;
    fail(sequence,
         absl::ResourceExhaustedError(str_cat("the prompt of ", sequence->num_tokens(), " tokens needs ", num_needed,
                                              " KV blocks and the pool has ", group.pool.num_free(), " free of ",
                                              group.pool.num_blocks(), " with nothing running (num_kv_blocks)")));
  }
}

// The next tokens of a sequence, as many as the budget allows and never across the border of prompt and output.
bool Scheduler::add_chunk(GroupPlan& plan, Budget& budget, Sequence* sequence) {
  const int32_t begin = sequence->num_computed;
  const bool is_prefill = begin < sequence->num_prompt();
  const int32_t end = is_prefill ? sequence->num_prompt() : sequence->num_tokens();
  // After a preemption, the positions whose logits are already given out are computed again without.
  const bool logits_given = is_prefill && begin < sequence->num_prompt_logits;
  const bool all_logits = is_prefill && sequence->request.prompt_logprobs && !logits_given;
  int64_t count = std::min<int64_t>(budget.tokens, (logits_given ? sequence->num_prompt_logits : end) - begin);
  if (all_logits) count = std::min(count, budget.prompt_logit_rows);
  if (count <= 0) return false;

  if (spare_chunks_.empty()) spare_chunks_.emplace_back();
  PlannedChunk& chunk = plan.chunks.emplace_back(std::move(spare_chunks_.back()));
  spare_chunks_.pop_back();
  chunk.request_id = sequence->request.id;
  chunk.kv_begin = begin;
  chunk.num_total = sequence->num_tokens();
  chunk.is_prefill = is_prefill;
  chunk.samples = begin + count == sequence->num_tokens() && sequence->request.max_tokens > 0;
  chunk.all_logits = all_logits;
  chunk.token_ids.clear();
  for (int64_t i = 0; i < count; ++i) chunk.token_ids.push_back(sequence->token(begin + static_cast<int32_t>(i)));
  chunk.block_table.assign(sequence->block_table.begin(), sequence->block_table.end());
  sequence->in_step = true;

  (sequence->is_decoding() ? plan.num_decode_tokens : plan.num_prefill_tokens) += static_cast<int32_t>(count);
  budget.tokens -= count;
  if (all_logits) budget.prompt_logit_rows -= count;
  return true;
}

void Scheduler::enqueue(Group& group, Sequence* sequence) {
  group.waiting.insert(sequence);
  group.waiting_tokens += sequence->num_tokens();
}

void Scheduler::preempt(Group& group, GroupPlan& plan, Sequence* sequence) {
  MOESAIC_CHECK(!sequence->in_step);
  group.pool.release(&sequence->block_table);
  std::erase(group.running, sequence);
  sequence->running = false;
  sequence->num_computed = 0;
  ++sequence->num_preemptions;
  ++num_preemptions_;
  plan.preempted.push_back(sequence->request.id);
  enqueue(group, sequence);
}

void Scheduler::apply(std::span<const SampledToken> sampled) {
  MOESAIC_CHECK(in_step_);
  in_step_ = false;
  for (const GroupPlan& group : plan_.groups) {
    for (const PlannedChunk& chunk : group.chunks) {
      Sequence* sequence = sequences_.at(chunk.request_id).get();
      sequence->in_step = false;
      sequence->num_computed = chunk.kv_end();
      if (chunk.all_logits) sequence->num_prompt_logits = std::max(sequence->num_prompt_logits, chunk.kv_end());
      if (sequence->ended) remove(sequence);
    }
  }
  for (const SampledToken& token : sampled) {
    const auto found = sequences_.find(token.request_id);
    if (found == sequences_.end()) continue;
    Sequence* sequence = found->second.get();
    if (token.token_id >= 0) sequence->output_ids.push_back(token.token_id);
    if (token.finished) remove(sequence);
  }
  check_progress();
}

// A sequence whose tokens are all in the pool would never be planned again: the caller forgot its result.
void Scheduler::check_progress() const {
  for (const GroupPlan& group : plan_.groups) {
    for (const PlannedChunk& chunk : group.chunks) {
      const auto found = sequences_.find(chunk.request_id);
      if (found != sequences_.end()) MOESAIC_CHECK_LT(found->second->num_computed, found->second->num_tokens());
    }
  }
}

void Scheduler::cancel_step() {
  MOESAIC_CHECK(in_step_);
  in_step_ = false;
  for (const GroupPlan& group : plan_.groups) {
    for (const PlannedChunk& chunk : group.chunks) {
      Sequence* sequence = sequences_.at(chunk.request_id).get();
      sequence->in_step = false;
      if (sequence->ended) remove(sequence);
    }
  }
}

bool Scheduler::finish(RequestId id) {
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || found->second->ended) return false;
  if (found->second->in_step) {
    found->second->ended = true;
  } else {
    remove(found->second.get());
  }
  return true;
}

void Scheduler::fail(Sequence* sequence, absl::Status error) {
  failures_.push_back({sequence->request.id, std::move(error)});
  remove(sequence);
}

void Scheduler::remove(Sequence* sequence) {
  Group& group = groups_[sequence->group];
  if (sequence->running) {
    group.pool.release(&sequence->block_table);
    std::erase(group.running, sequence);
  } else {
    group.waiting.erase(sequence);
    group.waiting_tokens -= sequence->num_tokens();
  }
  const RequestId id = sequence->request.id;
  sequences_.erase(id);
}

const Sequence* Scheduler::find(RequestId id) const {
  const auto found = sequences_.find(id);
  return found == sequences_.end() || found->second->ended ? nullptr : found->second.get();
}

int Scheduler::num_running() const {
  size_t count = 0;
  for (const Group& group : groups_) count += group.running.size();
  return static_cast<int>(count);
}

int Scheduler::num_waiting() const {
  size_t count = 0;
  for (const Group& group : groups_) count += group.waiting.size();
  return static_cast<int>(count);
}

}  // namespace moesaic
