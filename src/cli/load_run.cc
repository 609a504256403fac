#include "cli/load_run.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/bounded_queue.h"
#include "base/check.h"

namespace moesaic {
namespace {

constexpr int64_t kPollMs = 100;

}  // namespace

LoadResult run_load(SseClient& client, const std::vector<LoadRequest>& requests, const LoadRunOptions& options,
                    const Clock& clock) {
  const auto count = static_cast<int64_t>(requests.size());
  std::vector<StreamRecorder> recorders(count);  // the client's until their index is in `ended`
  BoundedQueue<int64_t> ended(count);
  int64_t next = 0, num_open = 0, num_done = 0, num_failed = 0;
  const int64_t begin_ns = clock.now_ns();
  const auto send = [&](int64_t index) {
    StreamRecorder& recorder = recorders[index];
    client.post(options.endpoint, requests[index].body,
                {.on_start = [&recorder](int64_t now_ns) { recorder.on_start(now_ns); },
                 .on_event = [&recorder](std::string_view data, int64_t now_ns) { recorder.on_event(data, now_ns); },
                 .on_end =
                     [&recorder, &ended, index](HttpResult result, int64_t) {
                       recorder.on_end(result.transport, result.status, result.body);
                       MOESAIC_CHECK(ended.try_push(int64_t{index}));
                     }});
    ++num_open;
  };
  const auto take = [&](int64_t index) {
    --num_open;
    ++num_done;
    num_failed += recorders[index].record().ok() ? 0 : 1;
  };
  while (num_done < count) {
    const auto has_place = [&] { return options.max_concurrency == 0 || num_open < options.max_concurrency; };
    const double now_s = static_cast<double>(clock.now_ns() - begin_ns) * 1e-9;
    while (next < count && requests[next].due_s <= now_s && has_place()) send(next++);
    int64_t wait_ms = kPollMs;
    if (next < count && has_place()) {
      const double until_due_ms = std::floor((requests[next].due_s - now_s) * 1e3);
      wait_ms = std::clamp<int64_t>(static_cast<int64_t>(std::min(until_due_ms, 1e6)), 1, kPollMs);
    }
    std::optional<int64_t> index = ended.pop_for(wait_ms);
    for (; index; index = ended.try_pop()) take(*index);
    if (options.progress) options.progress(num_done, num_failed);
  }
  LoadResult result{.duration_s = static_cast<double>(clock.now_ns() - begin_ns) * 1e-9};
  for (const StreamRecorder& recorder : recorders) result.records.push_back(recorder.record());
  return result;
}

}  // namespace moesaic
