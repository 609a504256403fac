// The files under data/, compiled into the program: hardware, models, published figures. Their source is made by CMake
// (cmake/embed.cmake) at build time. Immutable; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace moesaic {

struct EmbeddedFile {
  std::string_view path;  // below data/: "hardware/h100.toml"
  std::string_view text;
};

std::span<const EmbeddedFile> embedded_files();

// "h100" for "hardware/h100.toml", of all files in `folder` that end with `ending`, sorted.
std::vector<std::string> embedded_names(std::string_view folder, std::string_view ending);
// NOT_FOUND if the program was built without such a file.
absl::StatusOr<std::string_view> embedded_text(std::string_view path);

// What `name` stands for: the embedded file `folder`/`name``ending`, or, when it holds a slash or ends with `ending`, a
// file of the user. Errors list the known names.
absl::StatusOr<std::string> named_text(std::string_view kind, std::string_view folder, std::string_view ending,
                                       const std::string& name);
// The whole file, at most 64 MiB.
absl::StatusOr<std::string> read_text_file(const std::string& path);

}  // namespace moesaic
