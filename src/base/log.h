// Log lines to stderr with time, level and thread name. Any thread. MOESAIC_LOG=debug|info|warn|error|off sets the
// level (default info); it is the only environment variable that Moesaic reads. Never called inside a step.
//
//   log_info(str_cat("loaded ", num_tensors, " tensors"));
#pragma once

#include <string_view>

namespace moesaic {

void log_debug(std::string_view message);
void log_info(std::string_view message);
void log_warn(std::string_view message);
void log_error(std::string_view message);
void log_flush();

}  // namespace moesaic
