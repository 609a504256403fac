#include "sched/scheduler.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/prefetch.h"

namespace moesaic {

Scheduler::Group::Group(const SchedulerOptions& options)
    : pool(options.num_kv_blocks, options.kv_block_tokens), index(&pool, options.prefix_index) {}

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options), next_deadline_ns_(std::numeric_limits<int64_t>::max()) {
  MOESAIC_CHECK_GE(options.dp_size, 1);
  MOESAIC_CHECK_GE(options.max_tokens_per_step, 1);
  MOESAIC_CHECK_GE(options.max_running_requests, 1);
  MOESAIC_CHECK_GE(options.priority_aging_steps, 1);
  // Every running sequence gets its token in every step.
  options_.max_running_requests =
      static_cast<int>(std::min<int64_t>(options.max_running_requests, options.max_tokens_per_step));
  if (options_.max_logit_rows_per_step == 0) {
    options_.max_logit_rows_per_step = options.max_tokens_per_step + options_.max_running_requests;
  }
  options_.max_logit_rows_per_step =
      std::max<int64_t>(options_.max_logit_rows_per_step, options_.max_running_requests + 1);
  for (int group = 0; group < options.dp_size; ++group) groups_.emplace_back(options_);
  plan_.groups.resize(options.dp_size);
}

void Scheduler::add(Request request) {
  MOESAIC_CHECK(!request.prompt_ids.empty());
  const RequestId id = request.id;
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  sequence->ordinal = next_ordinal_++;
  sequence->service_key = next_step_id_ - sequence->request.priority * options_.priority_aging_steps;
  next_deadline_ns_ = std::min(next_deadline_ns_, sequence->deadline_ns());
  enqueue(sequence.get());
  const bool is_new = sequences_.emplace(id, std::move(sequence)).second;
  MOESAIC_CHECK(is_new);
}

void Scheduler::enqueue(Sequence* sequence) {
  sequence->queued_step = next_step_id_;
  waiting_.insert(sequence);
}

void Scheduler::set_draft(RequestId id, std::span<const int32_t> token_ids) {
  MOESAIC_CHECK(!in_step_);
  const auto found = sequences_.find(id);
  if (found == sequences_.end() || !found->second->running) return;
  found->second->draft_ids.assign(token_ids.begin(), token_ids.end());
}

void Scheduler::apply(std::span<const SampledTokens> sampled) {
  MOESAIC_CHECK(in_step_);
  in_step_ = false;
  awaited_.clear();
  for (size_t g = 0; g < groups_.size(); ++g) {
    const std::vector<Sequence*>& planned = groups_[g].planned;
    for (size_t i = 0; i < planned.size(); ++i) {
      if (i + kPrefetchDistance < planned.size()) prefetch(planned[i + kPrefetchDistance], kHotSequenceBytes);
      const PlannedChunk& chunk = plan_.groups[g].chunks[i];
      Sequence* sequence = planned[i];
      sequence->in_step = false;
      sequence->num_computed = chunk.kv_end() - chunk.num_draft;
      if (chunk.all_logits) sequence->num_prompt_logits = std::max(sequence->num_prompt_logits, chunk.kv_end());
      if (chunk.is_prefill) index_prompt(groups_[g], sequence);
      if (sequence->ended) {
        remove(sequence);
      } else if (sequence->num_computed == sequence->num_tokens()) {
        sequence->awaits_result = true;
        awaited_.push_back(sequence);
      }
    }
    groups_[g].planned.clear();
  }
  size_t num_taken = 0, next = 0;
  for (const SampledTokens& result : sampled) {
    Sequence* sequence = find_awaited(result.request_id, &next);
    if (sequence == nullptr) continue;
    take_result(result, sequence);
    ++num_taken;
  }
  // A sequence whose tokens are all in the pool would never be planned again: the caller forgot its result.
  MOESAIC_CHECK_EQ(num_taken, awaited_.size());
}

// Results come in the plan's order as a rule: as long as all have, *next is the one that follows, and needs no lookup.
// Null for a request that is gone.
Sequence* Scheduler::find_awaited(RequestId id, size_t* next) const {
  if (*next < awaited_.size() && awaited_[*next]->request.id == id) return awaited_[(*next)++];
  *next = awaited_.size();  // those behind may be gone by the time that they would be next
  const auto found = sequences_.find(id);
  return found == sequences_.end() ? nullptr : found->second.get();
}

void Scheduler::take_result(const SampledTokens& result, Sequence* sequence) {
  MOESAIC_CHECK(sequence->awaits_result);
  sequence->awaits_result = false;
  const auto num_accepted = static_cast<int32_t>(result.token_ids.size());
  MOESAIC_CHECK(result.finished || num_accepted > 0);
  MOESAIC_CHECK_LE(num_accepted, 1 + sequence->num_draft_in_step);
  sequence->output_ids.insert(sequence->output_ids.end(), result.token_ids.begin(), result.token_ids.end());
  if (result.finished) return remove(sequence);
  // The drafts among them were right, and their rows with them.
  sequence->num_computed += num_accepted - 1;
  give_up_drafts(sequence);
}

// Blocks that only rejected drafts needed go back.
void Scheduler::give_up_drafts(Sequence* sequence) {
  if (sequence->num_draft_in_step == 0) return;
  BlockPool& pool = groups_[sequence->group].pool;
  pool.shrink(&sequence->block_table, pool.blocks_for(sequence->num_tokens()));
  sequence->num_draft_in_step = 0;
}

// Only blocks whose rows were all computed as prompt tokens: generated ones take another path through attention, whose
// rounding reaches the rows of every layer but the first.
void Scheduler::index_prompt(Group& group, Sequence* sequence) {
  if (!options_.prefix_cache || !sequence->request.use_prefix_cache) return;
  const std::span<const int32_t> prompt(sequence->request.prompt_ids);
  const size_t block_tokens = options_.kv_block_tokens;
  const size_t num_full = std::min<size_t>(sequence->num_computed, prompt.size()) / block_tokens;
  for (size_t i = sequence->num_indexed_blocks; i < num_full; ++i) {
    int32_t& block = sequence->block_table[i];
    block = group.index.insert(sequence->request.cache_salt, i == 0 ? -1 : sequence->block_table[i - 1],
                               prompt.subspan(i * block_tokens, block_tokens), block);
  }
  sequence->num_indexed_blocks = std::max(sequence->num_indexed_blocks, static_cast<int32_t>(num_full));
}

void Scheduler::cancel_step() {
  MOESAIC_CHECK(in_step_);
  in_step_ = false;
  for (Group& group : groups_) {
    for (Sequence* sequence : group.planned) {
      sequence->in_step = false;
      give_up_drafts(sequence);
      if (sequence->ended) remove(sequence);
    }
    group.planned.clear();
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
  if (sequence->running) {
    Group& group = groups_[sequence->group];
    group.pool.release(&sequence->block_table);
    std::erase(group.running, sequence);
  } else {
    waiting_.erase(sequence);
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

}  // namespace moesaic
