// Sequence: the scheduler's state of one request. Owned by the Scheduler; the engine reads it between apply() and the
// next plan(). Tokens 0 .. num_tokens-1 are the prompt followed by the output; rows 0 .. num_computed-1 of them are in
// the KV pool. Preemption sets num_computed back to 0 and keeps everything else, so that the output goes on where it
// was.
#pragma once

#include <cstdint>
#include <vector>

#include "sched/request.h"

namespace moesaic {

struct Sequence {
  Request request;
  std::vector<int32_t> output_ids;
  std::vector<int32_t> block_table;
  int group = 0;
  uint64_t ordinal = 0;           // order of arrival in the scheduler
  int32_t num_computed = 0;       // tokens whose rows are in the pool
  int32_t num_prompt_logits = 0;  // prompt positions whose logits were already given out
  int32_t num_preemptions = 0;
  bool running = false;  // has its blocks; otherwise it waits
  bool in_step = false;  // between plan() and apply(): its blocks are being written
  bool ended = false;    // finished while in the step; goes with apply()

  int32_t num_prompt() const { return static_cast<int32_t>(request.prompt_ids.size()); }
  int32_t num_tokens() const { return num_prompt() + static_cast<int32_t>(output_ids.size()); }
  int32_t token(int32_t i) const { return i < num_prompt() ? request.prompt_ids[i] : output_ids[i - num_prompt()]; }
  // Only its newest output token is missing from the pool.
  bool is_decoding() const { return num_computed >= num_prompt() && num_tokens() - num_computed == 1; }
};

// Order of service: higher priority first, then first come.
struct ServiceOrder {
  bool operator()(const Sequence* a, const Sequence* b) const {
    if (a->request.priority != b->request.priority) return a->request.priority > b->request.priority;
    return a->ordinal < b->ordinal;
  }
};

}  // namespace moesaic
