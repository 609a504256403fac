// Inbox: where callers and the engine thread meet. Knows which request ids are open, from submit() until the engine has
// called the last sink, and bounds how many wait and the tokens of their prompts. Thread-safe; the lock is never held
// while a sink runs, and a step in which nothing arrived and nothing ended does not take it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/engine.h"

namespace moesaic {

class Inbox {
 public:
  struct Submission {
    Request request;
    OutputSink sink;
    int64_t queued_ns = 0;
  };
  // What has come since the last take(), in an order that lets every abort find its request.
  struct Batch {
    std::vector<Submission> submissions;
    std::vector<RequestId> aborts;
    bool stop = false;
  };

  Inbox(int max_queued, int64_t max_prompt_tokens) : max_queued_(max_queued), max_prompt_tokens_(max_prompt_tokens) {}

  // Callers.
  absl::Status submit(Request request, OutputSink sink, int64_t now_ns);
  void abort(RequestId id);
  void abort_all();
  // Later submissions get `reason`; the first reason stays.
  void close(const absl::Status& reason);
  void stop();
  // True when no request is open.
  bool wait_until_empty(int64_t timeout_ms);
  int num_open() const;

  // Engine thread. With `wait`, returns when there is something; sleeps until then.
  void take(bool wait, Batch* batch);
  // Of a request that set_num_past_queue() counted.
  void ended(RequestId id);
  // Open requests that run or are about to end: not waiting.
  void set_num_past_queue(int count);

 private:
  struct Open {
    int64_t prompt_tokens;
    bool abort_asked = false;
  };

  const int max_queued_;
  const int64_t max_prompt_tokens_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;
  std::condition_variable emptied_;
  std::deque<Submission> submissions_;
  std::vector<RequestId> aborts_;
  std::unordered_map<RequestId, Open> open_;
  int64_t prompt_tokens_ = 0;           // of all in open_
  std::atomic<int> num_past_queue_{0};  // written by the engine thread
  bool stop_ = false;
  std::atomic<bool> has_news_{false};  // something waits for take(); written with the lock
  absl::Status closed_;
};

}  // namespace moesaic
