#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "base/config_fields.h"

namespace moesaic {
namespace {

constexpr size_t kMaxFileBytes = 1 << 20;

absl::StatusOr<ConfigEntry> make_entry(const std::string& where, std::string_view name, const toml::node& node) {
  ConfigEntry entry{.name = std::string(name),
                    .kind = ConfigEntry::Kind::kString,
                    .text = "",
                    .line = static_cast<int64_t>(node.source().begin.line)};
  if (const auto* text = node.as_string()) {
    entry.text = text->get();
  } else if (const auto* integer = node.as_integer()) {
    entry.kind = ConfigEntry::Kind::kInteger;
    entry.text = str_cat(integer->get());
  } else if (const auto* real = node.as_floating_point()) {
    entry.kind = ConfigEntry::Kind::kFloat;
    entry.text = str_cat(real->get());
  } else if (const auto* boolean = node.as_boolean()) {
    entry.kind = ConfigEntry::Kind::kBoolean;
    entry.text = str_cat(boolean->get());
  } else {
    return absl::InvalidArgumentError(str_cat(where, ":", entry.line, ": ", name,
                                              " expects a text, a number or true/false, found a table, array or date"));
  }
  return entry;
}

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> read_config_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::NotFoundError(str_cat("--config: cannot read ", path));
  std::string text(kMaxFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || !file.eof()) {
    return absl::InvalidArgumentError(
        str_cat("--config: ", path, " is no readable file of at most ", kMaxFileBytes, " bytes"));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  return parse_config_text(text, path);
}

absl::StatusOr<std::vector<ConfigEntry>> parse_config_text(std::string_view text, const std::string& path) {
  const toml::parse_result parsed = toml::parse(text, path);
  if (!parsed) {
    return absl::InvalidArgumentError(
        str_cat(path, ":", parsed.error().source().begin.line, ": ", parsed.error().description()));
  }
  std::vector<ConfigEntry> entries;
  for (const auto& [key, node] : parsed.table()) {
    MOESAIC_ASSIGN_OR_RETURN(ConfigEntry entry, make_entry(path, key.str(), node));
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
  return entries;
}

}  // namespace moesaic
