#include "plan/deploy_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "plan/deployment_settings.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGiga = 1e9;
constexpr double kMilli = 1e3;
constexpr double kMicro = 1e6;

constexpr std::pair<const char*, double StepCost::*> kStepParts[] = {
    {"moe_layers", &StepCost::moe_layers}, {"dense_layers", &StepCost::dense_layers}, {"head", &StepCost::head},
    {"draft", &StepCost::draft},           {"waiting", &StepCost::waiting},           {"host", &StepCost::host}};

std::string memory_text(const Prediction& p) {
  std::string out = fmt::format("memory of a GPU, of {:.1f} GB\n", p.memory.capacity_bytes / kGiga);
  for (const PlannedBuffer& buffer : p.memory.buffers) {
    out += fmt::format("  {:<40}{:>9.2f} GB\n", buffer.name, buffer.num_bytes / kGiga);
  }
  out += fmt::format("  {:<40}{:>9.2f} GB\n", "KV cache of this point", p.kv_bytes_needed / kGiga);
  out += fmt::format("  {:<40}{:>9.2f} GB, {} tokens{}\n", "free for KV cache", p.memory.kv_bytes_free / kGiga,
                     p.memory.kv_tokens_free, p.fits ? "" : ": it does not fit");
  return out;
}

Json memory_json(const Prediction& p) {
  Json out;
  for (const PlannedBuffer& buffer : p.memory.buffers) out["buffers"][buffer.name] = buffer.num_bytes;
  out["capacity"] = p.memory.capacity_bytes;
  out["kv_cache_needed"] = p.kv_bytes_needed;
  out["kv_cache_free"] = p.memory.kv_bytes_free;
  out["kv_tokens_free"] = p.memory.kv_tokens_free;
  return out;
}

Json point_json(const LayoutCandidate& c) {
  const Deployment& d = c.deployment;
  const Prediction& p = c.prediction;
  Json out = {{"hardware", d.hardware.name},
              {"ep", d.layout.ep_size()},
              {"dp", d.layout.dp_size},
              {"tp", d.layout.tp_size},
              {"overlap", overlap_name(d.overlap)},
              {"redundant_experts", d.num_redundant_experts}};
  if (c.point.phase == Phase::kDecode) {
    out["batch"] = c.point.batch;
    out["draft"] = d.num_draft;
    out["tokens_per_s_per_user"] = p.tokens_per_s_per_user;
  } else {
    out["chunk_tokens"] = c.point.chunk_tokens;
    out["ttft_s"] = ttft_seconds(c);
  }
  out["step_ms"] = p.step.seconds * kMilli;
  out["tokens_per_s_per_node"] = p.tokens_per_s_per_node;
  return out;
}

std::string instance_text(const char* name, const InstancePlan& plan) {
  const LayoutCandidate& c = plan.candidate;
  const Prediction& p = c.prediction;
  std::string out = fmt::format("{}: {}, {} redundant experts\n", name, c.label(), c.deployment.num_redundant_experts);
  out += fmt::format("  {} instances of {} GPUs, {:.0f} % used; {:.0f} tok/s per node", plan.num_instances,
                     c.deployment.layout.world_size(), plan.utilisation * 100, p.tokens_per_s_per_node);
  out += c.point.phase == Phase::kDecode ? fmt::format(", {:.1f} tok/s per user", p.tokens_per_s_per_user)
                                         : fmt::format(", first token after {:.2f} s without queues", ttft_seconds(c));
  out += fmt::format(", ${:.3f} per million tokens\n  a step of {:.2f} ms goes to", plan.cost_per_million_tokens,
                     p.step.seconds * kMilli);
  for (size_t i = 0; i < 4 && i < plan.shares.size(); ++i) {
    out += fmt::format("{} {} {:.0f} %", i == 0 ? "" : ",", plan.shares[i].first, plan.shares[i].second * 100);
  }
  out += "\n  what binds: " + plan.limit + "\n  why not\n";
  for (const Neighbour& n : plan.neighbours) out += fmt::format("    {:<22}{}\n", n.change, n.result);
  return out + memory_text(p);
}

