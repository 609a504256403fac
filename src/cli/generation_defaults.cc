#include "cli/generation_defaults.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/file_map.h"

namespace moesaic {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;

template <typename T>
absl::Status read_number(const nlohmann::json& object, const char* name, double min, double max, T* value) {
  const auto it = object.find(name);
  if (it == object.end() || it->is_null()) return absl::OkStatus();
  if (!it->is_number() || !(it->get<double>() >= min && it->get<double>() <= max)) {
    return absl::InvalidArgumentError(
        str_cat("generation_config.json: ", name, " expects a number from ", min, " to ", max, ", found ", it->dump()));
  }
  *value = static_cast<T>(it->get<double>());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SamplingDefaults> parse_sampling_defaults(const std::string& json_text) {
  SamplingDefaults defaults;
  const nlohmann::json object = nlohmann::json::parse(json_text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return absl::InvalidArgumentError("generation_config.json: expected a JSON object");
  MOESAIC_RETURN_IF_ERROR(read_number(object, "temperature", 0, 100, &defaults.temperature));
  MOESAIC_RETURN_IF_ERROR(read_number(object, "top_p", 0, 1, &defaults.top_p));
  MOESAIC_RETURN_IF_ERROR(read_number(object, "top_k", -1, 1e9, &defaults.top_k));
  MOESAIC_RETURN_IF_ERROR(read_number(object, "min_p", 0, 1, &defaults.min_p));
  MOESAIC_RETURN_IF_ERROR(read_number(object, "repetition_penalty", 0.01, 100, &defaults.repetition_penalty));
  if (defaults.top_k < 0) defaults.top_k = 0;
  const auto sample = object.find("do_sample");
  if (sample != object.end() && sample->is_boolean() && !sample->get<bool>()) defaults.temperature = 0.0f;
  return defaults;
}

absl::StatusOr<SamplingDefaults> load_sampling_defaults(const std::string& model_dir) {
  const std::string path = model_dir + "/generation_config.json";
  if (!file_exists(path)) return SamplingDefaults();
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
  return parse_sampling_defaults(text);
}

}  // namespace moesaic
