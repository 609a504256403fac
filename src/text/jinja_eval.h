// Evaluator: runs a parsed chat template once. Internal to the template renderer; one per rendering, not thread-safe.
#pragma once

#include <string>

#include "text/jinja_builtins.h"

namespace moesaic::jinja {

constexpr size_t kMaxOutputBytes = 64 << 20;

absl::StatusOr<std::string> render_template(const Body& body, Dict variables, int64_t max_steps);

}  // namespace moesaic::jinja
