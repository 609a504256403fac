#include "serve/http/fields.h"

#include <cmath>
#include <limits>

#include "serve/http/openai_error.h"

namespace moesaic {

std::string_view json_type_name(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "a string";
    case Json::value_t::boolean:
      return "a boolean";
    default:
      return "a number";
  }
}

bool to_int64(const Json& value, int64_t* out) {
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
    *out = static_cast<int64_t>(number);
    return true;
  }
  if (value.is_number_integer()) {
    *out = value.get<int64_t>();
    return true;
  }
  if (!value.is_number_float()) return false;
  const double number = value.get<double>();
  if (std::trunc(number) != number || std::abs(number) > 9.0e15) return false;
  *out = static_cast<int64_t>(number);
  return true;
}

const Json* Fields::find(std::string_view name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void Fields::number(std::string_view name, double low, double high, float* out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_number()) return fail(invalid_param(name, str_cat("must be a number, got ", json_type_name(*value))));
  const double number = value->get<double>();
  if (!(number >= low && number <= high)) {
    return fail(invalid_param(name, str_cat("must be between ", low, " and ", high, ", got ", number)));
  }
  *out = static_cast<float>(number);
}

void Fields::integer(std::string_view name, int64_t low, int64_t high, int64_t* out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_number()) {
    return fail(invalid_param(name, str_cat("must be an integer, got ", json_type_name(*value))));
  }
  int64_t number = 0;
  if (!to_int64(*value, &number) || number < low || number > high) {
    return fail(
        invalid_param(name, str_cat("must be an integer between ", low, " and ", high, ", got ", value->dump())));
  }
  *out = number;
}

void Fields::boolean(std::string_view name, bool* out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_boolean()) {
    return fail(invalid_param(name, str_cat("must be true or false, got ", json_type_name(*value))));
  }
  *out = value->get<bool>();
}

void Fields::text(std::string_view name, std::string* out) {
  const Json* value = find(name);
  if (value == nullptr) return;
  if (!value->is_string()) return fail(invalid_param(name, str_cat("must be a string, got ", json_type_name(*value))));
  *out = value->get_ref<const std::string&>();
}

}  // namespace moesaic
