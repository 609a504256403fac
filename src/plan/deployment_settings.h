// Settings that the planning commands share: which model on which hardware in which layout.
#pragma once

#include <string>

#include "base/config_fields.h"
#include "cost/cost_model.h"

namespace moesaic {

struct DeploymentSettings {
  std::string model = "deepseek-v3";
  std::string hardware = "h100";
  int32_t ep = 0;
  int32_t dp = 0;
  int32_t tp = 0;
  int64_t redundant_experts = 0;
  std::string comm = "deepep";
  std::string overlap = "best";
  int64_t draft = 0;
  std::string kv_cache_dtype = "bf16";
  double balancedness = 1.0;
  int64_t gpus_per_node = 0;
};

void add_deployment_fields(ConfigFields& fields, DeploymentSettings& settings);
// Errors: unknown model or hardware, sizes that contradict each other.
absl::StatusOr<Deployment> make_deployment(const DeploymentSettings& settings);
// Of the settings, or of the hardware.
int64_t gpus_per_node(const DeploymentSettings& settings, const HardwareSpec& hardware);

const char* overlap_name(OverlapMode mode);

}  // namespace moesaic
