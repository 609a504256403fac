// Measures expert placement: `moesaic bench experts`. One figure a line, as text or as JSON
// {name, value, unit, ratio, baseline, hash, command}; the hash is of the placements, equal on every machine.
#pragma once

#include <functional>
#include <string>

namespace moesaic {

struct ExpertsBenchOptions {
  bool json = false;
  bool small = false;  // 5 loads instead of 200, few repetitions: for tests
  int num_threads = 1;
  std::string command = "moesaic bench experts";
};

// Loads of 58 layers x 256 experts, uniform or skewed in four ways, on EP 8, 32, 72 and 144 with 0, 32 and 96 redundant
// experts, planned from nothing, then again from there after a drift of 10 %.
// experts.plan_ms: 288 slots, all layers: the slowest of EP 32, 72 and 144, from nothing and after drift, median of
// loads. experts.less_balanced_than_reference: layers whose most loaded rank has more load than the published algorithm
// gives it, by its global or hierarchical policy. experts.stacked_replicas: second replicas of an expert on a rank.
// experts.moves_ratio: experts that move after the drift as part of what the published algorithm moves, in the worst
// of the layouts; experts.moves_ratio_mean: in all together.
void run_experts_bench(const ExpertsBenchOptions& options, const std::function<void(const std::string& line)>& print);

}  // namespace moesaic
