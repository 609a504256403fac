#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/plan_command.h"
#include "cli/plan_settings.h"
#include "plan/predict.h"

namespace moesaic {
namespace {

struct PredictConfig {
  DeploymentSettings deployment;
  std::string phase = "decode";
  OperatingPoint point{.batch = 128, .kv_len = 2000, .acceptance = 0.6, .prompt_len = 4096, .chunk_tokens = 16384};
  bool json = false;
};

void declare(ConfigFields& fields, PredictConfig& config) {
  OperatingPoint& p = config.point;
  fields.add("phase", &config.phase).choices({"decode", "prefill"}).doc("Which instance");
  add_deployment_fields(fields, config.deployment);
  fields.add("batch", &p.batch).range(1, 1 << 20).doc("Decode: requests of each DP rank (of each GPU with TP1)");
  fields.add("kv-len", &p.kv_len).range(1, 1 << 24).unit("tokens").doc("Decode: cached tokens of each request, mean");
  fields.add("acceptance", &p.acceptance).range(0, 1).doc("Decode: chance that a draft after a right one is right");
  fields.add("prompt-len", &p.prompt_len).range(1, 1 << 24).unit("tokens").doc("Prefill: tokens of a prompt");
  fields.add("cached-len", &p.cached_len).range(0, 1 << 24).unit("tokens").doc("Prefill: of them in the cache");
  fields.add("chunk-tokens", &p.chunk_tokens)
      .range(1, 1 << 24)
      .unit("tokens")
      .doc("Prefill: new tokens of each DP rank in a step");
  fields.add("json", &config.json).doc("Prints one JSON object");
}

nlohmann::ordered_json json_of(const Prediction& p) {
  nlohmann::ordered_json out;
  const LayerCost& l = p.step.moe_layer;
  out["step_ms"] = p.step.seconds * 1e3;
  out["overlap"] = overlap_name(p.step.overlap);
  out["layer_us"] = {
      {"qkv", l.qkv * 1e6},         {"attention", l.attention * 1e6},       {"output", l.output * 1e6},
      {"shared", l.shared * 1e6},   {"experts", l.experts * 1e6},           {"dispatch", l.dispatch * 1e6},
      {"combine", l.combine * 1e6}, {"exposed_comm", l.exposed_comm * 1e6}, {"total", l.seconds * 1e6}};
  out["tokens_per_s_per_node"] = p.tokens_per_s_per_node;
  out["tokens_per_s_per_user"] = p.tokens_per_s_per_user;
  for (const PlannedBuffer& buffer : p.memory.buffers) out["memory_bytes"][buffer.name] = buffer.num_bytes;
  out["fits"] = p.fits;
  return out;
}

absl::Status run(PredictConfig& config) {
  config.point.phase = config.phase == "prefill" ? Phase::kPrefill : Phase::kDecode;
  MOESAIC_ASSIGN_OR_RETURN(const Deployment deployment, make_deployment(config.deployment));
  MOESAIC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::make(deployment));
  MOESAIC_ASSIGN_OR_RETURN(const Prediction prediction,
                           predict(cost, config.point, gpus_per_node(config.deployment, deployment.hardware)));
  std::fputs((json_of(prediction).dump(2) + "\n").c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

Command plan_predict_command() {
  return make_command<PredictConfig, declare, run>("plan predict",
                                                   "Predicts step time, throughput and memory of one operating point.");
}

}  // namespace moesaic
