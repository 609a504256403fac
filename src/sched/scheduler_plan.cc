// The planning half of the Scheduler: decode tokens, prompt chunks, preemption, deadlines.
#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/prefetch.h"
#include "sched/scheduler.h"

namespace moesaic {
namespace {

// What add_decode_chunk reads of the sequence outside itself.
void prefetch_tokens(const Sequence& sequence) {
  if (!sequence.output_ids.empty()) prefetch(&sequence.output_ids.back());
  prefetch(sequence.block_table.data(), sequence.block_table.size() * sizeof(int32_t));
}

}  // namespace

const StepPlan& Scheduler::plan(int64_t now_ns) {
  MOESAIC_CHECK(!in_step_);
  begin_step();
  if (now_ns >= next_deadline_ns_) expire(now_ns);
  const bool decode_first = options_.mixed_steps || (last_had_prompts_ && any_decoding());
  if (decode_first) plan_decode();
  if (options_.mixed_steps || plan_.empty()) plan_prompts();
  if (!decode_first && plan_.empty()) plan_decode();
  if (plan_.empty()) return plan_;
  last_had_prompts_ = false;
  for (const GroupPlan& group : plan_.groups) last_had_prompts_ |= group.num_prefill_tokens > 0;
  in_step_ = true;
  ++next_step_id_;
  return plan_;
}

void Scheduler::begin_step() {
  failures_.clear();
  plan_.step_id = next_step_id_;
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupPlan& plan = plan_.groups[g];
    std::move(plan.chunks.begin(), plan.chunks.end(), std::back_inserter(spare_chunks_));
    plan.chunks.clear();
    plan.preempted.clear();
    plan.num_prefill_tokens = 0;
    plan.num_decode_tokens = 0;
    groups_[g].budget = {.tokens = options_.max_tokens_per_step,
                         .draft_tokens = options_.max_tokens_per_step - options_.max_running_requests,
                         .extra_logit_rows = options_.max_logit_rows_per_step - options_.max_running_requests};
  }
}

void Scheduler::expire(int64_t now_ns) {
  std::vector<Sequence*> late;
  next_deadline_ns_ = std::numeric_limits<int64_t>::max();
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->deadline_ns() <= now_ns) {
      late.push_back(sequence.get());
    } else {
      next_deadline_ns_ = std::min(next_deadline_ns_, sequence->deadline_ns());
    }
  }
  std::sort(late.begin(), late.end(), [](const Sequence* a, const Sequence* b) { return a->ordinal < b->ordinal; });
  for (Sequence* sequence : late) {
    absl::Status error = absl::DeadlineExceededError(
        str_cat("the request's deadline passed while it was ", sequence->running ? "running" : "queued", ", after ",
                sequence->output_ids.size(), " of at most ", sequence->request.max_tokens, " output tokens"));
    if (!sequence->started) error.SetPayload(kNeverStartedPayload, {});
    fail(sequence, std::move(error));
  }
}

bool Scheduler::any_decoding() const {
  for (const Group& group : groups_) {
    for (const Sequence* sequence : group.running) {
      if (sequence->is_decoding()) return true;
    }
  }
  return false;
}

// Blocks for everybody's newest token first: drafts get what is left.
void Scheduler::plan_decode() {
  for (int g = 0; g < dp_size(); ++g) {
    std::vector<Sequence*>& running = groups_[g].running;
    // Victims come from the end of `running`, so those that have their block already are never touched.
    for (size_t i = 0; i < running.size();) {
      if (i + kPrefetchDistance < running.size()) prefetch(running[i + kPrefetchDistance], kHotSequenceBytes);
      if (!running[i]->is_decoding() || make_room(g, running[i])) ++i;  // else it has left `running`
    }
    for (size_t i = 0; i < running.size(); ++i) {
      if (i + kPrefetchDistance < running.size()) prefetch_tokens(*running[i + kPrefetchDistance]);
      if (running[i]->is_decoding()) add_decode_chunk(g, running[i]);
    }
  }
}

void Scheduler::plan_prompts() {
  for (int g = 0; g < dp_size(); ++g) {
    for (Sequence* sequence : groups_[g].running) {
      if (!sequence->in_step && !sequence->is_decoding()) add_prompt_chunk(g, sequence);
    }
  }
  if (admission_is_open()) admit();
}

// Blocks for the sequence's next token: free, evicted, or taken from later sequences; false if it had to give way
// itself.
bool Scheduler::make_room(int group_index, Sequence* sequence) {
  Group& group = groups_[group_index];
  const int num_needed =
      group.pool.blocks_for(sequence->num_computed + 1) - static_cast<int>(sequence->block_table.size());
  if (num_needed <= 0) return true;
  while (!group.index.make_free(num_needed)) {
    Sequence* victim = group.running.back();
    if (victim == sequence && group.running.size() == 1) {
      fail(sequence,
           absl::ResourceExhaustedError(str_cat(
               "the sequence needs ", group.pool.blocks_for(sequence->num_computed + 1), " KV blocks of ",
               options_.kv_block_tokens, " tokens and the pool has ", group.pool.num_blocks(), " (num_kv_blocks)")));
      return false;
    }
    preempt(group_index, victim);
    if (victim == sequence) return false;
  }
  const bool allocated = group.pool.allocate(num_needed, &sequence->block_table);
  MOESAIC_CHECK(allocated);
  return true;
}

