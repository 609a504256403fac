// JsonFields: typed, range-checked reads from one JSON object. The first problem is kept and later reads return
// defaults, so that callers read all fields and check status() once. Borrowed object; one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "base/status.h"

namespace moesaic {

class JsonFields {
 public:
  // `where` stands before field names in messages, e.g. "config.json".
  JsonFields(const nlohmann::json& object, std::string where) : object_(object), where_(std::move(where)) {}

  bool has(std::string_view name) const { return find(name) != nullptr; }  // present and not null
  bool is_null(std::string_view name) const {
    const auto it = object_.find(name);
    return it != object_.end() && it->is_null();
  }
  // An absent or null field gives the default; without a default that is an error.
  int64_t integer(std::string_view name, int64_t min, int64_t max, std::optional<int64_t> fallback = std::nullopt);
  double number(std::string_view name, double min, double max, std::optional<double> fallback = std::nullopt);
  bool boolean(std::string_view name, bool fallback);
  std::string text(std::string_view name, std::optional<std::string> fallback = std::nullopt);
  // The object's value, or null when absent.
  const nlohmann::json* find(std::string_view name) const;

  void fail(std::string_view message);
  const absl::Status& status() const { return status_; }

 private:
  void fail_field(std::string_view name, std::string_view expected, const nlohmann::json* found);

  const nlohmann::json& object_;
  std::string where_;
  absl::Status status_;
};

// What a JSON value is, for messages: `the string "abc"`, `-3`, `an object`.
std::string describe_json(const nlohmann::json& value);

}  // namespace moesaic
