// Sequence: the scheduler's state of one request. Owned by the Scheduler; the engine reads it between apply() and the
// next plan(). Tokens 0 .. num_tokens-1 are the prompt followed by the output; rows 0 .. num_computed-1 of them are in
// the KV pool. Preemption sets num_computed back to 0 and keeps everything else, so that the output goes on where it
// was.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "sched/request.h"

namespace moesaic {

struct Sequence {
  // What every step looks at stands together, up to the first fields of `request`: with many sequences, time goes into
  // cache misses.
  std::vector<int32_t> output_ids;
  std::vector<int32_t> block_table;
  std::vector<int32_t> draft_ids;  // guesses for the next step
  int group = -1;                  // of the blocks that it has or had
  int reserved_group = -1;         // while it waits without fitting anywhere: takes nobody behind it in the queue
  uint64_t ordinal = 0;            // order of arrival in the scheduler
  int64_t service_key = 0;         // see ServiceOrder
  int64_t queued_step = 0;         // when it began to wait
  int32_t num_computed = 0;        // tokens whose rows are in the pool
  int32_t num_indexed_blocks = 0;  // the first of block_table, shared through the prefix index
  int32_t num_cached_tokens = 0;   // prompt tokens that were found there when it first started
  int32_t num_prompt_logits = 0;   // prompt positions whose logits were already given out
  int32_t num_preemptions = 0;
  int32_t num_draft_in_step = 0;
  bool started = false;        // has had blocks
  bool running = false;        // has its blocks; otherwise it waits
  bool in_step = false;        // between plan() and apply(): its blocks are being written
  bool awaits_result = false;  // inside apply()
  bool ended = false;          // finished while in the step; goes with apply()
  Request request;

  int32_t num_prompt() const { return static_cast<int32_t>(request.prompt_ids.size()); }
  int32_t num_tokens() const { return num_prompt() + static_cast<int32_t>(output_ids.size()); }
  int32_t token(int32_t i) const { return i < num_prompt() ? request.prompt_ids[i] : output_ids[i - num_prompt()]; }
  // Only its newest output token is missing from the pool.
  bool is_decoding() const { return num_computed >= num_prompt() && num_tokens() - num_computed == 1; }
  int64_t deadline_ns() const {
    return started ? request.deadline_ns : std::min(request.deadline_ns, request.queue_deadline_ns);
  }
};

// From the begin of a Sequence: what stands together.
inline constexpr size_t kHotSequenceBytes = 256;

// Order of service. service_key is the step of arrival, one priority_aging_steps earlier for each level of priority: a
// higher priority overtakes who came that much before, and nobody else, so that no request starves.
struct ServiceOrder {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->service_key != b->service_key) return a->service_key < b->service_key;
    return a->ordinal < b->ordinal;
  }
};

}  // namespace moesaic
