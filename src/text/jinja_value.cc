#include "text/jinja_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

#include "text/utf8.h"

namespace moesaic::jinja {

namespace {

// Python's repr of a string.
void append_quoted_repr(std::string_view text, std::string& out) {
  const bool double_quotes = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos;
  const char quote = double_quotes ? '"' : '\'';
  constexpr char kHex[] = "0123456789abcdef";
  out += quote;
  for (const char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += quote;
}

int max_depth(const List& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth;
}

int max_depth(const Dict& items) {
  int depth = 0;
  for (const auto& [key, item] : items) depth = std::max(depth, item.depth());
  return depth;
}

}  // namespace

Value Value::undefined(std::string name) {
  Value value;
  value.data_ = Undefined{std::move(name)};
  return value;
}

Value Value::list(List items) {
  Value value;
  value.depth_ = 1 + max_depth(items);
  value.data_ = std::make_shared<const List>(std::move(items));
  return value;
}

Value Value::dict(Dict items) {
  Value value;
  value.depth_ = 1 + max_depth(items);
  value.data_ = std::make_shared<const Dict>(std::move(items));
  return value;
}

absl::StatusOr<Value> Value::from_json(const nlohmann::ordered_json& json, int depth) {
  if (depth > kMaxValueDepth) {
    return absl::InvalidArgumentError(str_cat("a template variable is nested deeper than ", kMaxValueDepth, " levels"));
  }
  if (json.is_null()) return Value(None{});
  if (json.is_boolean()) return Value(json.get<bool>());
  if (json.is_number_unsigned()) return Value(Int{json.get<uint64_t>()});
  if (json.is_number_integer()) return Value(Int{json.get<int64_t>()});
  if (json.is_number()) return Value(json.get<double>());
  if (json.is_string()) return Value(repair_utf8(json.get_ref<const std::string&>()));
  if (json.is_array()) {
    List items;
    items.reserve(json.size());
    for (const auto& item : json) {
      MOESAIC_ASSIGN_OR_RETURN(Value value, from_json(item, depth + 1));
      items.push_back(std::move(value));
    }
    return list(std::move(items));
  }
  if (!json.is_object()) return absl::InvalidArgumentError("a template variable has no JSON type");
  Dict items;
  items.reserve(json.size());
  for (const auto& [key, item] : json.items()) {
    MOESAIC_ASSIGN_OR_RETURN(Value value, from_json(item, depth + 1));
    items.emplace_back(key, std::move(value));
  }
  return dict(std::move(items));
}

const Value* Value::find(std::string_view key) const {
  for (const auto& [name, value] : as_dict()) {
    if (name == key) return &value;
  }
  return nullptr;
}

bool Value::truth() const {
  if (is_undefined() || is_none()) return false;
  if (is_number()) return as_double() != 0;
  if (is_string()) return !as_string().empty();
  if (is_list()) return !as_list().empty();
  if (is_dict()) return !as_dict().empty();
  return true;
}

std::string_view Value::type_name() const {
  constexpr std::string_view kNames[] = {"Undefined", "NoneType", "bool", "int",      "float",
                                         "str",       "list",     "dict", "Namespace"};
  return kNames[data_.index()];
}

std::string Value::text() const {
  if (is_string()) return as_string();
  if (is_undefined()) return "";
  std::string out;
  append_repr(out);
  return out;
}

void Value::append_repr(std::string& out) const {
  if (is_none()) {
    out += "None";
  } else if (is_bool()) {
    out += truth() ? "True" : "False";
  } else if (is_int()) {
    out += int_text(as_int());
  } else if (is_float()) {
    out += float_text(as_double());
  } else if (is_string()) {
    append_quoted_repr(as_string(), out);
  } else if (is_list()) {
    out += '[';
    for (const Value& item : as_list()) {
      if (&item != as_list().data()) out += ", ";
      item.append_repr(out);
    }
    out += ']';
  } else if (is_dict()) {
    out += '{';
    for (const auto& field : as_dict()) {
      if (&field != as_dict().data()) out += ", ";
      append_quoted_repr(field.first, out);
      out += ": ";
      field.second.append_repr(out);
    }
    out += '}';
  } else {
    out += is_undefined() ? "Undefined" : "<Namespace>";
  }
}

bool Value::operator==(const Value& other) const {
  if (is_number() && other.is_number()) {
    if (is_float() || other.is_float()) return as_double() == other.as_double();
    return as_int() == other.as_int();
  }
  if (data_.index() != other.data_.index()) return false;
  if (is_string()) return as_string() == other.as_string();
  if (is_list()) return as_list() == other.as_list();
  if (is_namespace()) return &as_namespace() == &other.as_namespace();
  if (!is_dict()) return true;
  if (as_dict().size() != other.as_dict().size()) return false;
  return std::all_of(as_dict().begin(), as_dict().end(), [&](const auto& field) {
    const Value* const match = other.find(field.first);
    return match != nullptr && *match == field.second;
  });
}

std::string int_text(Int value) {
  if (value == 0) return "0";
  std::string digits;
  unsigned __int128 rest = value < 0 ? -static_cast<unsigned __int128>(value) : static_cast<unsigned __int128>(value);
  for (; rest > 0; rest /= 10) digits += static_cast<char>('0' + static_cast<int>(rest % 10));
  if (value < 0) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  const double size = std::fabs(value);
  const bool fixed = value == 0 || (size >= 1e-4 && size < 1e16);
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(buffer, end);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

bool is_python_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t length = utf8_step(text).length;
    out.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return out;
}

}  // namespace moesaic::jinja