void Scheduler::add_decode_chunk(int group_index, Sequence* sequence) {
  Group& group = groups_[group_index];
  const int32_t num_draft = sequence->draft_ids.empty() ? 0 : num_draft_that_fits(group, *sequence);
  if (num_draft > 0) {
    const int num_new =
        group.pool.blocks_for(sequence->num_computed + 1 + num_draft) - static_cast<int>(sequence->block_table.size());
    const bool allocated = num_new <= 0 || group.pool.allocate(num_new, &sequence->block_table);
    MOESAIC_CHECK(allocated);
  }
  PlannedChunk& chunk = new_chunk(group_index, sequence, 1 + num_draft);
  chunk.samples = true;
  chunk.num_draft = num_draft;
  chunk.token_ids.push_back(sequence->output_ids.back());
  chunk.token_ids.insert(chunk.token_ids.end(), sequence->draft_ids.begin(), sequence->draft_ids.begin() + num_draft);
  sequence->draft_ids.clear();
  sequence->num_draft_in_step = num_draft;
  plan_.groups[group_index].num_decode_tokens += 1 + num_draft;
  group.budget.draft_tokens -= num_draft;
  group.budget.extra_logit_rows -= num_draft;
}

// Drafts may evict cached blocks but take nobody's; one extra logit row is left to prompt logprobs.
int32_t Scheduler::num_draft_that_fits(Group& group, const Sequence& sequence) const {
  const auto num_output = static_cast<int64_t>(sequence.output_ids.size());
  int64_t count = std::min({static_cast<int64_t>(sequence.draft_ids.size()), group.budget.draft_tokens,
                            group.budget.extra_logit_rows - 1, sequence.request.max_tokens - num_output - 1});
  if (count <= 0) return 0;
  const auto num_held = static_cast<int64_t>(sequence.block_table.size());
  const int64_t num_new = group.pool.blocks_for(sequence.num_computed + 1 + count) - num_held;
  if (num_new > 0 && !group.index.make_free(static_cast<int>(num_new))) {
    count = std::min(count, num_held * options_.kv_block_tokens - sequence.num_computed - 1);
  }
  return static_cast<int32_t>(count);
}

// The next tokens of a sequence, as many as the budget allows and never across the border of prompt and output.
bool Scheduler::add_prompt_chunk(int group_index, Sequence* sequence) {
  Budget& budget = groups_[group_index].budget;
  const int32_t begin = sequence->num_computed;
  const bool is_prefill = begin < sequence->num_prompt();
  const int32_t end = is_prefill ? sequence->num_prompt() : sequence->num_tokens();
  // After a preemption, the positions whose logits are already given out are computed again without.
  const bool logits_given = is_prefill && begin < sequence->num_prompt_logits;
  const bool all_logits = is_prefill && sequence->request.prompt_logprobs && !logits_given;
  int64_t count = std::min<int64_t>(budget.tokens, (logits_given ? sequence->num_prompt_logits : end) - begin);
  if (all_logits) count = std::min(count, budget.extra_logit_rows);
  if (count <= 0) return false;

  PlannedChunk& chunk = new_chunk(group_index, sequence, static_cast<int32_t>(count));
  chunk.is_prefill = is_prefill;
  chunk.samples = begin + count == sequence->num_tokens() && sequence->request.max_tokens > 0;
  chunk.all_logits = all_logits;
  for (int64_t i = 0; i < count; ++i) chunk.token_ids.push_back(sequence->token(begin + static_cast<int32_t>(i)));
  plan_.groups[group_index].num_prefill_tokens += static_cast<int32_t>(count);
  if (all_logits) budget.extra_logit_rows -= count;
  return true;
}

// A chunk without tokens yet, and what all kinds have in common.
PlannedChunk& Scheduler::new_chunk(int group_index, Sequence* sequence, int32_t num_tokens) {
  if (spare_chunks_.empty()) spare_chunks_.emplace_back();
  PlannedChunk& chunk = plan_.groups[group_index].chunks.emplace_back(std::move(spare_chunks_.back()));
  spare_chunks_.pop_back();
  chunk.request_id = sequence->request.id;
  chunk.kv_begin = sequence->num_computed;
  chunk.num_total = sequence->num_tokens();
  chunk.num_draft = 0;
  chunk.is_prefill = false;
  chunk.samples = false;
  chunk.all_logits = false;
  chunk.token_ids.clear();
  chunk.block_table.assign(sequence->block_table.begin(), sequence->block_table.end());
  sequence->in_step = true;
  sequence->num_draft_in_step = 0;
  groups_[group_index].planned.push_back(sequence);
  groups_[group_index].budget.tokens -= num_tokens;
  return chunk;
}

void Scheduler::preempt(int group_index, Sequence* sequence) {
  MOESAIC_CHECK(!sequence->in_step);
  Group& group = groups_[group_index];
  group.pool.release(&sequence->block_table);
  std::erase(group.running, sequence);
  sequence->running = false;
  sequence->num_computed = 0;
  sequence->num_indexed_blocks = 0;
  sequence->draft_ids.clear();
  ++sequence->num_preemptions;
  ++num_preemptions_;
  plan_.groups[group_index].preempted.push_back(sequence->request.id);
  enqueue(sequence);
}

}  // namespace moesaic
