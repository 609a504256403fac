// StopSignals: SIGINT and SIGTERM for the commands that run long. While nothing needs draining (loading) a signal ends
// the process at once with exit code 0; afterwards the first one is reported by wait() or stop_wanted(), and a second
// one ends the process at once with 130. One object a process; any thread may ask.
#pragma once

#include <cstdint>

namespace moesaic {

class StopSignals {
 public:
  StopSignals();
  // From now on a signal is for wait().
  void expect_drain();
  bool stop_wanted() const;
  // True when a signal came within the time.
  bool wait(int64_t timeout_ms) const;
};

}  // namespace moesaic
