// The settings of one prediction: what `moesaic plan predict` reads from its command line and `plan validate` from its
// table.
#pragma once

#include <string>

#include "plan/deployment_settings.h"
#include "plan/predict.h"

namespace moesaic {

struct PredictSettings {
  DeploymentSettings deployment;
  std::string phase = "decode";
  OperatingPoint point{.batch = 128, .kv_len = 2000, .acceptance = 0.6, .prompt_len = 4096, .chunk_tokens = 16384};
};

void add_predict_fields(ConfigFields& fields, PredictSettings& settings);

struct Predicted {
  Deployment deployment;
  Prediction prediction;
};
absl::StatusOr<Predicted> predict(const PredictSettings& settings);

}  // namespace moesaic
