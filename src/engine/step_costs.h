// StepCosts: how long a decode step of this machine takes, so that the draft depth can be chosen: time(rows) of the
// model and of one level of the draft module, linear between the measured numbers of rows, and time for each cached row
// that a query meets. Measured once, at the start, by running steps whose results nobody reads. Engine thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/executor.h"

namespace moesaic {

struct StepCostOptions {
  int dp_size = 1;
  int num_kv_blocks = 0;  // of each DP group
  int kv_block_tokens = 64;
  int64_t max_rows = 1;  // of a decode step of one DP group, with drafts
  int64_t vocab_size = 1;
  int64_t context_length = 0;
};

class StepCosts {
 public:
  // Known costs, for tests and simulations: linear in the rows.
  struct Linear {
    double step_ns, row_ns, draft_ns, draft_row_ns, key_ns;
  };
  explicit StepCosts(const Linear& costs);
  // Runs steps of 1, 2, 4, ... rows while no request is open; the cache's rows are overwritten. Bounded in time: what a
  // slow machine does not come to is extrapolated. Errors are the executor's.
  static absl::StatusOr<StepCosts> measure(Executor& executor, const StepCostOptions& options, const Clock& clock);

  // `rows` queries in the largest DP group, which meet `keys` cached rows together.
  double step_ns(double rows, double keys) const { return interpolate(step_, rows) + keys * key_ns_; }
  double draft_level_ns(double rows) const { return interpolate(draft_, rows); }
  std::string to_string() const;  // "step 1: 0.61 + 0.15 ms, 2: 0.70 + 0.17 ms; 0.3 us a key"

 private:
  struct Point {
    double rows, ns;
  };
  StepCosts() = default;
  static double interpolate(const std::vector<Point>& points, double rows);

  std::vector<Point> step_;   // ascending
  std::vector<Point> draft_;  // of one level
  double key_ns_ = 0.0;
};

}  // namespace moesaic
