// The admission half of the Scheduler: who starts, in which DP group, with which cached blocks.
#include <algorithm>
#include <limits>

#include "base/check.h"
#include "sched/scheduler.h"

namespace moesaic {
namespace {

constexpr int kMaxTwins = 8;  // that are looked at in a step: each costs lookups

}  // namespace

// Prompts of a step slow all groups down, as the groups' steps are one. Once some run, others may join.
bool Scheduler::admission_is_open() const {
  if (options_.prefill_delay_steps == 0 || waiting_.size() >= groups_.size()) return true;
  bool decoding = false;
  for (const Group& group : groups_) {
    for (const Sequence* sequence : group.running) {
      if (!sequence->is_decoding()) return true;
      decoding = true;
    }
  }
  if (!decoding || waiting_.empty()) return true;
  return next_step_id_ - (*waiting_.begin())->queued_step >= options_.prefill_delay_steps;
}

// In order of service. A request that fits in no group keeps one of them from those behind it until it fits, so that
// small ones cannot pass it for ever; the other groups go on.
void Scheduler::admit() {
  int num_admitting = 0;
  for (int g = 0; g < dp_size(); ++g) num_admitting += open_admission(g) ? 1 : 0;
  const auto close = [&](Group& group) {
    num_admitting -= group.admits ? 1 : 0;
    group.admits = false;
  };
  int num_blocked = 0;
  int num_twins = 0;
  for (auto next = waiting_.begin(); next != waiting_.end() && num_admitting > 0;) {
    Sequence* sequence = *next++;
    if (fail_if_too_large(sequence)) continue;
    const int chosen = choose_group(sequence);
    if (chosen < 0) {
      if (++num_blocked == dp_size()) return;
      close(groups_[sequence->reserved_group]);
      continue;
    }
    if (twin_is_ahead(groups_[chosen], *sequence)) {
      if (++num_twins == kMaxTwins) return;
      continue;
    }
    start(chosen, sequence);
    if (!has_room(groups_[chosen])) close(groups_[chosen]);
  }
}

bool Scheduler::has_room(const Group& group) const {
  return group.budget.tokens > 0 && std::ssize(group.running) < options_.max_running_requests;
}

// Whether the group may start sequences in this step; if so, with its load.
bool Scheduler::open_admission(int group_index) {
  Group& group = groups_[group_index];
  // A group that has just taken blocks away has none to give.
  group.admits = has_room(group) && plan_.groups[group_index].preempted.empty();
  if (!group.admits) return false;
  group.load = {.kv_tokens = int64_t{group.pool.num_used()} * options_.kv_block_tokens,
                .num_requests = std::ssize(group.running)};
  for (const Sequence* sequence : group.running) {
    if (sequence->is_decoding()) continue;
    group.load.prompt_tokens += sequence->num_tokens() - sequence->num_computed;
    group.load.attention_pairs += attention_pairs(sequence->num_computed, sequence->num_tokens());
  }
  return true;
}

bool Scheduler::fail_if_too_large(Sequence* sequence) {
  const BlockPool& pool = groups_[0].pool;
  const int num_blocks = pool.blocks_for(sequence->num_tokens());
  if (num_blocks <= pool.num_blocks()) return false;
  fail(sequence,
       absl::ResourceExhaustedError(str_cat("the prompt of ", sequence->num_tokens(), " tokens needs ", num_blocks,
                                            " KV blocks and the pool has ", pool.num_blocks(), " (num_kv_blocks)")));
  return true;
}

// The best group that can take the sequence now. If none can, -1, and the one that misses least is reserved for it.
int Scheduler::choose_group(Sequence* sequence) {
  candidates_.clear();
  const size_t cacheable = num_cacheable_tokens(*sequence);
  prefetch_matches(*sequence, cacheable);
  int64_t least_missing = std::numeric_limits<int64_t>::max();
  int nearest = -1;
  for (int g = 0; g < dp_size(); ++g) {
    Group& group = groups_[g];
    if (!group.admits) continue;
    look_up(group, *sequence, cacheable);
    const int64_t num_missing = num_missing_blocks(group, *sequence);
    if (num_missing <= 0) {
      const auto num_cached = static_cast<int64_t>(group.match.blocks.size()) * options_.kv_block_tokens;
      candidates_.push_back({.group = g, .load = group.load, .num_cached = num_cached});
    } else if (num_missing < least_missing) {
      least_missing = num_missing;
      nearest = g;
    }
  }
  if (candidates_.empty()) {
    if (sequence->reserved_group < 0) sequence->reserved_group = nearest;
    return -1;
  }
  const GroupCapacity capacity{
      .kv_tokens = int64_t{options_.num_kv_blocks} * options_.kv_block_tokens,
      .num_requests = options_.max_running_requests,
  };
  return place(options_.balance, capacity, sequence->num_tokens(), candidates_);
}

// Leaves at least one token to compute, and every prompt position whose logits are still owed.
size_t Scheduler::num_cacheable_tokens(const Sequence& sequence) const {
  if (!options_.prefix_cache || !sequence.request.use_prefix_cache) return 0;
  const int32_t limit = std::min(sequence.num_prompt(), sequence.num_tokens() - 1);
  return sequence.request.prompt_logprobs ? std::min(limit, sequence.num_prompt_logits) : limit;
}

void Scheduler::prefetch_matches(const Sequence& sequence, size_t limit) const {
  if (limit < static_cast<size_t>(options_.kv_block_tokens) || groups_.size() == 1) return;
  const uint64_t hash =
      groups_[0].index.first_hash(sequence.request.cache_salt, std::span(sequence.request.prompt_ids).first(limit));
  for (const Group& group : groups_) {
    if (group.admits && group.match.ordinal != sequence.ordinal) group.index.prefetch_first(hash);
  }
}

void Scheduler::look_up(Group& group, const Sequence& sequence, size_t limit) {
  Match& match = group.match;
  // A full pool would not take it with all of its prompt cached: spares the first of the queue a lookup in every step.
  const auto num_least = group.pool.blocks_for(sequence.num_tokens()) -
                         static_cast<int64_t>(limit / options_.kv_block_tokens) + std::ssize(group.running);
  if (num_least > group.pool.num_free() + group.pool.num_cached()) limit = 0;
  if (match.ordinal == sequence.ordinal && match.version == group.index.version() && match.limit == limit) return;
  match.ordinal = sequence.ordinal;
  match.version = group.index.version();
  match.limit = limit;
  match.blocks.clear();
  if (limit == 0) return;
  group.index.lookup(sequence.request.cache_salt, std::span(sequence.request.prompt_ids).first(limit), &match.blocks);
}

// Whether one who runs is about to compute the very block that the sequence needs next, as with n choices of a prompt:
// a step later it is there to be shared. That one goes on in every step, so the wait is no longer than computing it
// twice.
bool Scheduler::twin_is_ahead(const Group& group, const Sequence& sequence) const {
  const size_t end = (group.match.blocks.size() + 1) * options_.kv_block_tokens;
  if (end > group.match.limit) return false;
  const auto prompt = sequence.request.prompt_ids.begin();
  const auto equal = [&](const Sequence* other, size_t from) {
    return std::equal(prompt + static_cast<int64_t>(from), prompt + static_cast<int64_t>(end),
                      other->request.prompt_ids.begin() + static_cast<int64_t>(from));
  };
  for (const Sequence* other : group.running) {
    if (other->num_computed >= other->num_prompt() || !other->request.use_prefix_cache) continue;
    if (other->request.prompt_ids.size() < end || other->request.cache_salt != sequence.request.cache_salt) continue;
    if (equal(other, end - options_.kv_block_tokens) && equal(other, 0)) return true;
  }
  return false;
}

// All blocks of the prompt at once: a half-computed prompt never waits for blocks. One block stays free for each
// running sequence to grow into, or the newcomer would soon be thrown out again.
int64_t Scheduler::num_missing_blocks(const Group& group, const Sequence& sequence) const {
  const BlockPool& pool = group.pool;
  const auto num_matched = static_cast<int64_t>(group.match.blocks.size());
  const int64_t num_needed = pool.blocks_for(sequence.num_tokens()) - num_matched + std::ssize(group.running);
  int64_t num_available = pool.num_free() + pool.num_cached();
  if (num_available - num_matched >= num_needed) return 0;
  for (const int32_t block : group.match.blocks) num_available -= pool.is_cached(block) ? 1 : 0;
  return num_needed - num_available;
}

void Scheduler::start(int group_index, Sequence* sequence) {
  Group& group = groups_[group_index];
  const int num_blocks = group.pool.blocks_for(sequence->num_tokens());
  sequence->block_table.assign(group.match.blocks.begin(), group.match.blocks.end());
  for (const int32_t block : sequence->block_table) group.pool.retain(block);
  sequence->num_indexed_blocks = static_cast<int32_t>(sequence->block_table.size());
  sequence->num_computed = sequence->num_indexed_blocks * options_.kv_block_tokens;
  const int num_new = num_blocks - sequence->num_indexed_blocks;
  const bool allocated = group.index.make_free(num_new) && group.pool.allocate(num_new, &sequence->block_table);
  MOESAIC_CHECK(allocated);
  // What a preempted sequence finds of its own is no hit.
  if (!sequence->started) sequence->num_cached_tokens = sequence->num_computed;
  waiting_.erase(sequence);
  sequence->started = true;
  sequence->running = true;
  sequence->group = group_index;
  sequence->reserved_group = -1;
  group.running.insert(std::upper_bound(group.running.begin(), group.running.end(), sequence, ServiceOrder()),
                       sequence);
  group.load.kv_tokens = int64_t{group.pool.num_used()} * options_.kv_block_tokens;
  ++group.load.num_requests;
  group.load.prompt_tokens += sequence->num_tokens() - sequence->num_computed;
  group.load.attention_pairs += attention_pairs(sequence->num_computed, sequence->num_tokens());
  // Without a logit row left, no one behind it starts in this step either.
  if (!add_prompt_chunk(group_index, sequence)) group.budget.tokens = 0;
}

}  // namespace moesaic
