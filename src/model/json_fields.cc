#include "model/json_fields.h"

#include <cmath>

namespace moesaic {

std::string describe_json(const nlohmann::json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  // `replace` keeps invalid UTF-8 from throwing.
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return value.is_string() ? str_cat("the string ", text) : text;
}

const nlohmann::json* JsonFields::find(std::string_view name) const {
  const auto it = object_.find(name);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

void JsonFields::fail(std::string_view message) {
  if (status_.ok()) status_ = absl::InvalidArgumentError(str_cat(where_, ": ", message));
}

void JsonFields::fail_field(std::string_view name, std::string_view expected, const nlohmann::json* found) {
  fail(str_cat("field '", name, "': expected ", expected, ", found ", found ? describe_json(*found) : "nothing"));
}

int64_t JsonFields::integer(std::string_view name, int64_t min, int64_t max, std::optional<int64_t> fallback) {
  const nlohmann::json* value = find(name);
  if (!value && fallback) return *fallback;
  const auto refuse = [&] {
    fail_field(name, str_cat("an integer from ", min, " to ", max), value);
    return fallback.value_or(min);
  };
  if (!value || !value->is_number()) return refuse();
  if (value->is_number_float()) {
    // Some writers store integers as 64.0.
    const double number = value->get<double>();
    if (!(number >= static_cast<double>(min) && number <= static_cast<double>(max)) || number != std::floor(number)) {
      return refuse();
    }
    return static_cast<int64_t>(number);
  }
  if (value->is_number_unsigned()) {
    const uint64_t number = value->get<uint64_t>();
    if (number > static_cast<uint64_t>(max) || static_cast<int64_t>(number) < min) return refuse();
    return static_cast<int64_t>(number);
  }
  const int64_t number = value->get<int64_t>();
  return number < min || number > max ? refuse() : number;
}

double JsonFields::number(std::string_view name, double min, double max, std::optional<double> fallback) {
  const nlohmann::json* value = find(name);
  if (!value && fallback) return *fallback;
  if (value && value->is_number()) {
    const double number = value->get<double>();
    if (number >= min && number <= max) return number;
  }
  fail_field(name, str_cat("a number from ", min, " to ", max), value);
  return fallback.value_or(min);
}

bool JsonFields::boolean(std::string_view name, bool fallback) {
  const nlohmann::json* value = find(name);
  if (!value) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  fail_field(name, "true or false", value);
  return fallback;
}

std::string JsonFields::text(std::string_view name, std::optional<std::string> fallback) {
  const nlohmann::json* value = find(name);
  if (!value && fallback) return *fallback;
  if (value && value->is_string()) return value->get<std::string>();
  fail_field(name, "a string", value);
  return fallback.value_or("");
}

}  // namespace moesaic
