#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/plan_command.h"
#include "plan/predict_settings.h"

namespace moesaic {
namespace {

struct PredictConfig {
  PredictSettings settings;
  bool json = false;
};

void declare(ConfigFields& fields, PredictConfig& config) {
  add_predict_fields(fields, config.settings);
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
  MOESAIC_ASSIGN_OR_RETURN(const Prediction prediction, predict(config.settings));
  std::fputs((json_of(prediction).dump(2) + "\n").c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

Command plan_predict_command() {
  return make_command<PredictConfig, declare, run>("plan predict",
                                                   "Predicts step time, throughput and memory of one operating point.");
}

}  // namespace moesaic
