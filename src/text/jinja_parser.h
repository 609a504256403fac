// Parser of chat templates. Whatever it does not know is refused here, by name and place, so that a template either
// renders or fails at load. Internal to the template renderer.
#pragma once

#include "text/jinja_ast.h"

namespace moesaic::jinja {

constexpr int kMaxNesting = 64;     // of statements, and of brackets in an expression
constexpr int kMaxExprDepth = 400;  // of an expression tree: "a + b + c" is 3 deep

absl::StatusOr<Body> parse_template(std::string_view source);

}  // namespace moesaic::jinja
