#include "cli/engine_run.h"

#include <atomic>
#include <memory>
#include <utility>

namespace moesaic {
namespace {

constexpr size_t kQueueLimit = 1 << 20;  // outputs; one a token at most
constexpr int64_t kPollMs = 100;

std::atomic<RequestId> g_next_id{1};

// Holds what comes for `sink` until the request ends.
OutputSink collected(OutputSink sink) {
  return [sink = std::move(sink), whole = std::make_shared<RequestOutput>()](RequestOutput&& output) {
    const auto append = [](auto& all, const auto& part) { all.insert(all.end(), part.begin(), part.end()); };
    append(whole->text, output.text);
    append(whole->token_ids, output.token_ids);
    append(whole->logprobs, output.logprobs);
    append(whole->prompt_logprobs, output.prompt_logprobs);
    if (output.finish_reason == FinishReason::kNone) return;
    std::swap(output.text, whole->text);
    std::swap(output.token_ids, whole->token_ids);
    std::swap(output.logprobs, whole->logprobs);
    std::swap(output.prompt_logprobs, whole->prompt_logprobs);
    sink(std::move(output));
  };
}

}  // namespace

absl::Status run_requests(Engine& engine, std::vector<Request> requests, const EngineRunOptions& options,
                          const std::function<void(size_t index, const RequestOutput&)>& on_output) {
  // Shared with the sinks: an output may still come while an error returns from here.
  const auto outputs = std::make_shared<BoundedQueue<RequestOutput>>(kQueueLimit);
  const RequestId first_id = g_next_id.fetch_add(requests.size());
  size_t next = 0;
  size_t num_ended = 0;
  bool stopping = false;
  const auto abort_all = [&] {
    for (size_t i = 0; i < next; ++i) engine.abort(first_id + i);
  };
  while (num_ended < requests.size()) {
    while (!stopping && next < requests.size() && next - num_ended < static_cast<size_t>(options.max_open)) {
      requests[next].id = first_id + next;
      OutputSink sink = [outputs](RequestOutput output) { (void)outputs->try_push(std::move(output)); };
      if (!options.streams) sink = collected(std::move(sink));
      if (absl::Status status = engine.submit(requests[next], std::move(sink)); !status.ok()) {
        abort_all();
        return annotate(status, str_cat("request ", next + 1));
      }
      ++next;
    }
    if (!stopping && options.stop_wanted && options.stop_wanted()) {
      stopping = true;
      abort_all();
    }
    if (stopping && num_ended == next) return absl::OkStatus();
    const std::optional<RequestOutput> output = outputs->pop_for(kPollMs);
    if (!output) {
      if (!engine.healthy()) return absl::InternalError("the engine is dead");
      continue;
    }
    on_output(output->id - first_id, *output);
    if (output->finish_reason != FinishReason::kNone) ++num_ended;
    if (output->finish_reason == FinishReason::kError) {
      abort_all();
      return output->error;
    }
  }
  return absl::OkStatus();
}

}  // namespace moesaic
