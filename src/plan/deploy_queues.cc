#include "plan/deploy_queues.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace moesaic {
namespace {

constexpr double kMostPreempted = 0.01;  // of the requests: each is computed twice
constexpr int64_t kLargeStep = 16;       // of so many instances, one more is tried at a time

double slo_ms(const Goals& goals, Phase phase) {
  return phase == Phase::kDecode ? 1e3 / goals.least_tokens_per_s_per_user : goals.most_ttft_s * 1e3;
}
double slo_percent(const Goals& goals, Phase phase) {
  return phase == Phase::kDecode ? goals.tpot_percent : goals.ttft_percent;
}

std::string missed(const QueueFigures& f, const Goals& goals, Phase phase) {
  const double bound = slo_ms(goals, phase);
  std::vector<std::string> out;
  if (f.served_share < 1) {
    out.push_back(fmt::format("saturated: {:.0f} % of what arrives is served", f.served_share * 100));
  }
  if (f.slo_ms > bound) {
    out.push_back(fmt::format("{} P{:g} {:.1f} ms is {:.1f} above {:.1f}", phase == Phase::kDecode ? "TPOT" : "TTFT",
                              slo_percent(goals, phase), f.slo_ms, f.slo_ms - bound, bound));
  }
  if (f.preempted_share > kMostPreempted) {
    out.push_back(fmt::format("the KV cache is full: {:.1f} preemptions for 100 requests", f.preempted_share * 100));
  }
  return str_join(out, "; ");
}

// A token of one sequence, or a prompt, that has the instance for itself.
absl::Status check_alone(const LayoutCandidate& c, const Goals& goals) {
  Deployment d = c.deployment;
  d.overlap = OverlapMode::kBest;
  OperatingPoint point = c.point;
  point.batch = 1;
  point.chunk_tokens = std::min(point.chunk_tokens, point.prompt_len - point.cached_len);
  MOESAIC_ASSIGN_OR_RETURN(const LayoutCandidate alone, evaluate(d, point));
  const double step_ms = alone.prediction.step.seconds * 1e3, bound = slo_ms(goals, point.phase);
  const bool decode = point.phase == Phase::kDecode;
  const double steps = decode ? 1 / alone.prediction.tokens_per_step
                              : std::ceil(static_cast<double>(point.prompt_len - point.cached_len) /
                                          static_cast<double>(point.chunk_tokens));
  if (steps * step_ms <= bound) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      fmt::format("{} alone on {} takes a step of {:.2f} ms x {:.2f} = {:.2f} ms, and the goal is {:.2f} ms: no number "
                  "of instances reaches it",
                  decode ? "a token of one sequence" : "a prompt", c.label(), step_ms, steps, steps * step_ms, bound));
}

class RoleSearch {
 public:
  RoleSearch(const DeployRequest& request, uint64_t seed, const std::function<void(const std::string&)>& progress)
      : request_(request), seed_(seed), progress_(progress) {}

  absl::StatusOr<RoleQueues> run(const InstancePlan& plan, double tokens_per_s) {
    std::vector<QueueTrial> open;
    absl::Status alone;  // of the first that is too slow whatever the number of instances
    for (const LayoutCandidate& c : plan.cheapest) {
      const absl::Status status = check_alone(c, request_.goals);
      if (status.ok()) open.push_back(trial(c, instances_for(c, tokens_per_s), tokens_per_s));
      if (alone.ok()) alone = status;
    }
    if (open.empty()) return alone;
    RoleQueues out;
    while (out.trials.size() < kMaxQueueTrials) {
      // The first of equals: by means it has the most throughput.
      const auto next = std::min_element(open.begin(), open.end(), [](const QueueTrial& a, const QueueTrial& b) {
        return a.dollars_per_hour < b.dollars_per_hour;
      });
      MOESAIC_RETURN_IF_ERROR(simulate(*next));
      out.trials.push_back(*next);
      if (next->missed.empty()) {
        out.chosen = out.trials.size() - 1;
        return out;
      }
      *next = trial(next->candidate, next->num_instances + std::max<int64_t>(1, next->num_instances / kLargeStep),
                    tokens_per_s);
    }
    return out;
  }

 private:
  static QueueTrial trial(const LayoutCandidate& c, int64_t num_instances, double tokens_per_s) {
    const auto gpus = static_cast<double>(num_instances * c.deployment.layout.world_size());
    return {.candidate = c,
            .num_instances = num_instances,
            .dollars_per_hour = gpus * c.deployment.hardware.price_per_gpu_hour,
            .utilisation = tokens_per_s / (c.prediction.tokens_per_s_per_gpu * gpus)};
  }

  absl::Status simulate(QueueTrial& t) const {
    const Phase phase = t.candidate.point.phase;
    if (progress_) {
      progress_(fmt::format("{}: {} x {}", phase == Phase::kDecode ? "decode" : "prefill", t.num_instances,
                            t.candidate.label()));
    }
    Traffic share = request_.traffic;
    share.requests_per_s /= static_cast<double>(t.num_instances);
    MOESAIC_ASSIGN_OR_RETURN(t.figures, check_queue(t.candidate, share, slo_percent(request_.goals, phase), seed_));
    t.missed = missed(t.figures, request_.goals, phase);
    return absl::OkStatus();
  }

  const DeployRequest& request_;
  const uint64_t seed_;
  const std::function<void(const std::string&)>& progress_;
};

}  // namespace

absl::StatusOr<DeployQueues> check_queues(const DeployRequest& r, const DeployPlan& plan, uint64_t seed,
                                          const std::function<void(const std::string&)>& progress) {
  DeployQueues out{.seed = seed};
  const Traffic& t = r.traffic;
  const OperatingPoint& prompt = plan.prefill.candidate.point;
  const double output_rate = t.requests_per_s * static_cast<double>(t.output_len);
  const double input_rate = t.requests_per_s * static_cast<double>(prompt.prompt_len - prompt.cached_len);
  RoleSearch search(r, seed, progress);
  MOESAIC_ASSIGN_OR_RETURN(out.decode, search.run(plan.decode, output_rate));
  MOESAIC_ASSIGN_OR_RETURN(out.prefill, search.run(plan.prefill, input_rate));
  if (!out.decode.chosen || !out.prefill.chosen) return out;
  for (const RoleQueues* role : {&out.decode, &out.prefill}) {
    out.dollars_per_hour += role->trials[*role->chosen].dollars_per_hour;
  }
  out.cost_per_million_output_tokens = out.dollars_per_hour / 3600 / output_rate * 1e6;
  return out;
}

}  // namespace moesaic
