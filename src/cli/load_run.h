// run_load: sends requests when they are due, at most so many at once, and records what comes back.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/load_record.h"
#include "serve/http/sse_client.h"

namespace moesaic {

struct LoadRequest {
  std::string body;    // JSON
  double due_s = 0.0;  // from the start; ascending
};

struct LoadRunOptions {
  std::string endpoint;         // the path that all go to
  int64_t max_concurrency = 0;  // 0: no limit. A request that waits for a place starts late; its times begin then.
  std::function<void(int64_t num_done, int64_t num_failed)> progress;  // often; may be empty
};

struct LoadResult {
  std::vector<RequestRecord> records;  // in the order of the requests
  double duration_s = 0.0;             // from the first request's sending to the last one's end
};

// Called by one thread; returns when every request has ended, which the client's deadlines bound.
LoadResult run_load(SseClient& client, const std::vector<LoadRequest>& requests, const LoadRunOptions& options,
                    const Clock& clock = real_clock());

}  // namespace moesaic
