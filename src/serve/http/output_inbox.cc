#include "serve/http/output_inbox.h"

namespace moesaic {
namespace {

// What an output will roughly be on the wire: an SSE chunk costs a few hundred bytes around its text.
size_t wire_bytes(const RequestOutput& output) {
  size_t bytes = 256 + output.text.size();
  for (const TokenLogprob& token : output.logprobs) bytes += 64 * (1 + token.top.size());
  for (const TokenLogprob& token : output.prompt_logprobs) bytes += 64 * (1 + token.top.size());
  return bytes;
}

}  // namespace

void OutputInbox::push(size_t choice, RequestOutput output) {
  const std::lock_guard lock(mutex_);
  if (wake_ == nullptr || overflowed_) return;
  const size_t bytes = wire_bytes(output);
  const bool was_empty = items_.empty();
  if (!was_empty && bytes_ + bytes > max_bytes_) {  // one large output alone (prompt logprobs) is no slow reader
    overflowed_ = true;
    items_.clear();
  } else {
    bytes_ += bytes;
    items_.push_back({choice, std::move(output)});
  }
  if (was_empty || overflowed_) wake_();
}

std::vector<OutputInbox::Item> OutputInbox::take() {
  const std::lock_guard lock(mutex_);
  bytes_ = 0;
  return std::exchange(items_, {});
}

bool OutputInbox::overflowed() const {
  const std::lock_guard lock(mutex_);
  return overflowed_;
}

void OutputInbox::close() {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
  items_.clear();
}

}  // namespace moesaic