Json instance_json(const InstancePlan& plan) {
  Json out = point_json(plan.candidate);
  out["instances"] = plan.num_instances;
  out["gpus"] = plan.num_gpus;
  out["utilisation"] = plan.utilisation;
  out["dollars_per_million_tokens"] = plan.cost_per_million_tokens;
  for (const auto& [name, share] : plan.shares) out["step_shares"][name] = share;
  out["binds"] = plan.limit;
  for (const Neighbour& n : plan.neighbours) out["neighbours"].push_back({{"change", n.change}, {"result", n.result}});
  out["memory_bytes"] = memory_json(plan.candidate.prediction);
  out["in_calibrated_range"] = plan.candidate.prediction.in_range;
  out["out_of_range"] = plan.candidate.prediction.out_of_range;
  return out;
}

const char* latency_name(const QueueTrial& t) {
  return t.candidate.point.phase == Phase::kDecode ? "TPOT" : "TTFT";
}

std::string role_queues_text(const RoleQueues& role) {
  std::string out;
  for (const QueueTrial& t : role.trials) {
    out += fmt::format("  {} x {}: ${:.2f} an hour, {:.0f} % used, {} P50 {:.1f} ms, P99 {:.1f} ms: {}\n",
                       t.num_instances, t.candidate.label(), t.dollars_per_hour, t.utilisation * 100, latency_name(t),
                       t.figures.p50_ms, t.figures.p99_ms, t.missed.empty() ? "holds" : t.missed);
  }
  return out;
}

Json role_queues_json(const RoleQueues& role) {
  Json out;
  for (const QueueTrial& t : role.trials) {
    Json trial = point_json(t.candidate);
    trial.update({{"instances", t.num_instances},
                  {"dollars_per_hour", t.dollars_per_hour},
                  {"utilisation", t.utilisation},
                  {"requests", t.figures.num_requests},
                  {"dp_groups", t.figures.num_groups},
                  {"latency", t.candidate.point.phase == Phase::kDecode ? "tpot" : "ttft"},
                  {"p50_ms", t.figures.p50_ms},
                  {"p99_ms", t.figures.p99_ms},
                  {"slo_percentile_ms", t.figures.slo_ms},
                  {"fill", t.figures.fill},
                  {"served_share", t.figures.served_share},
                  {"preempted_share", t.figures.preempted_share},
                  {"missed", t.missed}});
    out["trials"].push_back(std::move(trial));
  }
  out["chosen"] = role.chosen ? Json(*role.chosen) : Json(nullptr);
  out["instances"] = role.chosen ? Json(role.trials[*role.chosen].num_instances) : Json(nullptr);
  return out;
}

Json queues_json(const DeployQueues& q, const Goals& goals) {
  const bool holds = q.decode.chosen && q.prefill.chosen;
  return {{"kind", "simulated"},
          {"seed", q.seed},
          {"goals",
           {{"tpot_ms", 1e3 / goals.least_tokens_per_s_per_user},
            {"tpot_percentile", goals.tpot_percent},
            {"ttft_ms", goals.most_ttft_s * 1e3},
            {"ttft_percentile", goals.ttft_percent}}},
          {"decode", role_queues_json(q.decode)},
          {"prefill", role_queues_json(q.prefill)},
          {"dollars_per_hour", holds ? Json(q.dollars_per_hour) : Json(nullptr)},
          {"dollars_per_million_output_tokens", holds ? Json(q.cost_per_million_output_tokens) : Json(nullptr)}};
}

std::string queues_text(const DeployPlan& plan, const DeployQueues& q, const Goals& goals) {
  std::string out = fmt::format(
      "\nwith queues, simulated (seed {}); at P{:g} at most {:.1f} ms a token, at P{:g} a first token in {:.2f} s\n",
      q.seed, goals.tpot_percent, 1e3 / goals.least_tokens_per_s_per_user, goals.ttft_percent, goals.most_ttft_s);
  out += role_queues_text(q.decode) + role_queues_text(q.prefill);
  out += fmt::format(
      "by means, predicted: {} x decode, {} x prefill, ${:.2f} an hour, ${:.3f} per million output tokens\n",
      plan.decode.num_instances, plan.prefill.num_instances, plan.dollars_per_hour,
      plan.cost_per_million_output_tokens);
  return out + "with queues, simulated: " + queues_summary(q) + "\n";
}

// Of the instances with queues; by means where nothing held.
std::string serve_config_of(const InstancePlan& plan, const RoleQueues& queues, const std::string& model_path,
                            int64_t context_length) {
  if (!queues.chosen) return serve_config(plan.candidate, plan.num_instances, model_path, context_length);
  const QueueTrial& t = queues.trials[*queues.chosen];
  return serve_config(t.candidate, t.num_instances, model_path, context_length);
}

