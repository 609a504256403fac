// The sampling defaults of generation_config.json.
#pragma once

#include <string>

#include "base/status.h"
#include "serve/http/served_model.h"

namespace moesaic {

// Neutral values where the file, or a field, is missing. Errors name the field.
absl::StatusOr<SamplingDefaults> load_sampling_defaults(const std::string& model_dir);
absl::StatusOr<SamplingDefaults> parse_sampling_defaults(const std::string& json_text);

}  // namespace moesaic
