// Runs requests through an Engine from a command's thread: the outputs of all of them come back through one bounded
// queue. One thread; the Engine outlives it.
#pragma once

#include <functional>
#include <vector>

#include "base/bounded_queue.h"
#include "engine/engine.h"

namespace moesaic {

struct EngineRunOptions {
  int max_open = 1;                   // requests in flight
  std::function<bool()> stop_wanted;  // asked between outputs; may be empty. Open requests are then aborted.
  bool streams = false;  // outputs come as they are made; else one a request, at its end, and no thread wakes before
};

// `on_output` sees every output with the index of its request, in the order in which the engine made them. Ids are
// given here, unique in the process. Returns when all have ended. Errors: one that submit() refuses, one that ends with
// kError, a dead engine.
absl::Status run_requests(Engine& engine, std::vector<Request> requests, const EngineRunOptions& options,
                          const std::function<void(size_t index, const RequestOutput&)>& on_output);

}  // namespace moesaic
