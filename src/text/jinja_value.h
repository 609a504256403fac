// Value: what a template expression evaluates to, with Python's rules for truth, equality, text and JSON. Cheap to
// copy; strings, lists and dicts are immutable and shared. Depth is bounded, so nothing recurses without end. Internal
// to the template renderer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/status.h"

namespace moesaic::jinja {

class Value;
using Int = __int128;  // holds every 64-bit integer of JSON, signed or not
using List = std::vector<Value>;
using Dict = std::vector<std::pair<std::string, Value>>;  // in order of insertion
struct Namespace;

constexpr int kMaxValueDepth = 100;

struct Undefined {
  std::string name;
};
struct None {};

class Value {
 public:
  Value() : data_(Undefined{}) {}
  Value(None) : data_(None{}) {}
  Value(bool b) : data_(b) {}
  Value(Int i) : data_(i) {}
  Value(int64_t i) : data_(Int{i}) {}
  Value(int i) : data_(Int{i}) {}
  Value(double d) : data_(d) {}
  Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(std::shared_ptr<Namespace> ns) : data_(std::move(ns)) {}
  static Value undefined(std::string name);
  static Value list(List items);
  static Value dict(Dict items);
  // INVALID_ARGUMENT if nested deeper than kMaxValueDepth.
  static absl::StatusOr<Value> from_json(const nlohmann::ordered_json& json, int depth = 0);

  bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
  bool is_none() const { return std::holds_alternative<None>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<Int>(data_); }
  bool is_float() const { return std::holds_alternative<double>(data_); }
  bool is_number() const { return is_int() || is_float() || is_bool(); }
  bool is_string() const { return std::holds_alternative<std::shared_ptr<const std::string>>(data_); }
  bool is_list() const { return std::holds_alternative<std::shared_ptr<const List>>(data_); }
  bool is_dict() const { return std::holds_alternative<std::shared_ptr<const Dict>>(data_); }
  bool is_namespace() const { return std::holds_alternative<std::shared_ptr<Namespace>>(data_); }
  bool is_iterable() const { return is_string() || is_list() || is_dict() || is_undefined(); }

  const std::string& undefined_name() const { return std::get<Undefined>(data_).name; }
  Int as_int() const { return is_bool() ? Int{std::get<bool>(data_)} : std::get<Int>(data_); }
  double as_double() const { return is_float() ? std::get<double>(data_) : static_cast<double>(as_int()); }
  const std::string& as_string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const List& as_list() const { return *std::get<std::shared_ptr<const List>>(data_); }
  const Dict& as_dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Namespace& as_namespace() const { return *std::get<std::shared_ptr<Namespace>>(data_); }

  const Value* find(std::string_view key) const;  // of a dict; null if it is absent
  int depth() const { return depth_; }            // 0 for scalars
  bool truth() const;
  std::string_view type_name() const;  // as Python calls it
  std::string text() const;            // Python's str(); undefined is ""
  bool operator==(const Value& other) const;

 private:
  void append_repr(std::string& out) const;

  std::variant<Undefined, None, bool, Int, double, std::shared_ptr<const std::string>, std::shared_ptr<const List>,
               std::shared_ptr<const Dict>, std::shared_ptr<Namespace>>
      data_;
  int depth_ = 0;
};

// namespace(...): the one mutable value. Never stored inside another value, so there are no cycles.
struct Namespace {
  Dict attributes;
  bool read_only = false;  // `loop`
};

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  int indent = -1;  // -1 = one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};

// Python's json.dumps. False if a value has no JSON form.
bool append_json(const Value& value, const JsonStyle& style, std::string& out, int level = 0);

std::string int_text(Int value);
std::string float_text(double value);  // Python's repr

// Code points and spaces as Python counts them.
bool is_python_space(uint32_t code_point);
std::vector<std::string_view> characters(std::string_view text);

}  // namespace moesaic::jinja
