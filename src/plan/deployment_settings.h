// Settings that the planning commands share: which model on which hardware in which layout.
#pragma once

#include <string>

#include "base/config_fields.h"
#include "cost/cost_model.h"
#include "plan/predict.h"

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
  double balancedness = 0;  // 0 = default_balancedness()
  int64_t gpus_per_node = 0;
  std::string kernels;
};

void add_deployment_fields(ConfigFields& fields, DeploymentSettings& settings);
// Errors: unknown model or hardware, sizes that contradict each other.
absl::StatusOr<Deployment> make_deployment(const DeploymentSettings& settings, Phase phase = Phase::kDecode);
// What throughput says of served traffic with balanced experts: 0.85 in decode, 0.68 in prefill (SGLang, F077 and
// F073). With pplx 1: its published figures are of even routing.
double default_balancedness(CommFamily comm, Phase phase);
// Of the settings, or of the hardware.
int64_t gpus_per_node(const DeploymentSettings& settings, const HardwareSpec& hardware);

const char* overlap_name(OverlapMode mode);

}  // namespace moesaic
