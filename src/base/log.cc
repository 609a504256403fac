#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>

namespace moesaic {
namespace {

spdlog::logger& logger() {
  static spdlog::logger* instance = [] {
    auto* made = new spdlog::logger("moesaic", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
    const char* level = std::getenv("MOESAIC_LOG");
    made->set_level(level == nullptr ? spdlog::level::info : spdlog::level::from_str(level));
    return made;
  }();
  return *instance;
}

}  // namespace

void log_debug(std::string_view message) {
  logger().debug(message);
}
void log_info(std::string_view message) {
  logger().info(message);
}
void log_warn(std::string_view message) {
  logger().warn(message);
}
void log_error(std::string_view message) {
  logger().error(message);
}
void log_flush() {
  logger().flush();
}

}  // namespace moesaic
