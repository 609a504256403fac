// deploy_queues: a deployment that was chosen by means, under arrivals: how many instances of which of the cheapest
// layouts keep the goals at their percentiles (queue_check.h). Pairs of layout and number of instances are simulated in
// the order of their price, so the first that holds is the cheapest of them.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plan/deploy.h"
#include "plan/queue_check.h"

namespace moesaic {

struct QueueTrial {
  LayoutCandidate candidate;
  int64_t num_instances = 0;
  double dollars_per_hour = 0;
  double utilisation = 0;  // of the instances' throughput by means
  QueueFigures figures;
  std::string missed;  // which goal and by how much; empty: it holds
};

struct RoleQueues {
  std::vector<QueueTrial> trials;  // in the order of their price
  std::optional<size_t> chosen;    // of the trials; none: nothing held within kMaxQueueTrials
};
inline constexpr size_t kMaxQueueTrials = 16;

struct DeployQueues {
  uint64_t seed = 0;
  RoleQueues decode, prefill;
  // Of both roles; 0 unless both have a chosen trial.
  double dollars_per_hour = 0;
  double cost_per_million_output_tokens = 0;
};

// progress: called before each simulation with what is simulated; may be empty. Same arguments, same answer. Takes up
// to half a second a trial. Errors: goals that a request alone misses, with the arithmetic; see check_queue().
absl::StatusOr<DeployQueues> check_queues(const DeployRequest& request, const DeployPlan& plan, uint64_t seed,
                                          const std::function<void(const std::string&)>& progress);

}  // namespace moesaic
