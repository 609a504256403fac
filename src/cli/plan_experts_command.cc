#include <cstdio>

#include "cli/plan_command.h"
#include "cli/report_file.h"
#include "cost/embedded_files.h"
#include "plan/deployment_settings.h"
#include "plan/expert_report.h"

namespace moesaic {
namespace {

struct ExpertsConfig {
  DeploymentSettings deployment{.hardware = "h800"};
  std::string phase = "decode";
  OperatingPoint point{.batch = 128, .kv_len = 4096, .prompt_len = 4096, .chunk_tokens = 16384};
  std::string recorded;
  int32_t max_extra_slots = 4;
  uint64_t seed = 1;
  bool json = false;
  std::string report;
};

void declare(ConfigFields& fields, ExpertsConfig& config) {
  OperatingPoint& p = config.point;
  fields.add("model", &config.deployment.model).doc("A known model, or the path of a config.json or checkpoint folder");
  fields.add("hardware", &config.deployment.hardware).doc("A known GPU, or the path of a TOML file");
  fields.add("phase", &config.phase).choices({"decode", "prefill"}).doc("Which instance");
  fields.add("ep", &config.deployment.ep)
      .range(0, kMaxRanks)
      .default_text("144 in decode, 32 in prefill")
      .doc("Ranks that share the experts; DP is the same");
  fields.add("batch", &p.batch).range(1, 1 << 20).doc("Decode: requests of each DP rank");
  fields.add("kv-len", &p.kv_len).range(1, 1 << 24).unit("tokens").doc("Decode: cached tokens of each request, mean");
  fields.add("prompt-len", &p.prompt_len).range(1, 1 << 24).unit("tokens").doc("Prefill: tokens of a prompt");
  fields.add("chunk-tokens", &p.chunk_tokens)
      .range(1, 1 << 24)
      .unit("tokens")
      .doc("Prefill: new tokens of each DP rank in a step");
  fields.add("recorded", &config.recorded)
      .default_text("generated loads")
      .doc("Recorded counts, JSON lines {\"logical_count\": [[...], ...]}: planned on each line, measured on the next");
  fields.add("max-extra-slots", &config.max_extra_slots)
      .range(0, 64)
      .doc("Slots a rank that are tried beyond the least that hold all experts");
  fields.add("seed", &config.seed).doc("Of generated loads");
  fields.add("json", &config.json).doc("Prints one JSON object");
  fields.add("report", &config.report).doc("Writes an HTML page with plots, or its JSON if the name ends in .json");
}

absl::StatusOr<std::vector<ExpertLoads>> load_counts(const ExpertsConfig& config, const ModelConfig& model) {
  const CountsShape shape = counts_shape(model);
  if (!config.recorded.empty()) {
    MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_text_file(config.recorded));
    return parse_expert_counts(text, config.recorded, shape);
  }
  ExpertSkew skew = config.phase == "prefill" ? kPrefillSkew : kDecodeSkew;
  if (model.n_group > 1) skew.group_size = shape.n_routed_experts / static_cast<int>(model.n_group);
  const ExpertLoads loads = generate_loads(shape.num_moe_layers(), shape.n_routed_experts, skew, config.seed);
  return std::vector<ExpertLoads>{loads, shift_loads(loads, skew, kOtherTraffic, config.seed + 1)};
}

absl::Status run(ExpertsConfig& config) {
  config.point.phase = config.phase == "prefill" ? Phase::kPrefill : Phase::kDecode;
  if (config.deployment.ep == 0) config.deployment.ep = config.phase == "prefill" ? 32 : 144;
  ExpertsQuestion question{
      .point = config.point, .is_recorded = !config.recorded.empty(), .max_extra_slots = config.max_extra_slots};
  MOESAIC_ASSIGN_OR_RETURN(question.deployment, make_deployment(config.deployment));
  question.gpus_per_node = gpus_per_node(config.deployment, question.deployment.hardware);
  if (question.deployment.model.n_routed_experts < 1) {
    return absl::InvalidArgumentError(str_cat(config.deployment.model, " has no routed experts"));
  }
  MOESAIC_ASSIGN_OR_RETURN(question.loads, load_counts(config, question.deployment.model));
  ThreadPool pool(num_cpus());
  MOESAIC_ASSIGN_OR_RETURN(const ExpertsAnswer answer, answer_experts(std::move(question), &pool));
  std::fputs((config.json ? experts_json(answer) : experts_text(answer)).c_str(), stdout);
  return write_report(experts_report(answer, "moesaic plan experts"), config.report);
}

}  // namespace

Command plan_experts_command() {
  return make_command<ExpertsConfig, declare, run>(
      "plan experts", "How balanced experts are on the ranks, by layer, and how many redundant ones pay.");
}

}  // namespace moesaic
