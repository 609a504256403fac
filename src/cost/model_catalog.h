// The models known by name: their config.json lies under data/models. Host-only.
#pragma once

#include <string>
#include <vector>

#include "model/model_config.h"

namespace moesaic {

// "deepseek-v3", or the path of a config.json or of a checkpoint's folder. Errors: unknown names (the message lists the
// known ones), and what ModelConfig::parse refuses.
absl::StatusOr<ModelConfig> find_model(const std::string& name);
std::vector<std::string> model_names();

}  // namespace moesaic
