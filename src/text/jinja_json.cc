// Python's json.dumps over template values.
#include <algorithm>
#include <cmath>

#include "text/jinja_value.h"
#include "text/utf8.h"

namespace moesaic::jinja {

namespace {

void append_escape(uint32_t unit, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHex[unit >> shift & 15];
}

void append_json_string(std::string_view text, bool ensure_ascii, std::string& out) {
  out += '"';
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const uint32_t c = step.code_point;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (c < 0x20 || (ensure_ascii && c >= 0x7F && c < 0x10000 && c != 0x7F)) {
          append_escape(c, out);
        } else if (ensure_ascii && c >= 0x10000) {
          append_escape(0xD800 + ((c - 0x10000) >> 10), out);
          append_escape(0xDC00 + ((c - 0x10000) & 0x3FF), out);
        } else {
          out += text.substr(0, step.length);
        }
    }
    text.remove_prefix(step.length);
  }
  out += '"';
}

void append_break(const JsonStyle& style, int level, std::string& out) {
  if (style.indent < 0) return;
  out += '\n';
  out.append(static_cast<size_t>(style.indent) * level, ' ');
}

bool append_list(const List& items, const JsonStyle& style, std::string& out, int level) {
  if (items.empty()) {
    out += "[]";
    return true;
  }
  out += '[';
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += style.item_separator;
    append_break(style, level + 1, out);
    if (!append_json(items[i], style, out, level + 1)) return false;
  }
  append_break(style, level, out);
  out += ']';
  return true;
}

bool append_dict(const Dict& items, const JsonStyle& style, std::string& out, int level) {
  if (items.empty()) {
    out += "{}";
    return true;
  }
  std::vector<const Dict::value_type*> order;
  for (const auto& item : items) order.push_back(&item);
  if (style.sort_keys) {
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  }
  out += '{';
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0) out += style.item_separator;
    append_break(style, level + 1, out);
    append_json_string(order[i]->first, style.ensure_ascii, out);
    out += style.key_separator;
    if (!append_json(order[i]->second, style, out, level + 1)) return false;
  }
  append_break(style, level, out);
  out += '}';
  return true;
}

}  // namespace

bool append_json(const Value& value, const JsonStyle& style, std::string& out, int level) {
  if (value.is_string()) {
    append_json_string(value.as_string(), style.ensure_ascii, out);
  } else if (value.is_list()) {
    return append_list(value.as_list(), style, out, level);
  } else if (value.is_dict()) {
    return append_dict(value.as_dict(), style, out, level);
  } else if (value.is_none()) {
    out += "null";
  } else if (value.is_bool()) {
    out += value.truth() ? "true" : "false";
  } else if (value.is_int()) {
    out += int_text(value.as_int());
  } else if (value.is_float()) {
    const double d = value.as_double();
    out += std::isnan(d) ? "NaN" : std::isinf(d) ? (d > 0 ? "Infinity" : "-Infinity") : float_text(d);
  } else {
    return false;
  }
  return true;
}

}  // namespace moesaic::jinja
