// Clock: the only source of time, so that a simulated clock can stand in for the real one. Any thread.
#pragma once

#include <cstdint>

namespace moesaic {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() const = 0;  // monotonic; the origin is arbitrary
  virtual int64_t unix_s() const = 0;  // seconds since 1970, for fields such as "created"
};

// The machine's clock. Lives for the whole process.
const Clock& real_clock();

// Moves only when told to. Not thread-safe.
class ManualClock final : public Clock {
 public:
  int64_t now_ns() const override { return now_ns_; }
  int64_t unix_s() const override { return now_ns_ / 1'000'000'000; }
  void advance_ns(int64_t ns) { now_ns_ += ns; }

 private:
  int64_t now_ns_ = 0;
};

}  // namespace moesaic
