#include "text/files.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace moesaic {

absl::StatusOr<std::string> read_text_file(const std::string& path, size_t max_bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status))
    return absl::NotFoundError(str_cat("expected the file ", path, ", found nothing"));
  if (!std::filesystem::is_regular_file(status))
    return absl::InvalidArgumentError(str_cat(path, " is not a regular file"));
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error) return absl::UnavailableError(str_cat("cannot read ", path, ": ", error.message()));
  if (size > max_bytes) {
    return absl::InvalidArgumentError(str_cat(path, ": expected at most ", max_bytes, " bytes, found ", size));
  }
  std::string text(size, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(text.data(), static_cast<std::streamsize>(size));
  if (!file) return absl::UnavailableError(str_cat("cannot read ", path, " (", size, " bytes) to its end"));
  return text;
}

}  // namespace moesaic
