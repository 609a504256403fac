// Measures the scheduler and the prefix index: `moesaic bench sched`. One figure a line, as text or as JSON
// {name, value, unit, ratio, baseline, hash, command}; value is the median, the hash is of the plans or of the blocks
// found, equal on every machine.
#pragma once

#include <functional>
#include <string>

namespace moesaic {

struct SchedBenchOptions {
  bool json = false;
  bool small = false;  // a tenth of the steps: for tests
  std::string command = "moesaic bench sched";
};

// sched.plan_us, sched.apply_us: a step of 256 running requests while 2,000 wait, one in 20 of the steps ending several
// and starting others. kv.prefix_lookup_us: a prompt of 128k tokens among four such in the index.
void run_sched_bench(const SchedBenchOptions& options, const std::function<void(const std::string& line)>& print);

}  // namespace moesaic
