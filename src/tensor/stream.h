// Stream: where operations run, in order. On CPU it borrows the rank's ThreadPool and operations finish before they
// return; on CUDA it will hold the stream handle. One owner thread.
#pragma once

#include "base/thread.h"

namespace moesaic {

// How linears take f32 activations where the CPU multiplies bf16 tiles: kExact as they are, kShort with 16 significant
// bits (within 2^-17; other engines keep 8), which is a third less work. Served models choose kShort
// (model/deepseek.cc).
enum class LinearMath { kExact, kShort };

class Stream {
 public:
  explicit Stream(ThreadPool& pool, LinearMath linear_math = LinearMath::kExact)
      : pool_(&pool), linear_math_(linear_math) {}
  ThreadPool& pool() const { return *pool_; }
  LinearMath linear_math() const { return linear_math_; }

 private:
  ThreadPool* pool_;
  LinearMath linear_math_;
};

}  // namespace moesaic
