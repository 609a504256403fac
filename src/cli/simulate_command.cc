#include <cmath>
#include <filesystem>

#include "cli/command.h"
#include "cli/model_host.h"
#include "cli/report_file.h"
#include "cost/model_catalog.h"
#include "model/file_map.h"
#include "plan/deployment_settings.h"
#include "plan/sim_report.h"
#include "plan/simulator.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxTraceBytes = 4ll << 30;
constexpr int64_t kMaxTableBytes = 16 << 20;

struct SimulateConfig {
  std::string command_line;
  DeploymentSettings deployment;
  std::string steps;
  ModelSettings engine;
  std::string trace;
  TrafficOptions traffic = {.arrivals = {.request_rate = 1.0}};
  int64_t max_concurrency = 0;
  std::string goodput;
  std::string percentiles = "90,99";
  bool json = false;
  std::string trace_out;
  std::string report;
  std::string traffic_out;
};

void declare_traffic(ConfigFields& fields, SimulateConfig& config) {
  TrafficOptions& traffic = config.traffic;
  fields.add("trace", &config.trace)
      .doc(
          "JSON lines {\"time\": s, \"input\": n, \"output\": n, \"prefix\": id, \"prefix_tokens\": n}, in order of "
          "time; the last two are optional. Without it, requests are made from --seed");
  fields.add("num-prompts", &traffic.num_prompts).range(1, 1e8).doc("Requests; of a trace at most so many");
  fields.add("seed", &traffic.arrivals.seed).doc("Of times, lengths, prompts and accepted guesses");
  add_arrival_fields(fields, &traffic.arrivals);
  fields.add("max-concurrency", &config.max_concurrency)
      .range(0, 1e8)
      .default_text("no limit")
      .doc("Requests open at once");
  const auto length = [&](const char* name, int64_t* value, const char* doc) {
    fields.add(name, value).range(1, 1 << 24).unit("tokens").doc(doc);
  };
  length("random-input-len", &traffic.input_len, "Prompt");
  length("random-output-len", &traffic.output_len, "Output");
  fields.add("random-range-ratio", &traffic.range_ratio)
      .range(0, 1)
      .doc("Lengths are uniform in [len x (1 - ratio), len x (1 + ratio)]");
  fields.add("gsp-num-groups", &traffic.num_prefixes).range(0, 1e7).doc("Shared prefixes; 0: none");
  fields.add("gsp-system-prompt-len", &traffic.prefix_len)
      .range(0, 1 << 24)
      .unit("tokens")
      .doc("Shared prefix, before the prompt");
  fields.add("traffic-out", &config.traffic_out).doc("Writes the requests to this file, as --trace reads them");
}

void declare(ConfigFields& fields, SimulateConfig& config) {
  config.deployment.hardware = "h200";
  add_deployment_fields(fields, config.deployment);
  fields.add("steps", &config.steps)
      .doc(
          "Table of `bench steps`: step times measured on that machine instead of the cost model's; the KV cache is "
          "then "
          "what `serve` would take here");
  add_engine_fields(fields, config.engine);
  declare_traffic(fields, config);
  add_slo_fields(fields, &config.goodput, &config.percentiles);
  fields.add("json", &config.json).doc("One JSON line instead of the text");
  fields.add("trace-out", &config.trace_out).doc("Writes the timeline of steps and requests, for ui.perfetto.dev");
  fields.add("report", &config.report).doc("Writes an HTML page, or its JSON if the name ends in .json");
}

absl::StatusOr<std::vector<TrafficRequest>> load_traffic(const SimulateConfig& config) {
  if (config.trace.empty()) return make_traffic(config.traffic);
  MOESAIC_ASSIGN_OR_RETURN(const std::string lines, read_text_file(config.trace, kMaxTraceBytes));
  absl::StatusOr<std::vector<TrafficRequest>> traffic = parse_trace(lines, config.traffic.num_prompts);
  if (!traffic.ok()) return annotate(traffic.status(), str_cat("--trace ", config.trace));
  return traffic;
}

std::string describe_traffic(const SimulateConfig& config, const std::vector<TrafficRequest>& traffic) {
  std::string text = str_cat(traffic.size(), " requests");
  const TrafficOptions& from = config.traffic;
  if (!config.trace.empty()) {
    text += str_cat(" of the trace ", std::filesystem::path(config.trace).filename().string());
  } else {
    text +=
        str_cat(", ", from.arrivals.request_rate, " a second (burstiness ", from.arrivals.burstiness, "), prompts of ",
                from.input_len, " and outputs of ", from.output_len, " tokens +- ", from.range_ratio * 100, " %");
    if (from.num_prefixes > 0) text += str_cat(", ", from.num_prefixes, " shared prefixes of ", from.prefix_len);
    text += str_cat(", seed ", from.arrivals.seed);
  }
  if (config.max_concurrency > 0) text += str_cat(", at most ", config.max_concurrency, " at once");
  return text;
}