std::string range_text(const Prediction& p, const ErrorSummary& error) {
  if (p.in_range) {
    return fmt::format(
        "inside the calibrated range: {} other published systems are predicted with a mean error of {:.1f} %, at most "
        "{:.1f} %",
        error.num_rows, error.mean * 100, error.worst * 100);
  }
  return "outside the calibrated range: " + str_join(p.out_of_range, "; ");
}

int64_t context_length(const DeployRequest& r) {
  return r.traffic.input_len + r.traffic.output_len;
}

}  // namespace

std::string assumptions_text(const Deployment& d) {
  constexpr const char* kFamilies[] = {"DeepEP", "pplx", "Moesaic (DeepEP's latencies stand for it)"};
  return fmt::format("predicted; balancedness {:.2f}, all-to-all {}, kernels {}, calibration data/validation.csv",
                     d.balancedness, kFamilies[static_cast<size_t>(d.comm)],
                     d.kernels == nullptr ? "by roofline with published efficiencies" : "as measured in the table");
}

std::vector<std::string> deploy_assumptions(const DeployPlan& plan, const DeployRequest& r) {
  std::vector<std::string> out;
  for (const InstancePlan* instance : {&plan.decode, &plan.prefill}) {
    const LayoutCandidate& c = instance->candidate;
    const char* phase = c.point.phase == Phase::kDecode ? "decode" : "prefill";
    out.push_back(fmt::format("{}: {}", phase, assumptions_text(c.deployment)));
    out.push_back(fmt::format("{}: {}", phase, range_text(c.prediction, instance->error)));
    out.push_back(fmt::format("{}: {:.1f} % of a step is waiting for the slowest rank (fitted on calibration rows)",
                              phase, c.prediction.step.waiting / c.prediction.step.seconds * 100));
  }
  out.push_back(fmt::format("a draft after a right one is right with a chance of {:.2f}", r.acceptance));
  out.push_back("by means: uniform requests, no queues");
  out.push_back(
      "with queues: the product's engine in virtual time, one instance of each role at its share of Poisson arrivals; "
      "a "
      "decode instance gets its requests one by one, with their KV cache; steps have the fastest overlap");
  for (const HardwareSpec& hardware : r.space.hardware) {
    out.push_back(fmt::format("a GPU of {} costs ${:.2f} an hour", hardware.name, hardware.price_per_gpu_hour));
  }
  return out;
}

std::string queues_summary(const DeployQueues& q) {
  if (!q.decode.chosen || !q.prefill.chosen) {
    return fmt::format("nothing of the {} cheapest that were tried holds for {}", kMaxQueueTrials,
                       !q.decode.chosen && !q.prefill.chosen ? "decode and prefill"
                       : !q.decode.chosen                    ? "decode"
                                                             : "prefill");
  }
  const QueueTrial &d = q.decode.trials[*q.decode.chosen], &p = q.prefill.trials[*q.prefill.chosen];
  return fmt::format("{} x decode ({}), {} x prefill ({}), ${:.2f} an hour, ${:.3f} per million output tokens",
                     d.num_instances, d.candidate.label(), p.num_instances, p.candidate.label(), q.dollars_per_hour,
                     q.cost_per_million_output_tokens);
}

std::string prediction_text(const Prediction& p, const Deployment& d, const ErrorSummary& error) {
  std::string out = fmt::format("{}\n", assumptions_text(d));
  out += fmt::format("step {:.3f} ms, overlap {}, {:.1f} tok/s per node, {:.1f} per GPU", p.step.seconds * kMilli,
                     overlap_name(p.step.overlap), p.tokens_per_s_per_node, p.tokens_per_s_per_gpu);
  if (p.tokens_per_s_per_user > 0) out += fmt::format(", {:.2f} tok/s per user", p.tokens_per_s_per_user);
  out += "\na MoE layer, us:";
  for (const auto& [name, part] : kLayerParts) out += fmt::format(" {} {:.1f}", name, p.step.moe_layer.*part * kMicro);
  out += "\na step, ms:";
  for (const auto& [name, part] : kStepParts) out += fmt::format(" {} {:.2f}", name, p.step.*part * kMilli);
  return out + "\n" + range_text(p, error) + "\n" + memory_text(p);
}

