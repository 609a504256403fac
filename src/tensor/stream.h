// Stream: where operations run, in order. On CPU it borrows the rank's ThreadPool and operations finish before they
// return; on CUDA it will hold the stream handle. One owner thread.
#pragma once

#include "base/thread.h"

namespace moesaic {

class Stream {
 public:
  explicit Stream(ThreadPool& pool) : pool_(&pool) {}
  ThreadPool& pool() const { return *pool_; }

 private:
  ThreadPool* pool_;
};

}  // namespace moesaic
