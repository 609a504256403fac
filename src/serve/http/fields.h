// Fields: typed reading of a JSON object from a client. null counts as absent; the first error is kept and later reads
// do nothing harmful, so a caller reads all and checks status() once.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "serve/http/json.h"

namespace moesaic {

// How a JSON value is called in messages: "a string", "a number", ...
std::string_view json_type_name(const Json& value);

class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}  // borrowed

  const Json* find(std::string_view name) const;  // nullptr if absent or null
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // Each leaves *out alone when the field is absent. Closed ranges.
  void number(std::string_view name, double low, double high, float* out);
  void integer(std::string_view name, int64_t low, int64_t high, int64_t* out);
  void boolean(std::string_view name, bool* out);
  void text(std::string_view name, std::string* out);

  void fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json& object_;
  absl::Status status_;
};

// True and *out set if `value` is a number without fraction that fits int64.
bool to_int64(const Json& value, int64_t* out);

}  // namespace moesaic
