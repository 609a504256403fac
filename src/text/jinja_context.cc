#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/utf8.h"

namespace moesaic::jinja {

Value Context::fail(Place place, std::string_view message) {
  if (status_.ok()) status_ = template_error(place, message);
  return Value();
}

bool Context::step(Place place, int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ < 0) fail(place, str_cat("rendering took more than ", max_steps_, " steps"));
  return !failed();
}

bool Context::pay(Place place, int64_t bytes) {
  bytes_left_ -= bytes;
  if (bytes_left_ < 0) fail(place, str_cat("rendering made more than ", kMaxBytes >> 20, " MiB of text"));
  return !failed();
}

Value Context::text(Place place, std::string text) {
  return pay(place, static_cast<int64_t>(text.size())) ? Value(std::move(text)) : Value();
}

Value Context::list(Place place, List items) {
  if (!pay(place, static_cast<int64_t>(items.size() * sizeof(Value)))) return Value();
  Value value = Value::list(std::move(items));
  return value.depth() <= kMaxValueDepth
             ? value
             : fail(place, str_cat("a list is nested deeper than ", kMaxValueDepth, " levels"));
}

const Value* Call::arg(size_t index, std::string_view keyword) const {
  if (index < args.size()) return &args[index];
  for (const auto& [name, value] : named) {
    if (name == keyword) return &value;
  }
  return nullptr;
}

bool iterate(const Value& value, Place place, Context& context, List& items) {
  if (value.is_undefined()) return true;
  if (value.is_list()) {
    items = value.as_list();
  } else if (value.is_dict()) {
    for (const auto& field : value.as_dict()) items.emplace_back(field.first);
  } else if (value.is_string()) {
    if (!context.pay(place, static_cast<int64_t>(value.as_string().size() * (sizeof(Value) + 48)))) return false;
    for (const std::string_view character : characters(value.as_string())) items.emplace_back(std::string(character));
  } else {
    context.fail(place, str_cat("'", value.type_name(), "' object is not iterable"));
    return false;
  }
  return context.pay(place, static_cast<int64_t>(items.size() * sizeof(Value)));
}

bool contains(const Value& container, const Value& item, Place place, Context& context) {
  if (container.is_undefined()) return false;
  if (container.is_string()) {
    if (!item.is_string()) {
      return context.fail(place, str_cat("'in <string>' requires string as left operand, not ", item.type_name())),
             false;
    }
    context.step(place, static_cast<int64_t>(container.as_string().size() / 64));
    return container.as_string().find(item.as_string()) != std::string::npos;
  }
  if (container.is_dict()) {
    context.step(place, static_cast<int64_t>(container.as_dict().size()));
    return item.is_string() && container.find(item.as_string()) != nullptr;
  }
  if (container.is_list()) {
    const List& items = container.as_list();
    context.step(place, static_cast<int64_t>(items.size()));
    return std::find(items.begin(), items.end(), item) != items.end();
  }
  return context.fail(place, str_cat("argument of type '", container.type_name(), "' is not iterable")), false;
}

std::string strip(std::string_view text, const std::string* chars, bool left, bool right) {
  const std::vector<std::string_view> set = chars != nullptr ? characters(*chars) : std::vector<std::string_view>();
  const auto strips = [&](std::string_view character) {
    if (chars != nullptr) return std::find(set.begin(), set.end(), character) != set.end();
    return is_python_space(utf8_step(character).code_point);
  };
  while (left && !text.empty()) {
    const size_t length = utf8_step(text).length;
    if (!strips(text.substr(0, length))) break;
    text.remove_prefix(length);
  }
  while (right && !text.empty()) {
    size_t start = text.size() - 1;
    while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    if (!strips(text.substr(start))) break;
    text = text.substr(0, start);
  }
  return std::string(text);
}

std::string replace_all(std::string_view text, std::string_view from, std::string_view to, int64_t count) {
  std::string out;
  while (count-- != 0) {
    const size_t at = from.empty() ? std::string_view::npos : text.find(from);
    if (at == std::string_view::npos) break;
    out += text.substr(0, at);
    out += to;
    text.remove_prefix(at + from.size());
  }
  out += text;
  return out;
}

}  // namespace moesaic::jinja
