// Writing a Report to a file: an HTML page, or its JSON if the name ends in .json.
#pragma once

#include <string>

#include "base/status.h"
#include "plan/report.h"

namespace moesaic {

// Nothing happens for an empty path. Error: a file that cannot be written.
absl::Status write_report(const Report& report, const std::string& path);

}  // namespace moesaic
