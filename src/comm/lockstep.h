// The lockstep record: once per step every rank says what it is about to do, and decides from all records what the step
// needs to have in common. A rank that disagrees is named within the step. A rank with zero tokens takes part.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/all_to_all.h"
#include "comm/communicator.h"

namespace moesaic {

struct LockstepRecord {
  int64_t step_id = 0;             // must agree
  int64_t expert_map_version = 0;  // must agree
  int32_t num_prefill_tokens = 0;
  int32_t num_decode_tokens = 0;
  int32_t draft_depth = 0;  // must agree
  int32_t stop = 0;         // 1 = this rank was told to stop
};

struct LockstepDecision {
  // Normal as soon as one rank has prefill tokens or more tokens than the low-latency buffers take.
  A2aMode a2a_mode = A2aMode::kLowLatency;
  int64_t max_tokens = 0;  // of any rank
  int64_t total_tokens = 0;
  bool stop = false;
};

// Exchanges the records. Error INTERNAL: "rank 3 is at step 7, rank 0 at step 8 (field step_id)".
absl::StatusOr<LockstepDecision> lockstep(Communicator& world, const LockstepRecord& mine,
                                          int64_t max_low_latency_tokens);

}  // namespace moesaic
