// OutputInbox: where the outputs of one HTTP request's choices wait for the I/O thread. The engine thread pushes and
// never blocks; a reader that falls behind by more than max_bytes makes it overflow, which ends that request alone.
// Shared by the request's sinks and its job; thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace moesaic {

class OutputInbox {
 public:
  struct Item {
    size_t choice = 0;
    RequestOutput output;
  };

  // `wake` is called (under the lock, so never after close()) when the inbox stops being empty or overflows. It must
  // only post.
  OutputInbox(size_t max_bytes, std::function<void()> wake) : max_bytes_(max_bytes), wake_(std::move(wake)) {}

  void push(size_t choice, RequestOutput output);
  std::vector<Item> take();
  bool overflowed() const;
  // Later outputs are dropped.
  void close();

 private:
  const size_t max_bytes_;
  mutable std::mutex mutex_;
  std::function<void()> wake_;
  std::vector<Item> items_;
  size_t bytes_ = 0;
  bool overflowed_ = false;
};

}  // namespace moesaic
