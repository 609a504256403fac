// Filters, tests, methods and functions of chat templates, and the Context that bounds a rendering: steps and bytes are
// paid from budgets, the first failure sticks. Internal to the template renderer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_ast.h"

namespace moesaic::jinja {

class Context {
 public:
  static constexpr int64_t kMaxBytes = 256 << 20;  // of all strings and lists made on the way

  explicit Context(int64_t max_steps) : max_steps_(max_steps), steps_left_(max_steps) {}

  bool failed() const { return !status_.ok(); }
  const absl::Status& status() const { return status_; }
  // Returns undefined, so that callers can return the call.
  Value fail(Place place, std::string_view message);
  bool step(Place place, int64_t steps = 1);
  bool pay(Place place, int64_t bytes);
  // A string on the bytes budget.
  Value text(Place place, std::string text);
  Value list(Place place, List items);

 private:
  absl::Status status_;
  int64_t max_steps_;
  int64_t steps_left_;
  int64_t bytes_left_ = kMaxBytes;
};

// What a filter, test, method or function is called with. args[0] is the object, except for functions.
struct Call {
  const std::string& name;
  Place place;
  std::vector<Value> args;
  std::vector<std::pair<std::string, Value>> named;

  const Value* arg(size_t index, std::string_view keyword) const;  // null if it was not given
};

bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);
bool is_known_method(std::string_view name);
bool is_known_function(std::string_view name);

Value call_filter(const Call& call, Context& context);
Value call_test(const Call& call, Context& context);
Value call_method(const Call& call, Context& context);
Value call_function(const Call& call, Context& context);

// The items of a list, the keys of a dict, the characters of a string; fails on anything else.
bool iterate(const Value& value, Place place, Context& context, List& items);
bool contains(const Value& container, const Value& item, Place place, Context& context);

std::string strip(std::string_view text, const std::string* chars, bool left, bool right);
std::string replace_all(std::string_view text, std::string_view from, std::string_view to, int64_t count);

}  // namespace moesaic::jinja
