#include "plan/deploy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plan/deployment_settings.h"

namespace moesaic {
namespace {

constexpr double kMillion = 1e6;
constexpr double kSecondsPerHour = 3600;
constexpr size_t kNumCheapest = 8;  // that are kept to be tried with queues

OperatingPoint decode_point(const DeployRequest& r) {
  // A request's rows grow from input to input + output: their mean.
  return {
      .phase = Phase::kDecode, .kv_len = r.traffic.input_len + r.traffic.output_len / 2, .acceptance = r.acceptance};
}

OperatingPoint prefill_point(const DeployRequest& r) {
  const auto cached = static_cast<int64_t>(r.traffic.cached_share * static_cast<double>(r.traffic.input_len));
  return {.phase = Phase::kPrefill,
          .prompt_len = r.traffic.input_len,
          .cached_len = std::min(cached, r.traffic.input_len - 1)};
}

std::vector<std::pair<std::string, double>> step_shares(const LayoutCandidate& c) {
  const StepCost& step = c.prediction.step;
  const LayerCost& l = step.moe_layer;
  const double layers = l.seconds > 0 ? step.moe_layers / l.seconds : 0;
  std::vector<std::pair<std::string, double>> shares = {{"q, kv and output projections", (l.qkv + l.output) * layers},
                                                        {"attention core", l.attention * layers},
                                                        {"routed experts", l.experts * layers},
                                                        {"shared expert", l.shared * layers},
                                                        {"exposed communication", l.exposed_comm * layers},
                                                        {"dense layers", step.dense_layers},
                                                        {"head", step.head},
                                                        {"drafts", step.draft},
                                                        {"waiting for the slowest rank", step.waiting},
                                                        {"host", step.host}};
  for (auto& share : shares) share.second /= step.seconds;
  std::sort(shares.begin(), shares.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  return shares;
}

bool is_decode(const LayoutCandidate& c) {
  return c.point.phase == Phase::kDecode;
}

// What the candidate would have to be better at, or nothing.
std::string compared(const LayoutCandidate& winner, const absl::StatusOr<LayoutCandidate>& other, double tokens_per_s,
                     const Goals& goals) {
  if (!other.ok()) return std::string(other.status().message());
  const Prediction& p = other->prediction;
  if (is_decode(winner) && p.tokens_per_s_per_user < goals.least_tokens_per_s_per_user) {
    return fmt::format("{:.1f} tok/s per user, the goal is {:.1f}", p.tokens_per_s_per_user,
                       goals.least_tokens_per_s_per_user);
  }
  if (!is_decode(winner) && ttft_seconds(*other) > goals.most_ttft_s) {
    return fmt::format("first token after {:.2f} s, the goal is {:.2f} s", ttft_seconds(*other), goals.most_ttft_s);
  }
  const int64_t gpus = instances_for(*other, tokens_per_s) * other->deployment.layout.world_size();
  return fmt::format("{} GPUs at ${:.2f} an hour, {:+.1f} % tok/s per node", gpus,
                     dollars_per_hour(*other, tokens_per_s),
                     (p.tokens_per_s_per_gpu / winner.prediction.tokens_per_s_per_gpu - 1) * 100);
}

template <typename T>
std::vector<T> beside(const std::vector<T>& values, T value) {
  std::vector<T> out;
  const auto at = std::find(values.begin(), values.end(), value);
  if (at == values.end()) return out;
  if (at != values.begin()) out.push_back(*(at - 1));
  if (at + 1 != values.end()) out.push_back(*(at + 1));
  return out;
}

// One more expert slot on every rank costs memory and, at the same balancedness, weights that are read: from which
// balancedness on it pays.
Neighbour more_slots(const LayoutCandidate& winner) {
  Deployment d = winner.deployment;
  const int64_t ranks = d.layout.ep_size();
  d.num_redundant_experts += ranks;
  const std::string change = str_cat("redundant ", d.num_redundant_experts);
  const auto same = evaluate(d, winner.point);
  if (!same.ok()) return {change, std::string(same.status().message())};
  double low = d.balancedness, high = 1;
  for (int i = 0; i < 30; ++i) {
    d.balancedness = (low + high) / 2;
    const auto other = evaluate(d, winner.point);
    const bool pays = other.ok() && other->prediction.tokens_per_s_per_gpu > winner.prediction.tokens_per_s_per_gpu;
    (pays ? high : low) = d.balancedness;
  }
  return {change,
          fmt::format("{:+.1f} % tok/s per node at the same balancedness of {:.2f}; pays from {:.3f} on",
                      (same->prediction.tokens_per_s_per_gpu / winner.prediction.tokens_per_s_per_gpu - 1) * 100,
                      winner.deployment.balancedness, high)};
}

std::vector<Neighbour> neighbours_of(const LayoutCandidate& winner, double tokens_per_s, const DeployRequest& r) {
  const PlanSpace& space = r.space;
  std::vector<Neighbour> out;
  const auto add = [&](std::string change, const Deployment& d, const OperatingPoint& p) {
    out.push_back({std::move(change), compared(winner, evaluate(d, p), tokens_per_s, r.goals)});
  };
  const Deployment& d = winner.deployment;
  const int64_t slots = r.base.model.n_routed_experts + r.base.num_redundant_experts;
  const auto with_layout = [&](int ep, int tp, const std::string& change) {
    Deployment other = d;
    const auto layout = ParallelLayout::make(ep, 0, tp);
    if (!layout.ok()) return;
    other.layout = *layout;
    other.num_redundant_experts = (slots + ep - 1) / ep * ep - r.base.model.n_routed_experts;
    add(change, other, winner.point);
  };
  for (const int ep : beside(space.ep_sizes, d.layout.ep_size())) with_layout(ep, d.layout.tp_size, str_cat("EP", ep));
  for (const int tp : beside(space.tp_sizes, d.layout.tp_size)) with_layout(d.layout.ep_size(), tp, str_cat("TP", tp));
  for (const OverlapMode overlap : space.overlaps) {
    if (overlap == d.overlap) continue;
    Deployment other = d;
    other.overlap = overlap;
    add(str_cat("overlap ", overlap_name(overlap)), other, winner.point);
  }
  out.push_back(more_slots(winner));
  OperatingPoint point = winner.point;
  if (!is_decode(winner)) {
    for (const int64_t chunk : beside(space.chunk_tokens, point.chunk_tokens)) {
      point.chunk_tokens = chunk;
      add(str_cat("chunk ", chunk), d, point);
    }
    return out;
  }
  for (const int64_t draft : beside(space.drafts, d.num_draft)) {
    Deployment other = d;
    other.num_draft = draft;
    if (draft == 0 || d.model.num_nextn_predict_layers > 0) add(str_cat("draft ", draft), other, winner.point);
  }
  for (const int64_t batch : beside(space.batches, winner.point.batch)) {
    point.batch = batch;
    add(str_cat("batch ", batch), d, point);
  }
  return out;
}

InstancePlan instance_plan(const std::vector<const LayoutCandidate*>& cheapest, double tokens_per_s,
                           const DeployRequest& r) {
  const LayoutCandidate& winner = *cheapest.front();
  InstancePlan plan{.candidate = winner};
  for (const LayoutCandidate* candidate : cheapest) plan.cheapest.push_back(*candidate);
  const int64_t gpus = winner.deployment.layout.world_size();
  plan.num_instances = instances_for(winner, tokens_per_s);
  plan.num_gpus = plan.num_instances * gpus;
  plan.utilisation = tokens_per_s / (winner.prediction.tokens_per_s_per_gpu * static_cast<double>(plan.num_gpus));
  const double dollars_per_s = dollars_per_hour(winner, tokens_per_s) / kSecondsPerHour;
  if (tokens_per_s > 0) plan.cost_per_million_tokens = dollars_per_s / tokens_per_s * kMillion;
  plan.shares = step_shares(winner);
  plan.neighbours = neighbours_of(winner, tokens_per_s, r);
  if (!plan.neighbours.empty()) {
    plan.limit = str_cat(plan.neighbours.back().change, ": ", plan.neighbours.back().result);
  }
  return plan;
}

// Instances do not make a step shorter: the fastest candidate is as fast as it gets.
absl::Status nothing_reaches(const Sweep& sweep, const Goals& goals) {
  const LayoutCandidate* fastest = nullptr;
  const auto token_s = [](const LayoutCandidate& c) {
    return is_decode(c) ? 1 / c.prediction.tokens_per_s_per_user : ttft_seconds(c);
  };
  for (const LayoutCandidate& c : sweep.fits) {
    if (fastest == nullptr || token_s(c) < token_s(*fastest)) fastest = &c;
  }
  if (fastest == nullptr) {
    const Refusal& last = sweep.refused.back();
    return absl::ResourceExhaustedError(str_cat("nothing fits; ", last.label, ": ", last.reason));
  }
  const LayoutCandidate& c = *fastest;
  const double step_ms = c.prediction.step.seconds * 1e3;
  if (is_decode(c)) {
    const double tokens = c.prediction.tokens_per_step / static_cast<double>(c.point.batch);
    return absl::ResourceExhaustedError(
        fmt::format("decode: nothing reaches {:.1f} tok/s per user, {:.2f} ms a token; the fastest, {}, takes a step "
                    "of {:.2f} ms / "
                    "{:.2f} tokens = {:.2f} ms a token, {:.1f} tok/s, and more instances do not change that",
                    goals.least_tokens_per_s_per_user, 1e3 / goals.least_tokens_per_s_per_user, c.label(), step_ms,
                    tokens, step_ms / tokens, c.prediction.tokens_per_s_per_user));
  }
  return absl::ResourceExhaustedError(fmt::format(
      "prefill: nothing reaches a first token in {:.2f} s; the fastest, {}, waits for half a step of {:.2f} ms and "
      "takes "
      "{:.0f}: {:.2f} s, and more instances do not change that",
      goals.most_ttft_s, c.label(), step_ms, ttft_seconds(c) / c.prediction.step.seconds - 0.5, ttft_seconds(c)));
}

std::vector<EpFrontier> frontiers_of(const Sweep& sweep, const PlanSpace& space) {
  std::vector<EpFrontier> out;
  for (const HardwareSpec& hardware : space.hardware) {
    for (const int ep : space.ep_sizes) {
      EpFrontier line{.hardware = hardware.name, .ep_size = ep};
      for (const LayoutCandidate* c : frontier(select(sweep, hardware.name, ep))) line.points.push_back(*c);
      const std::string begin = str_cat(hardware.name, " EP", ep, " ");
      for (const Refusal& refusal : sweep.refused) {
        if (line.points.empty() && refusal.label.starts_with(begin)) line.refusal = refusal.reason;
      }
      out.push_back(std::move(line));
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<DeployPlan> plan_deployment(const DeployRequest& r) {
  const Traffic& t = r.traffic;
  if (!(t.requests_per_s > 0) || t.input_len < 1 || t.output_len < 1 || !(t.cached_share >= 0 && t.cached_share < 1)) {
    return absl::InvalidArgumentError("traffic needs requests, input and output above 0 and a cached share below 1");
  }
  DeployPlan plan;
  MOESAIC_ASSIGN_OR_RETURN(const Sweep decode, sweep(r.space, r.base, decode_point(r)));
  plan.frontiers = frontiers_of(decode, r.space);
  const double output_rate = t.requests_per_s * static_cast<double>(t.output_len);
  std::vector<const LayoutCandidate*> cheapest =
      cheapest_decode(decode, output_rate, r.goals.least_tokens_per_s_per_user, kNumCheapest);
  if (cheapest.empty()) return nothing_reaches(decode, r.goals);
  plan.decode = instance_plan(cheapest, output_rate, r);
  Deployment prefill_base = r.base;
  prefill_base.balancedness = r.prefill_balancedness;
  const OperatingPoint point = prefill_point(r);
  MOESAIC_ASSIGN_OR_RETURN(const Sweep prefill, sweep(r.space, prefill_base, point));
  const double input_rate = t.requests_per_s * static_cast<double>(point.prompt_len - point.cached_len);
  cheapest = cheapest_prefill(prefill, input_rate, r.goals.most_ttft_s, kNumCheapest);
  if (cheapest.empty()) return nothing_reaches(prefill, r.goals);
  plan.prefill = instance_plan(cheapest, input_rate, r);
  plan.prefill_per_decode = static_cast<double>(plan.prefill.num_gpus) / static_cast<double>(plan.decode.num_gpus);
  for (const InstancePlan* instance : {&plan.decode, &plan.prefill}) {
    plan.dollars_per_hour +=
        static_cast<double>(instance->num_gpus) * instance->candidate.deployment.hardware.price_per_gpu_hour;
  }
  plan.cost_per_million_output_tokens = plan.dollars_per_hour / kSecondsPerHour / output_rate * kMillion;
  MOESAIC_ASSIGN_OR_RETURN(plan.decode.error, known_error(Phase::kDecode));
  MOESAIC_ASSIGN_OR_RETURN(plan.prefill.error, known_error(Phase::kPrefill));
  return plan;
}

std::string serve_config(const LayoutCandidate& c, int64_t num_instances, const std::string& model_path,
                         int64_t context_length) {
  const Deployment& d = c.deployment;
  const EngineLimits limits = engine_limits(c);
  std::string out = fmt::format("# {}: {} x {}\n", is_decode(c) ? "decode" : "prefill", num_instances, c.label());
  const auto add = [&](const char* name, int64_t value) { out += fmt::format("{} = {}\n", name, value); };
  out += fmt::format("model-path = \"{}\"\n", model_path);
  add("ep-size", d.layout.ep_size());
  add("dp-size", d.layout.dp_size);
  add("tp-size", d.layout.tp_size);
  out += fmt::format("kv-cache-dtype = \"{}\"\n", d.fp8_kv ? "fp8" : "bf16");
  add("context-length", context_length);
  add("max-total-tokens", limits.kv_tokens);
  add("max-running-requests", limits.max_running_requests);
  add("chunked-prefill-size", limits.max_step_tokens);
  add("speculative-num-steps", d.num_draft);
  if (d.num_draft > 0) out += "speculative-adaptive = false\n";  // the depth that was planned
  return out;
}

}  // namespace moesaic
