// Planner: every layout, batch and mode of a deployment that fits, what each gives, and which of them is worth having.
// Means over uniform requests, without queues: queue_check.h answers for arrivals. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "plan/predict.h"

namespace moesaic {

// What is asked of a deployment.
struct Traffic {
  double requests_per_s = 1;
  int64_t input_len = 2000;  // tokens, mean
  int64_t output_len = 500;  // tokens, mean
  double range_ratio = 0;    // lengths are uniform in [len (1 - r), len (1 + r)]; means do not see it
  double cached_share = 0;   // of the input, found in the prefix cache
};

// What is tried. Each list is ascending.
struct PlanSpace {
  std::vector<HardwareSpec> hardware;
  std::vector<int> ep_sizes;
  std::vector<int> tp_sizes = {1, 2, 4, 8};
  std::vector<int64_t> batches = {1,  2,   3,   4,   6,   8,   12,  16,  24,  32,  48,  64,
                                  96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024};
  std::vector<int64_t> chunk_tokens = {2048, 4096, 8192, 16384, 32768};
  std::vector<int64_t> drafts = {0, 1, 2};
  std::vector<OverlapMode> overlaps = {OverlapMode::kNone, OverlapMode::kDispatch, OverlapMode::kTwoBatch};
};

struct LayoutCandidate {
  Deployment deployment;
  OperatingPoint point;
  Prediction prediction;
  std::string label() const;  // "h100 EP72 DP72 TP1 batch 256 two-batch draft 0"
};

// Why a combination is no candidate: "heads: TP ...", "memory: needs 92.1 GB of 80".
struct Refusal {
  std::string label;
  std::string reason;
};

struct Sweep {
  std::vector<LayoutCandidate> fits;
  std::vector<Refusal> refused;
};

// `base` gives the model, comm family, KV type, balancedness and redundancy; `point` the lengths and acceptance. Slots
// are filled up to a whole number a rank with redundant experts. Errors: nothing to try.
absl::StatusOr<Sweep> sweep(const PlanSpace& space, const Deployment& base, const OperatingPoint& point);
// One combination; errors are the refusals.
absl::StatusOr<LayoutCandidate> evaluate(const Deployment& deployment, const OperatingPoint& point);

// Those that no other of the same group beats in both tokens/s per user and tokens/s per node, fastest first.
std::vector<const LayoutCandidate*> frontier(const std::vector<const LayoutCandidate*>& candidates);
// The most tokens/s per node of a candidate that is at least as fast as `speed`; 0 if none is.
double throughput_at_speed(const std::vector<const LayoutCandidate*>& candidates, double speed);
// Candidates of one hardware and EP.
std::vector<const LayoutCandidate*> select(const Sweep& sweep, const std::string& hardware, int ep_size);

// Instances for so many tokens a second, all full but the last; and their price.
int64_t instances_for(const LayoutCandidate& candidate, double tokens_per_s);
double dollars_per_hour(const LayoutCandidate& candidate, double tokens_per_s);

// The candidates whose instances for so many tokens a second cost least, the cheapest first, of those with at least
// this speed, or whose prompts are done in time; among equals the one with the most throughput. Of candidates that
// differ in batch and overlap alone only the first is among them. At most `num`, perhaps none.
std::vector<const LayoutCandidate*> cheapest_decode(const Sweep& sweep, double tokens_per_s,
                                                    double least_tokens_per_s_per_user, size_t num);
std::vector<const LayoutCandidate*> cheapest_prefill(const Sweep& sweep, double tokens_per_s, double most_ttft_s,
                                                     size_t num);
// Half a step of waiting for the running one, then the steps of the prompt; no queue.
double ttft_seconds(const LayoutCandidate& candidate);

// What the engine of an instance is limited to, of each DP group: the settings of `serve`.
struct EngineLimits {
  int64_t max_running_requests = 0;
  int64_t max_step_tokens = 0;
  int64_t kv_tokens = 0;  // whole blocks of 64
};
EngineLimits engine_limits(const LayoutCandidate& candidate);

}  // namespace moesaic
