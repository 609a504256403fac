#include "base/clock.h"

#include <chrono>

namespace moesaic {
namespace {

class RealClock final : public Clock {
 public:
  int64_t now_ns() const override {
    return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
  int64_t unix_s() const override {
    return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
};

}  // namespace

const Clock& real_clock() {
  static const RealClock clock;
  return clock;
}

}  // namespace moesaic
