// The text and the JSON of a DeployPlan. Pure.
#pragma once

#include <string>

#include "plan/deploy.h"
#include "plan/validate.h"

namespace moesaic {

// What every prediction stands on: one line of assumptions.
std::string assumptions_text(const Deployment& deployment);
std::string deploy_text(const DeployPlan& plan, const DeployRequest& request, const std::string& model_path);
std::string deploy_json(const DeployPlan& plan, const DeployRequest& request, const std::string& model_path);

// Of `plan predict`. error: of published systems of this phase inside the range (validate.h).
std::string prediction_text(const Prediction& prediction, const Deployment& deployment, const ErrorSummary& error);
std::string prediction_json(const Prediction& prediction, const Deployment& deployment, const ErrorSummary& error);

}  // namespace moesaic
