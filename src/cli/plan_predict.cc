#include <cstdio>

#include "cli/plan_command.h"
#include "plan/deploy_report.h"
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

absl::Status run(PredictConfig& config) {
  MOESAIC_ASSIGN_OR_RETURN(const Predicted predicted, predict(config.settings));
  MOESAIC_ASSIGN_OR_RETURN(const ErrorSummary error, known_error(predicted.prediction.phase));
  const auto print = config.json ? prediction_json : prediction_text;
  std::fputs(print(predicted.prediction, predicted.deployment, error).c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

Command plan_predict_command() {
  return make_command<PredictConfig, declare, run>("plan predict",
                                                   "Predicts step time, throughput and memory of one operating point.");
}

}  // namespace moesaic
