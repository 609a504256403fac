// StepPlan: what one step does, as a value: the Scheduler makes it, an Executor runs it, tests print it. One GroupPlan
// a DP group; a group without chunks is idle but takes part. A request has at most one chunk in a step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/request.h"

namespace moesaic {

struct PlannedChunk {
  RequestId request_id = 0;
  std::vector<int32_t> token_ids;  // the new tokens; at least one
  int32_t kv_begin = 0;            // rows already cached
  int32_t num_total = 0;           // tokens of the sequence so far, prompt and output, without drafts
  int32_t num_draft = 0;           // the last of token_ids: guesses behind the newest token, to be verified
  // Prompt tokens. A chunk with is_prefill unset and several tokens replays output after a preemption: it takes the
  // path by which those tokens were first computed. No chunk crosses the border.
  bool is_prefill = false;
  bool samples = false;              // the logits of the newest token and of each draft are needed
  bool all_logits = false;           // prompt logprobs: logits of every token of the chunk
  std::vector<int32_t> block_table;  // covers at least kv_begin + token_ids.size() rows

  int32_t num_tokens() const { return static_cast<int32_t>(token_ids.size()); }
  int32_t kv_end() const { return kv_begin + num_tokens(); }
  int32_t num_logit_rows() const { return all_logits ? num_tokens() : (samples ? 1 + num_draft : 0); }
};

struct GroupPlan {
  std::vector<PlannedChunk> chunks;  // decode chunks (the newest token and its drafts) first
  int32_t num_prefill_tokens = 0;    // prefill and replay
  int32_t num_decode_tokens = 0;     // with drafts
  std::vector<RequestId> preempted;  // lost their blocks while this step was planned
};

struct StepPlan {
  int64_t step_id = 0;
  std::vector<GroupPlan> groups;  // [dp_size]
  bool empty() const {
    for (const GroupPlan& group : groups) {
      if (!group.chunks.empty()) return false;
    }
    return true;
  }
  // One line a group, for scenario tests: "step 3 dp0: decode r1@5, prefill r2[0,16) of 40, preempt r9".
  std::string to_string() const;
};

}  // namespace moesaic
