// deploy: the whole answer for given traffic: frontier by EP, the decode and the prefill instance, how many of each,
// what they cost, what binds the choice and why its neighbours lose. Pure; any thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plan/planner.h"
#include "plan/validate.h"

namespace moesaic {

struct Goals {
  double least_tokens_per_s_per_user = 20;
  double most_ttft_s = 5;
  // Of the requests, how many must reach them when there are queues.
  double tpot_percent = 99, ttft_percent = 99;
};

struct DeployRequest {
  PlanSpace space;
  Deployment base;  // balancedness is the decode instance's
  double prefill_balancedness = 0.68;
  double acceptance = 0.6;
  Traffic traffic;
  Goals goals;
};

// A change of one choice, and why it is not the winner.
struct Neighbour {
  std::string change;  // "EP64"
  std::string result;  // what it costs, which goal it misses, or why it does not fit
};

struct InstancePlan {
  LayoutCandidate candidate;
  std::vector<LayoutCandidate> cheapest;  // planner.h; the first is the candidate
  int64_t num_instances = 0;
  int64_t num_gpus = 0;
  double utilisation = 0;                              // of the instances' throughput by the traffic
  double cost_per_million_tokens = 0;                  // of its own tokens, at this utilisation
  std::vector<std::pair<std::string, double>> shares;  // of the step, largest first
  std::string limit;                                   // what stops the next larger step
  std::vector<Neighbour> neighbours;
  ErrorSummary error;  // of published systems of its phase inside the range (validate.h)
};

struct EpFrontier {
  std::string hardware;
  int ep_size = 0;
  std::vector<LayoutCandidate> points;  // fastest first
  std::string refusal;                  // why there are none
};

struct DeployPlan {
  std::vector<EpFrontier> frontiers;
  InstancePlan decode, prefill;
  double prefill_per_decode = 0;  // GPUs of prefill for each of decode
  double dollars_per_hour = 0;
  double cost_per_million_output_tokens = 0;  // of both, with the prompts that they need
};

// By means. Errors: no candidate reaches the goals (the message shows the arithmetic of the nearest), numbers out of
// range.
absl::StatusOr<DeployPlan> plan_deployment(const DeployRequest& request);

// The settings file of so many instances for `moesaic serve --config`.
std::string serve_config(const LayoutCandidate& candidate, int64_t num_instances, const std::string& model_path,
                         int64_t context_length);

}  // namespace moesaic
