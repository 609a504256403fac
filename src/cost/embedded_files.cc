#include "cost/embedded_files.h"

#include <algorithm>
#include <fstream>

namespace moesaic {
namespace {

constexpr std::streamsize kMaxFileBytes = 64 << 20;

}  // namespace

std::vector<std::string> embedded_names(std::string_view folder, std::string_view ending) {
  std::vector<std::string> names;
  const std::string begin = str_cat(folder, "/");
  for (const EmbeddedFile& file : embedded_files()) {
    if (!file.path.starts_with(begin) || !file.path.ends_with(ending)) continue;
    names.emplace_back(file.path.substr(begin.size(), file.path.size() - begin.size() - ending.size()));
  }
  std::sort(names.begin(), names.end());
  return names;
}

absl::StatusOr<std::string_view> embedded_text(std::string_view path) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.path == path) return file.text;
  }
  return absl::NotFoundError(str_cat("no file data/", path, " in this program"));
}

absl::StatusOr<std::string> read_text_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamsize size = file ? static_cast<std::streamsize>(file.tellg()) : -1;
  if (size < 0 || size > kMaxFileBytes) {
    return absl::NotFoundError(str_cat(path, " is no readable file of at most ", kMaxFileBytes >> 20, " MiB"));
  }
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(text.data(), size)) return absl::NotFoundError(str_cat("cannot read ", path));
  return text;
}

absl::StatusOr<std::string> named_text(std::string_view kind, std::string_view folder, std::string_view ending,
                                       const std::string& name) {
  const bool is_path = name.find('/') != std::string::npos || std::string_view(name).ends_with(ending);
  if (is_path) return read_text_file(name);
  const auto text = embedded_text(str_cat(folder, "/", name, ending));
  if (text.ok()) return std::string(*text);
  const std::vector<std::string> names = embedded_names(folder, ending);
  const std::string match = closest_match(name, names);
  return absl::InvalidArgumentError(str_cat("unknown ", kind, " ", name, match.empty() ? "" : "; did you mean ", match,
                                            match.empty() ? "" : "?", "; known: ", str_join(names, ", "),
                                            ", or the path of a file (*", ending, ")"));
}

}  // namespace moesaic
