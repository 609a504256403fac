// queue_check: one instance of a deployment under its share of the traffic, in virtual time: the simulator, with the
// engine that `serve` would make of the instance's settings and the steps of the cost model. What means leave out
// shows: bursts, prompts and sequences that share steps, DP groups that wait for the fullest, a full KV cache. Pure.
//
// The roles are simulated one by one. A prefill instance gets requests of one token. A decode instance gets requests
// whose prompts are computed, and starts with those that are in flight on average (Little's law), each at a random
// place of its answer, so no warm-up is cut off. Of its DP groups, which are all alike, as many run as the token budget
// of a check allows; a step takes as long as that of the fullest of them.
#pragma once

#include <cstdint>

#include "plan/planner.h"

namespace moesaic {

struct QueueFigures {
  int64_t num_requests = 0;  // whose latency counts
  int num_groups = 0;        // DP groups that were simulated
  // Prefill: from the arrival to the first token. Decode: per token from the first on, with the wait for a place.
  double p50_ms = 0, p99_ms = 0;
  double slo_ms = 0;           // at the percentile that was asked for
  double fill = 0;             // of a step's places (decode) or tokens (prefill), mean
  double served_share = 1;     // of what arrives; below 1 the queue grows without end
  double preempted_share = 0;  // of the requests that were in flight or arrived: how often one lost its KV cache
};

// instance: requests_per_s is the share of one instance. slo_percent: 0 to 100. Same arguments, same figures. Errors:
// an engine that refuses the requests, with its message.
absl::StatusOr<QueueFigures> check_queue(const LayoutCandidate& candidate, const Traffic& share, double slo_percent,
                                         uint64_t seed);

}  // namespace moesaic
