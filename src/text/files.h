// Reads the small files of a model directory whole. Any thread.
#pragma once

#include <string>

#include "base/status.h"

namespace moesaic {

// NOT_FOUND if it does not exist; INVALID_ARGUMENT if it is longer than `max_bytes` or not a regular file.
absl::StatusOr<std::string> read_text_file(const std::string& path, size_t max_bytes);

}  // namespace moesaic
