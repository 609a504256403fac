// Files that a command leaves behind. Nothing happens for an empty path. Error: a file that cannot be written.
#pragma once

#include <string>

#include "base/status.h"
#include "plan/report.h"

namespace moesaic {

absl::Status write_text(const std::string& text, const std::string& path);
// An HTML page, or its JSON if the name ends in .json.
absl::Status write_report(const Report& report, const std::string& path);

}  // namespace moesaic
