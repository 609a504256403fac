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
    const auto prompt_tokens = static_cast<int64_t>(request.prompt_ids.size());
    if (!open_.empty() && prompt_tokens_ + prompt_tokens > max_prompt_tokens_) {
      return absl::ResourceExhaustedError(str_cat("the queue is full: the prompts of ", open_.size(),
                                                  " open requests have ", prompt_tokens_, " tokens, this one ",
                                                  prompt_tokens, ", and ", max_prompt_tokens_, " fit together"));
    }
    if (!open_.emplace(request.id, Open{prompt_tokens}).second) {
      return absl::AlreadyExistsError(str_cat("request id ", request.id, " is already open"));
    }
    prompt_tokens_ += prompt_tokens;
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
    if (found == open_.end() || found->second.abort_asked) return;
    found->second.abort_asked = true;
    aborts_.push_back(id);
    has_news_.store(true);
  }
  arrived_.notify_one();
}

void Inbox::abort_all() {
  {
    std::lock_guard lock(mutex_);
    for (auto& [id, open] : open_) {
      if (!open.abort_asked) aborts_.push_back(id);
      open.abort_asked = true;
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
  const auto found = open_.find(id);
  if (found != open_.end()) {
    prompt_tokens_ -= found->second.prompt_tokens;
    open_.erase(found);
  }
  num_past_queue_.fetch_sub(1);
  if (open_.empty()) emptied_.notify_all();
}

void Inbox::set_num_past_queue(int count) {
  num_past_queue_.store(count);
}

}  // namespace moesaic
