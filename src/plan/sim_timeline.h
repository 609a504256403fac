// SimTimeline: what an instance did over time, in a bounded number of equal intervals: when a run outgrows them, each
// two become one. One thread.
#pragma once

#include <cstdint>
#include <vector>

namespace moesaic {

// An instance during one step.
struct SimStep {
  int64_t begin_ns = 0;  // from the start of the run
  int64_t duration_ns = 0;
  double num_running = 0.0;  // sequences that the step computes, of all DP groups
  double num_queued = 0.0;
  double kv_use = 0.0;         // share of all KV blocks that sequences hold
  double decode_tokens = 0.0;  // of all groups, as the next
  double prefill_tokens = 0.0;
  double token_balancedness = 1.0;  // mean over the DP groups' tokens, over the largest
};

class SimTimeline {
 public:
  struct Interval {
    double busy_s = 0.0;  // time inside steps; 0: the means below are 0 too
    double num_steps = 0.0;
    double num_running = 0.0;  // this and what follows: means over the interval's busy time ...
    double num_queued = 0.0;
    double kv_use = 0.0;
    double token_balancedness = 0.0;
    double decode_tokens = 0.0;  // ... and sums
    double prefill_tokens = 0.0;
  };

  void add(const SimStep& step);
  double interval_s() const { return static_cast<double>(width_ns_) * 1e-9; }
  // From the start of the run on, without gaps.
  std::vector<Interval> intervals() const;

 private:
  void halve();

  int64_t width_ns_ = 1'000'000;
  std::vector<Interval> intervals_;  // means are still sums weighted by time
};

}  // namespace moesaic
