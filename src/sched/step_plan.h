// StepPlan: what one step does, as a value: the Scheduler makes it, an Executor runs it, tests print it. One GroupPlan
// a DP group; a group without chunks is idle but takes part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sched/request.h"

namespace moesaic {

struct PlannedChunk {
  RequestId request_id = 0;
  std::vector<int32_t> token_ids;  // the new tokens
  int32_t kv_begin = 0;            // rows already cached
  bool is_prefill = false;
  bool samples = false;              // the last token's logits are needed
  bool all_logits = false;           // prompt logprobs: logits of every token of the chunk
  std::vector<int32_t> block_table;  // covers kv_begin + token_ids.size()
};

struct GroupPlan {
  std::vector<PlannedChunk> chunks;  // decode chunks first
  int32_t num_prefill_tokens = 0;
  int32_t num_decode_tokens = 0;
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
  // One line a chunk, for scenario tests: "step 3 dp0: decode r1@5, prefill r2[0,16) of 40".
  std::string to_string() const;
};

}  // namespace moesaic
