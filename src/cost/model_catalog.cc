#include "cost/model_catalog.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cost/embedded_files.h"

namespace moesaic {
namespace {

constexpr char kFolder[] = "models";
constexpr char kEnding[] = ".json";

// Models whose config.json has the same sizes as another's.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"deepseek-r1", "deepseek-v3"}, {"deepseek-v3.1", "deepseek-v3"}, {"v2-lite", "deepseek-v2-lite"}};

}  // namespace

absl::StatusOr<ModelConfig> find_model(const std::string& name) {
  std::error_code error;
  if (std::filesystem::is_directory(name, error)) return ModelConfig::load(name);
  std::string file = name;
  for (const auto& [alias, known] : kAliases) {
    if (name == alias) file = known;
  }
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, named_text("model", kFolder, kEnding, file));
  auto config = ModelConfig::parse(text);
  if (!config.ok()) return annotate(config.status(), name);
  return config;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names = embedded_names(kFolder, kEnding);
  for (const auto& alias : kAliases) names.emplace_back(alias.first);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace moesaic
