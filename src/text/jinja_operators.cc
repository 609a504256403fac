#include "text/jinja_operators.h"

#include <algorithm>
#include <cmath>

#include "text/utf8.h"

namespace moesaic::jinja {

namespace {

// Integers of templates stay within 63 bits, so that products of two fit the type.
constexpr Int kMaxInt = (Int{1} << 63) - 1;

Value int_value(Int value, Place place, Context& context) {
  if (value > kMaxInt || value < -kMaxInt) return context.fail(place, "integer overflow");
  return Value(value);
}

Value undefined_operand(const Value& value, Place place, Context& context) {
  return context.fail(place, str_cat("'", value.undefined_name(), "' is undefined"));
}

Value floor_division(std::string_view op, Int left, Int right, Place place, Context& context) {
  if (right == 0) return context.fail(place, "division by zero");
  Int quotient = left / right;
  if (left % right != 0 && (left < 0) != (right < 0)) --quotient;
  return int_value(op == "//" ? quotient : left - quotient * right, place, context);
}

Value arithmetic(std::string_view op, const Value& left, const Value& right, Place place, Context& context) {
  const bool floats = left.is_float() || right.is_float() || op == "/";
  if (!floats) {
    const Int a = left.as_int(), b = right.as_int();
    if (a > 2 * kMaxInt + 1 || b > 2 * kMaxInt + 1) return context.fail(place, "integer overflow");
    if (op == "+") return int_value(a + b, place, context);
    if (op == "-") return int_value(a - b, place, context);
    if (op == "*")
      return std::max(a, b) > kMaxInt ? context.fail(place, "integer overflow") : int_value(a * b, place, context);
    return floor_division(op, a, b, place, context);
  }
  const double a = left.as_double(), b = right.as_double();
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (b == 0) return context.fail(place, "division by zero");
  if (op == "/") return Value(a / b);
  const double quotient = std::floor(a / b);
  return Value(op == "//" ? quotient : a - quotient * b);
}

Value repeat(const Value& text, const Value& times, Place place, Context& context) {
  const Int count = std::max<Int>(0, times.as_int());
  const Int size = static_cast<Int>(text.as_string().size());
  if (size > 0 && count > Context::kMaxBytes / size) return context.fail(place, "the repeated text is too long");
  if (!context.pay(place, static_cast<int64_t>(count * size))) return Value();
  std::string out;
  for (Int i = 0; i < count && size > 0; ++i) out += text.as_string();
  return Value(std::move(out));
}

Value concat_lists(const Value& left, const Value& right, Place place, Context& context) {
  List items = left.as_list();
  items.insert(items.end(), right.as_list().begin(), right.as_list().end());
  return context.list(place, std::move(items));
}

}  // namespace

Value attribute(const Value& object, const std::string& name, Place place, Context& context) {
  if (context.failed()) return Value();
  if (object.is_undefined()) return undefined_operand(object, place, context);
  if (object.is_namespace()) {
    for (const auto& [key, value] : object.as_namespace().attributes) {
      if (key == name) return value;
    }
  } else if (object.is_dict()) {
    context.step(place, static_cast<int64_t>(object.as_dict().size() / 16));
    if (const Value* const found = object.find(name)) return *found;
  } else if (object.is_list() && !name.empty() && name[0] >= '0' && name[0] <= '9') {
    return context.fail(place, "indexing with .N is not supported: write [N]");
  }
  return Value::undefined(name);
}

Value subscript(const Value& object, const Value& index, Place place, Context& context) {
  if (context.failed()) return Value();
  if (object.is_undefined()) return undefined_operand(object, place, context);
  if (index.is_string()) return attribute(object, index.as_string(), place, context);
  if (!index.is_int() && !index.is_bool()) return Value::undefined(str_cat("item ", index.text()));
  if (object.is_list()) {
    const Int size = static_cast<Int>(object.as_list().size());
    const Int at = index.as_int() < 0 ? index.as_int() + size : index.as_int();
    if (at >= 0 && at < size) return object.as_list()[static_cast<size_t>(at)];
  } else if (object.is_string()) {
    context.step(place, static_cast<int64_t>(object.as_string().size() / 64));
    const auto all = characters(object.as_string());
    const Int size = static_cast<Int>(all.size());
    const Int at = index.as_int() < 0 ? index.as_int() + size : index.as_int();
    if (at >= 0 && at < size) return context.text(place, std::string(all[static_cast<size_t>(at)]));
  }
  return Value::undefined(str_cat("item ", index.text()));
}

Value slice(const Value& object, const Value (&bounds)[3], Place place, Context& context) {
  if (object.is_undefined()) return undefined_operand(object, place, context);
  if (!object.is_list() && !object.is_string())
    return context.fail(place, str_cat("'", object.type_name(), "' object cannot be sliced"));
  List items;
  if (!iterate(object, place, context, items)) return Value();
  const Int size = static_cast<Int>(items.size());
  for (const Value& bound : bounds) {
    if (!bound.is_none() && !bound.is_int()) return context.fail(place, "slice indices must be integers or None");
  }
  const Int step = bounds[2].is_none() ? Int{1} : bounds[2].as_int();
  if (step == 0) return context.fail(place, "slice step cannot be zero");
  const Int low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  const auto bound = [&](const Value& value, Int absent) {
    if (value.is_none()) return absent;
    const Int at = value.as_int() < 0 ? value.as_int() + size : value.as_int();
    return std::clamp(at, low, high);
  };
  const Int start = bound(bounds[0], step > 0 ? low : high), stop = bound(bounds[1], step > 0 ? high : low);
  List kept;
  for (Int i = start; step > 0 ? i < stop : i > stop; i += step) kept.push_back(items[static_cast<size_t>(i)]);
  if (object.is_list()) return context.list(place, std::move(kept));
  std::string text;
  for (const Value& character : kept) text += character.as_string();
  return context.text(place, std::move(text));
}

Value unary(std::string_view op, const Value& operand, Place place, Context& context) {
  if (context.failed()) return Value();
  if (op == "not") return Value(!operand.truth());
  if (!operand.is_number())
    return context.fail(place, str_cat("bad operand type for unary ", op, ": '", operand.type_name(), "'"));
  if (op == "+") return operand;
  return operand.is_float() ? Value(-operand.as_double()) : int_value(-operand.as_int(), place, context);
}

Value binary(std::string_view op, const Value& left, const Value& right, Place place, Context& context) {
  if (context.failed()) return Value();
  if (op == "~") {
    std::string text = left.text();
    return context.text(place, std::move(text) + right.text());
  }
  if (left.is_undefined()) return undefined_operand(left, place, context);
  if (right.is_undefined()) return undefined_operand(right, place, context);
  if (left.is_number() && right.is_number()) return arithmetic(op, left, right, place, context);
  if (op == "+" && left.is_string() && right.is_string())
    return context.text(place, left.as_string() + right.as_string());
  if (op == "+" && left.is_list() && right.is_list()) return concat_lists(left, right, place, context);
  if (op == "*" && left.is_string() && right.is_int()) return repeat(left, right, place, context);
  if (op == "*" && left.is_int() && right.is_string()) return repeat(right, left, place, context);
  if (op == "+" && left.is_string()) {
    return context.fail(place, str_cat("can only concatenate str (not \"", right.type_name(), "\") to str"));
  }
  return context.fail(
      place, str_cat("unsupported operand types for ", op, ": '", left.type_name(), "' and '", right.type_name(), "'"));
}

bool compare(std::string_view op, const Value& left, const Value& right, Place place, Context& context) {
  if (op == "in" || op == "not in") return contains(right, left, place, context) == (op == "in");
  if (op == "==" || op == "!=") {
    context.step(place, left.is_list()   ? static_cast<int64_t>(left.as_list().size())
                        : left.is_dict() ? static_cast<int64_t>(left.as_dict().size())
                                         : 0);
    return (left == right) == (op == "==");
  }
  int order = 0;
  if (left.is_number() && right.is_number()) {
    const double a = left.as_double(), b = right.as_double();
    if (std::isnan(a) || std::isnan(b)) return false;
    order = left.is_float() || right.is_float() ? (a > b) - (a < b)
                                                : (left.as_int() > right.as_int()) - (left.as_int() < right.as_int());
  } else if (left.is_string() && right.is_string()) {
    order = left.as_string().compare(right.as_string());
  } else {
    context.fail(place,
                 str_cat("'", op, "' not supported between '", left.type_name(), "' and '", right.type_name(), "'"));
    return false;
  }
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

}  // namespace moesaic::jinja
