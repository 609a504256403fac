// Methods of strings and dicts in chat templates.
#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/utf8.h"

namespace moesaic::jinja {

namespace {

// An optional string argument; false if it is of another type.
bool string_arg(const Call& call, size_t index, std::string_view keyword, Context& context, const std::string** out) {
  const Value* const value = call.arg(index, keyword);
  *out = value != nullptr && value->is_string() ? &value->as_string() : nullptr;
  if (value == nullptr || value->is_none() || value->is_string()) return true;
  context.fail(call.place, str_cat(call.name, "(): expected a string, found ", value->type_name()));
  return false;
}

Value split_spaces(const Call& call, Context& context, int64_t most) {
  List parts;
  std::string_view rest = call.args[0].as_string();
  while (true) {
    const std::string left = strip(rest, nullptr, true, false);
    rest = rest.substr(rest.size() - left.size());
    if (rest.empty()) break;
    size_t end = 0;
    while (end < rest.size() && !is_python_space(utf8_step(rest.substr(end)).code_point))
      end += utf8_step(rest.substr(end)).length;
    const bool last = most >= 0 && static_cast<int64_t>(parts.size()) == most;
    if (last) end = rest.size();
    if (!context.pay(call.place, static_cast<int64_t>(rest.size()))) return Value();
    parts.emplace_back(std::string(rest.substr(0, end)));
    rest.remove_prefix(end);
  }
  return context.list(call.place, std::move(parts));
}

Value split(const Call& call, Context& context, bool from_right) {
  const std::string* separator = nullptr;
  if (!string_arg(call, 1, "sep", context, &separator)) return Value();
  const Value* const limit = call.arg(2, "maxsplit");
  if (limit != nullptr && !limit->is_int()) return context.fail(call.place, "split(): expected an integer maxsplit");
  const int64_t most = limit != nullptr ? static_cast<int64_t>(limit->as_int()) : -1;
  if (separator == nullptr && from_right)
    return context.fail(call.place, "rsplit() without a separator is not supported");
  if (separator == nullptr) return split_spaces(call, context, most);
  if (separator->empty()) return context.fail(call.place, "split(): empty separator");
  List parts;
  std::string_view rest = call.args[0].as_string();
  if (!context.pay(call.place, static_cast<int64_t>(rest.size()))) return Value();
  for (int64_t i = 0; most < 0 || i < most; ++i) {
    const size_t at = from_right ? rest.rfind(*separator) : rest.find(*separator);
    if (at == std::string_view::npos) break;
    if (!context.step(call.place)) return Value();
    const std::string_view behind = rest.substr(at + separator->size());
    parts.emplace_back(std::string(from_right ? behind : rest.substr(0, at)));
    rest = from_right ? rest.substr(0, at) : behind;
  }
  parts.emplace_back(std::string(rest));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return context.list(call.place, std::move(parts));
}

Value strip_method(const Call& call, Context& context, bool left, bool right) {
  const std::string* chars = nullptr;
  if (!string_arg(call, 1, "chars", context, &chars)) return Value();
  return context.text(call.place, strip(call.args[0].as_string(), chars, left, right));
}

Value has_affix(const Call& call, Context& context, bool start) {
  List affixes;
  if (call.args.size() == 2 && call.args[1].is_list()) affixes = call.args[1].as_list();
  if (call.args.size() == 2 && call.args[1].is_string()) affixes.push_back(call.args[1]);
  if (affixes.empty()) return context.fail(call.place, str_cat(call.name, "(): expected a string"));
  const std::string_view text = call.args[0].as_string();
  return Value(std::any_of(affixes.begin(), affixes.end(), [&](const Value& affix) {
    return affix.is_string() && (start ? text.starts_with(affix.as_string()) : text.ends_with(affix.as_string()));
  }));
}

Value find_method(const Call& call, Context& context) {
  const std::string* part = nullptr;
  if (!string_arg(call, 1, "sub", context, &part)) return Value();
  if (part == nullptr) return context.fail(call.place, "find(): expected a string");
  const std::string& text = call.args[0].as_string();
  const size_t at = text.find(*part);
  if (at == std::string::npos) return Value(-1);
  if (!context.step(call.place, static_cast<int64_t>(at / 64))) return Value();
  return Value(static_cast<int64_t>(characters(std::string_view(text).substr(0, at)).size()));
}

Value string_method(const Call& call, Context& context) {
  const std::string& name = call.name;
  context.step(call.place, static_cast<int64_t>(call.args[0].as_string().size() / 64));
  if (name == "split" || name == "rsplit") return split(call, context, name == "rsplit");
  if (name == "strip") return strip_method(call, context, true, true);
  if (name == "lstrip") return strip_method(call, context, true, false);
  if (name == "rstrip") return strip_method(call, context, false, true);
  if (name == "startswith") return has_affix(call, context, true);
  if (name == "endswith") return has_affix(call, context, false);
  if (name == "find") return find_method(call, context);
  if (name == "replace" || name == "upper" || name == "lower") return call_filter(call, context);
  return context.fail(call.place, str_cat("'str' object has no method ", name, "()"));
}

Value dict_method(const Call& call, Context& context) {
  const Value& dict = call.args[0];
  if (call.name == "items") return call_filter(call, context);
  if (call.name == "get") {
    const Value* const key = call.arg(1, "key");
    const Value* const fallback = call.arg(2, "default");
    if (key == nullptr) return context.fail(call.place, "get(): expected a key");
    const Value* const found = key->is_string() ? dict.find(key->as_string()) : nullptr;
    return found != nullptr ? *found : fallback != nullptr ? *fallback : Value(None{});
  }
  if (call.name != "keys" && call.name != "values")
    return context.fail(call.place, str_cat("'dict' object has no method ", call.name, "()"));
  List out;
  for (const auto& [key, value] : dict.as_dict()) out.push_back(call.name == "keys" ? Value(key) : value);
  return context.list(call.place, std::move(out));
}

}  // namespace

bool is_known_method(std::string_view name) {
  constexpr std::string_view kMethods[] = {"split",      "rsplit",   "strip", "lstrip",  "rstrip",
                                           "startswith", "endswith", "find",  "replace", "upper",
                                           "lower",      "items",    "get",   "keys",    "values"};
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

Value call_method(const Call& call, Context& context) {
  const Value& object = call.args[0];
  if (object.is_string()) return string_method(call, context);
  if (object.is_dict()) return dict_method(call, context);
  if (object.is_undefined()) return context.fail(call.place, str_cat("'", object.undefined_name(), "' is undefined"));
  return context.fail(call.place, str_cat("'", object.type_name(), "' object has no method ", call.name, "()"));
}

}  // namespace moesaic::jinja