absl::StatusOr<std::unique_ptr<StepTimer>> make_timer(const SimulateConfig& config, const Deployment& deployment) {
  if (config.steps.empty()) {
    MOESAIC_ASSIGN_OR_RETURN(CostStepTimer timer, CostStepTimer::make(deployment));
    return std::make_unique<CostStepTimer>(std::move(timer));
  }
  MOESAIC_ASSIGN_OR_RETURN(const std::string json, read_text_file(config.steps, kMaxTableBytes));
  absl::StatusOr<StepTable> table = StepTable::parse(json);
  if (!table.ok()) return annotate(table.status(), str_cat("--steps ", config.steps));
  if (table->layout != deployment.layout.to_string()) {
    return absl::InvalidArgumentError(str_cat("--steps ", config.steps, " was measured with ", table->layout,
                                              ", and the deployment is ", deployment.layout.to_string()));
  }
  return std::make_unique<TableStepTimer>(*std::move(table));
}

// The engine that `serve` would make of the same settings, with the KV cache that the hardware's memory leaves.
absl::StatusOr<EngineOptions> plan_sim_engine(const SimulateConfig& config, const Deployment& deployment) {
  ModelSettings settings = config.engine;
  settings.dp_size = deployment.layout.dp_size;
  settings.tp_size = deployment.layout.tp_size;
  const bool drafts_known = settings.synthetic_acceptance >= 0;
  if (settings.speculative_num_steps < 0 && (config.steps.empty() || !drafts_known)) {
    settings.speculative_num_steps = drafts_known ? static_cast<int>(deployment.num_draft) : 0;
  }
  // Twice: what a step may hold decides the buffers, and these decide the KV cache.
  int64_t& kv_tokens = settings.max_total_tokens;
  const bool kv_given = kv_tokens > 0;
  if (!kv_given && config.steps.empty()) kv_tokens = deployment.model.max_position_embeddings;
  MOESAIC_ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(settings, deployment.model, available_memory_bytes()));
  if (!kv_given && config.steps.empty()) {
    const RankMemory memory =
        plan_rank_memory(deployment, {.max_step_tokens = plan.model.max_tokens_per_step,
                                      .max_decode_tokens = int64_t{settings.max_running_requests}});
    kv_tokens = memory.kv_tokens_free;
    if (kv_tokens <= 0) {
      return absl::InvalidArgumentError(
          str_cat("the deployment leaves no memory for a KV cache: ", memory.total_bytes() * 1e-9, " GB of ",
                  deployment.hardware.hbm_gb, " GB are needed without it; more ranks hold fewer experts each"));
    }
    MOESAIC_ASSIGN_OR_RETURN(plan, plan_engine(settings, deployment.model, available_memory_bytes()));
  }
  return engine_options(settings, deployment.model, plan);
}

absl::Status write_outputs(const SimulateConfig& config, const SimResult& result, const SimFigures& figures,
                           const SimSettings& settings) {
  std::fputs((config.json ? figures_json : figures_text)(figures, result, settings).c_str(), stdout);
  MOESAIC_RETURN_IF_ERROR(write_text(result.trace_json, config.trace_out));
  return write_report(sim_report(figures, result, settings), config.report);
}

absl::Status run(SimulateConfig& config) {
  MOESAIC_ASSIGN_OR_RETURN(const Slo slo, parse_slo(config.goodput));
  MOESAIC_ASSIGN_OR_RETURN(const std::vector<double> percents, parse_percents(config.percentiles));
  MOESAIC_ASSIGN_OR_RETURN(const std::vector<TrafficRequest> traffic, load_traffic(config));
  MOESAIC_ASSIGN_OR_RETURN(const Deployment deployment, make_deployment(config.deployment));
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<StepTimer> timer, make_timer(config, deployment));
  MOESAIC_ASSIGN_OR_RETURN(const EngineOptions engine, plan_sim_engine(config, deployment));
  if (!config.traffic_out.empty()) {
    std::string lines;
    for (const TrafficRequest& request : traffic) lines += trace_line(request);
    MOESAIC_RETURN_IF_ERROR(write_text(lines, config.traffic_out));
  }
  const SimOptions options = {.engine = engine,
                              .seed = config.traffic.arrivals.seed,
                              .max_concurrency = config.max_concurrency,
                              .record_trace = !config.trace_out.empty()};
  MOESAIC_ASSIGN_OR_RETURN(const SimResult result, simulate(options, traffic, *timer));
  const SimSettings settings = {
      .command = config.command_line,
      .timer = timer->source(),
      .traffic = describe_traffic(config, traffic),
      .assumptions = {str_cat("KV cache: ", int64_t{engine.num_kv_blocks} * engine.kv_block_tokens,
                              " tokens a DP rank; at most ", engine.max_running_requests, " running requests and ",
                              engine.max_tokens_per_step, " tokens a step on each")},
      .slo = slo};
  return write_outputs(config, result, make_figures(result, slo, percents), settings);
}

}  // namespace

Command simulate_command() {
  return make_command<SimulateConfig, declare, run>(
      "simulate",
      "Runs a load through the product's engine and scheduler in virtual time, on hardware that is not there.");
}

}  // namespace moesaic
