// Operators of chat templates with Python's rules and messages. A failed operand (the context has failed) gives
// undefined. Internal to the template renderer.
#pragma once

#include "text/jinja_builtins.h"

namespace moesaic::jinja {

Value attribute(const Value& object, const std::string& name, Place place, Context& context);
Value subscript(const Value& object, const Value& index, Place place, Context& context);
Value slice(const Value& object, const Value (&bounds)[3], Place place, Context& context);  // bounds: integers or None
Value unary(std::string_view op, const Value& operand, Place place, Context& context);
Value binary(std::string_view op, const Value& left, const Value& right, Place place, Context& context);
bool compare(std::string_view op, const Value& left, const Value& right, Place place, Context& context);

}  // namespace moesaic::jinja
