// The text, the JSON and the page of a DeployPlan and its DeployQueues. Pure.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "plan/deploy_queues.h"
#include "plan/report.h"

namespace moesaic {

// What every prediction stands on: one line of assumptions.
std::string assumptions_text(const Deployment& deployment);
// The same of a whole plan, with what published systems say of its error: a sentence each.
std::vector<std::string> deploy_assumptions(const DeployPlan& plan, const DeployRequest& request);
// What the figures with queues are of: "1 x ... decode, 2 x ... prefill", or that nothing held.
std::string queues_summary(const DeployQueues& queues);
std::string deploy_text(const DeployPlan& plan, const DeployQueues& queues, const DeployRequest& request,
                        const std::string& model_path);
std::string deploy_json(const DeployPlan& plan, const DeployQueues& queues, const DeployRequest& request,
                        const std::string& model_path);
Report deploy_report(const DeployPlan& plan, const DeployQueues& queues, const DeployRequest& request,
                     const std::string& command);

// Parts of a MoE layer, by the names that all outputs give them.
inline constexpr std::pair<const char*, double LayerCost::*> kLayerParts[] = {
    {"qkv", &LayerCost::qkv},         {"attention", &LayerCost::attention},       {"output", &LayerCost::output},
    {"shared", &LayerCost::shared},   {"experts", &LayerCost::experts},           {"dispatch", &LayerCost::dispatch},
    {"combine", &LayerCost::combine}, {"exposed_comm", &LayerCost::exposed_comm}, {"total", &LayerCost::seconds}};

// Of `plan predict`. error: of published systems of this phase inside the range (validate.h).
std::string prediction_text(const Prediction& prediction, const Deployment& deployment, const ErrorSummary& error);
std::string prediction_json(const Prediction& prediction, const Deployment& deployment, const ErrorSummary& error);

}  // namespace moesaic
