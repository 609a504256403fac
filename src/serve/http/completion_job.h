// CompletionJob: one completion request on its way through the engine: submits its choices, turns their outputs into
// the HTTP answer. submit() runs once on any thread; poll(), expire() and cancel() on the I/O thread. The engine and
// the model outlive it; its sinks keep what they need alive.
//
//   job->submit(wake);
//   on wake: job->poll(&bytes); write bytes when job->status() is not 0; until job->finished().
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "serve/http/choice_writer.h"
#include "serve/http/openai_response.h"
#include "serve/http/output_inbox.h"
#include "serve/http/prepared_request.h"
#include "serve/http/server_metrics.h"

namespace moesaic {

class CompletionJob {
 public:
  struct Options {
    PreparedRequest prepared;
    ServedModel model;
    std::shared_ptr<ServerMetrics> metrics;
    std::atomic<RequestId>* next_request_id = nullptr;  // of the engine
    size_t max_buffer_bytes = 1 << 20;                  // of a stream
    int64_t arrival_ns = 0;
    const Clock* clock = nullptr;
  };
  explicit CompletionJob(Options options);
  ~CompletionJob();  // cancel()
  CompletionJob(const CompletionJob&) = delete;
  CompletionJob& operator=(const CompletionJob&) = delete;

  // Queues all choices or none. `wake` comes from the engine thread (or from here) and must only post.
  absl::Status submit(std::function<void()> wake);
  // Takes what has come; appends to *body what can be sent: SSE events, or the whole answer at its end.
  void poll(std::string* body);
  // Ends the job with an error; what is left to send is appended.
  void fail(const absl::Status& status, std::string* body);
  // The client is gone: aborts what still runs. Idempotent.
  void cancel();

  int status() const { return status_; }  // HTTP; 0 until it is decided
  bool finished() const { return finished_; }
  bool streams() const { return stream_ && status_ == 200; }  // the body is a text/event-stream
  bool overflowed() const { return inbox_ && inbox_->overflowed(); }

 private:
  struct Choice {
    RequestId id = 0;
    size_t prompt = 0;
    bool done = false;
    int64_t output_tokens = 0;
    std::unique_ptr<ChoiceWriter> writer;
  };

  void handle(size_t index, RequestOutput output, std::string* body);
  void end_stream(std::string* body);
  void append_event(std::string_view choices, std::string* body) const;
  Usage usage() const;

  const PreparedRequest prepared_;
  const ServedModel model_;
  const std::shared_ptr<ServerMetrics> metrics_;
  std::atomic<RequestId>* const next_request_id_;
  const size_t max_buffer_bytes_;
  const int64_t arrival_ns_;
  const Clock& clock_;
  const bool stream_;
  std::string start_;  // of every chunk
  std::shared_ptr<OutputInbox> inbox_;
  std::vector<Choice> choices_;
  std::vector<int64_t> prompt_cached_tokens_;
  size_t num_open_ = 0;
  int status_ = 0;
  bool finished_ = false;
};

}  // namespace moesaic
