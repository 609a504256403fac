#include "base/check.h"

#include <execinfo.h>
#include <unistd.h>

#include <cstdlib>

#include "base/log.h"

namespace moesaic::internal {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  std::string message = std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition;
  if (!values.empty()) message += " (" + values + ")";
  log_error(message);
  log_flush();
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  std::abort();
}

}  // namespace moesaic::internal