std::string prediction_json(const Prediction& p, const Deployment& d, const ErrorSummary& error) {
  Json out;
  out["kind"] = "predicted";
  out["step_ms"] = p.step.seconds * kMilli;
  out["tokens_per_s_per_node"] = p.tokens_per_s_per_node;
  out["tokens_per_s_per_gpu"] = p.tokens_per_s_per_gpu;
  out["tokens_per_s_per_user"] = p.tokens_per_s_per_user;
  out["overlap"] = overlap_name(p.step.overlap);
  for (const auto& [name, part] : kLayerParts) out["layer_us"][name] = p.step.moe_layer.*part * kMicro;
  for (const auto& [name, part] : kStepParts) out["step_parts_ms"][name] = p.step.*part * kMilli;
  out["memory_bytes"] = memory_json(p);
  out["fits"] = p.fits;
  out["in_calibrated_range"] = p.in_range;
  out["out_of_range"] = p.out_of_range;
  if (p.in_range) {
    out["error_of_published_systems"] = {
        {"rows", error.num_rows}, {"mean_abs_error", error.mean}, {"worst_abs_error", error.worst}};
  }
  out["balancedness"] = d.balancedness;
  out["assumptions"] = assumptions_text(d);
  return out.dump(2) + "\n";
}

std::string deploy_text(const DeployPlan& plan, const DeployQueues& queues, const DeployRequest& r,
                        const std::string& model_path) {
  std::string out = "predicted\n\ndecode, tokens/s per user : tokens/s per node (TP, batch, draft, overlap), by EP\n";
  for (const EpFrontier& line : plan.frontiers) {
    out += fmt::format("{} EP{}\n", line.hardware, line.ep_size);
    if (line.points.empty()) out += "  nothing fits: " + line.refusal + "\n";
    for (const LayoutCandidate& c : line.points) {
      out += fmt::format("  {:>7.1f} : {:>8.0f}  (TP{}, {}, {}, {})\n", c.prediction.tokens_per_s_per_user,
                         c.prediction.tokens_per_s_per_node, c.deployment.layout.tp_size, c.point.batch,
                         c.deployment.num_draft, overlap_name(c.deployment.overlap));
    }
  }
  out += "\n" + instance_text("decode", plan.decode) + "\n" + instance_text("prefill", plan.prefill);
  out += fmt::format(
      "\n{:.2f} GPUs of prefill for each of decode, ${:.2f} an hour, ${:.3f} per million output tokens with prompts\n",
      plan.prefill_per_decode, plan.dollars_per_hour, plan.cost_per_million_output_tokens);
  out += queues_text(plan, queues, r.goals);
  out += "\nAssumptions\n";
  for (const std::string& line : deploy_assumptions(plan, r)) out += fmt::format("  - {}\n", line);
  out += "\n" + serve_config_of(plan.prefill, queues.prefill, model_path, context_length(r));
  out += "\n" + serve_config_of(plan.decode, queues.decode, model_path, context_length(r));
  return out;
}

std::string deploy_json(const DeployPlan& plan, const DeployQueues& queues, const DeployRequest& r,
                        const std::string& model_path) {
  Json out;
  out["kind"] = "predicted";
  out["assumptions"] = deploy_assumptions(plan, r);
  for (const EpFrontier& line : plan.frontiers) {
    Json points = Json::array();
    for (const LayoutCandidate& c : line.points) points.push_back(point_json(c));
    out["frontiers"].push_back(
        {{"hardware", line.hardware}, {"ep", line.ep_size}, {"points", points}, {"refusal", line.refusal}});
  }
  out["decode"] = instance_json(plan.decode);
  out["prefill"] = instance_json(plan.prefill);
  out["prefill_gpus_per_decode_gpu"] = plan.prefill_per_decode;
  out["dollars_per_hour"] = plan.dollars_per_hour;
  out["dollars_per_million_output_tokens"] = plan.cost_per_million_output_tokens;
  out["with_queues"] = queues_json(queues, r.goals);
  out["serve_config"] = {{"decode", serve_config_of(plan.decode, queues.decode, model_path, context_length(r))},
                         {"prefill", serve_config_of(plan.prefill, queues.prefill, model_path, context_length(r))}};
  return out.dump(2) + "\n";
}

}  // namespace moesaic
