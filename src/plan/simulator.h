// simulate: a load through the production Engine in virtual time. The Engine's own thread, Scheduler, placement, prefix
// cache, preemption and draft depth run as they are; only the Executor (SimExecutor) and the Clock are replaced, so
// what is simulated cannot differ from the product. Same traffic, options and seed: same result, byte for byte.
//
// Virtual time passes inside SimExecutor and, when nothing is open, up to the next arrival; both happen on the engine
// thread. Requests that are due during a step are submitted at their time, and the next step may have them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"
#include "plan/sim_timeline.h"
#include "plan/step_timer.h"
#include "plan/traffic.h"

namespace moesaic {

struct SimOptions {
  // Drafts need a synthetic_acceptance. Vocabulary, end tokens, step table and hooks are the simulator's own.
  EngineOptions engine;
  uint64_t seed = 0;            // of prompts and acceptance
  int64_t max_concurrency = 0;  // requests open at once; one that waits for a place starts late. 0 = no limit
  bool record_trace = false;    // StepTrace's timeline
  std::function<void(int64_t num_ended, int64_t num_requests)> progress;  // engine thread; may be empty
};

// What a client would have seen. Times from the start of the run.
struct SimRecord {
  int64_t start_ns = 0;  // it was sent
  int64_t first_ns = 0;  // its first token came
  int64_t last_ns = 0;   // its last one
  int32_t num_input = 0;
  int32_t num_output = 0;  // 0: refused or failed
  int32_t num_cached = 0;

  bool ok() const { return num_output > 0; }
};

// Sums over all steps.
struct SimTotals {
  int64_t num_steps = 0;
  int64_t decode_tokens = 0;                     // computed, with drafts and replays
  int64_t prefill_tokens = 0;                    // computed: without cached ones, with those computed again
  double busy_s = 0.0;                           // inside steps
  double mean_step_tokens = 0.0;                 // of a group, summed over steps ...
  double max_step_tokens = 0.0;                  // ... and of the largest group
  double mean_kv_rows = 0.0, max_kv_rows = 0.0;  // the same of the rows that sequences hold
  double max_kv_use = 0.0;
  double max_queued = 0.0;
};

struct SimResult {
  std::vector<SimRecord> records;         // in the order of the traffic
  std::map<std::string, int64_t> errors;  // message of a refusal or failure -> how often
  double duration_s = 0.0;                // from the first request to the last end
  SimTotals totals;
  EngineStats stats;  // at the end
  SimTimeline timeline;
  std::string trace_json;  // with record_trace; holds the first steps and requests where not all fit
};

// What the engine gets for the request at `index` of the traffic; without its time.
Request sim_request(const SimOptions& options, const TrafficRequest& from, size_t index);

// Blocks until all requests have ended. Errors: no traffic, drafts without an acceptance or without times, a dead
// engine.
absl::StatusOr<SimResult> simulate(const SimOptions& options, std::span<const TrafficRequest> traffic,
                                   const StepTimer& timer);

}  // namespace moesaic
