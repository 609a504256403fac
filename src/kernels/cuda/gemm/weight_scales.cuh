// The weight scales that a math warp needs, k group by k group: lane l of a warp holds that of every 32nd group, the
// next 32 are on their way while these are used, so that no group waits for memory.
#pragma once

#include <cstdint>

namespace moesaic::cuda {

class WeightScales {
 public:
  // Groups [begin, end) of `row`, one row of [.., k / 128] scales. All lanes of the warp call, here and below.
  __device__ void start(const float* row, int begin, int end) {
    row_ = row;
    base_ = begin;
    end_ = end;
    current_ = load(begin);
    next_ = load(begin + 32);
  }

  // Between 32 groups and the next 32: apart from get, so that a loop over 32 has no question in it.
  __device__ void advance() {
    base_ += 32;
    current_ = next_;
    next_ = load(base_ + 32);
  }

  // Of the i-th group from `begin`, of the 32 at hand.
  __device__ float get(int i) const { return __shfl_sync(0xffffffff, current_, i); }

 private:
  __device__ float load(int first) const {
    const int group = first + static_cast<int>(threadIdx.x % 32);
    return group < end_ ? __ldg(row_ + group) : 0.0f;
  }

  const float* row_ = nullptr;
  int base_ = 0, end_ = 0;
  float current_ = 0.0f, next_ = 0.0f;
};

}  // namespace moesaic::cuda
