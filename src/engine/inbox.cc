#include "engine/inbox.h"

#include <chrono>

namespace moesaic {

absl::Status Inbox::submit(Request request, OutputSink sink, int64_t now_ns) {
  {
    std::lock_guard lock(mutex_);
    if (!closed_.ok()) return closed_;
    const int num_queued = static_cast<int>(open_.size()) - num_past_queue_.load();
    if (num_queued >= max_queued_) {
      return absl::ResourceExhaustedError(str_cat("the queue is full: ", num_queued, " requests wait and at most ",
                                                  max_queued_, " may (max_queued_requests)"));
    }
    if (!open_.emplace(request.id, false).second) {
      return absl::AlreadyExistsError(str_cat("request id ", request.id, " is already open"));
    }
    submissions_.push_back({std::move(request), std::move(sink), now_ns});
    has_news_.store(true);
  }
  arrived_.notify_one();
  return absl::OkStatus();
}

void Inbox::abort(RequestId id) {
  {
    std::lock_guard lock(mutex_);
    const auto found = open_.find(id);
    if (found == open_.end() || found->second) return;
    found->second = true;
    aborts_.push_back(id);
    has_news_.store(true);
  }
  arrived_.notify_one();
}

void Inbox::abort_all() {
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, aborted] : open_) {
      if (!aborted) aborts_.push_back(id);
      aborted = true;
    }
    has_news_.store(true);
  }
  arrived_.notify_one();
}

void Inbox::close(const absl::Status& reason) {
  std::lock_guard lock(mutex_);
  if (closed_.ok()) closed_ = reason;
}

void Inbox::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    has_news_.store(true);
  }
  arrived_.notify_one();
}

bool Inbox::wait_until_empty(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  return emptied_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return open_.empty(); });
}

int Inbox::num_open() const {
  std::lock_guard lock(mutex_);
  return static_cast<int>(open_.size());
}

void Inbox::take(bool wait, Batch* batch) {
  batch->submissions.clear();
  batch->aborts.clear();
  if (!wait && !has_news_.load()) return;
  std::unique_lock lock(mutex_);
  if (wait) arrived_.wait(lock, [&] { return has_news_.load(); });
  has_news_.store(stop_);
  batch->stop = stop_;
  for (Submission& submission : submissions_) batch->submissions.push_back(std::move(submission));
  submissions_.clear();
  batch->aborts.swap(aborts_);
}

void Inbox::ended(RequestId id) {
  std::lock_guard lock(mutex_);
  open_.erase(id);
  num_past_queue_.fetch_sub(1);
  if (open_.empty()) emptied_.notify_all();
}

void Inbox::set_num_past_queue(int count) {
  num_past_queue_.store(count);
}

}  // namespace moesaic
