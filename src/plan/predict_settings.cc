#include "plan/predict_settings.h"

namespace moesaic {

void add_predict_fields(ConfigFields& fields, PredictSettings& settings) {
  OperatingPoint& p = settings.point;
  fields.add("phase", &settings.phase).choices({"decode", "prefill"}).doc("Which instance");
  add_deployment_fields(fields, settings.deployment);
  fields.add("batch", &p.batch).range(1, 1 << 20).doc("Decode: requests of each DP rank (of each GPU with TP1)");
  fields.add("kv-len", &p.kv_len).range(1, 1 << 24).unit("tokens").doc("Decode: cached tokens of each request, mean");
  fields.add("acceptance", &p.acceptance).range(0, 1).doc("Decode: chance that a draft after a right one is right");
  fields.add("prompt-len", &p.prompt_len).range(1, 1 << 24).unit("tokens").doc("Prefill: tokens of a prompt");
  fields.add("cached-len", &p.cached_len).range(0, 1 << 24).unit("tokens").doc("Prefill: of them in the cache");
  fields.add("chunk-tokens", &p.chunk_tokens)
      .range(1, 1 << 24)
      .unit("tokens")
      .doc("Prefill: new tokens of each DP rank in a step");
}

absl::StatusOr<Predicted> predict(const PredictSettings& settings) {
  OperatingPoint point = settings.point;
  point.phase = settings.phase == "prefill" ? Phase::kPrefill : Phase::kDecode;
  Predicted out;
  MOESAIC_ASSIGN_OR_RETURN(out.deployment, make_deployment(settings.deployment, point.phase));
  MOESAIC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::make(out.deployment));
  MOESAIC_ASSIGN_OR_RETURN(out.prediction,
                           predict(cost, point, gpus_per_node(settings.deployment, out.deployment.hardware)));
  return out;
}

}  // namespace moesaic
