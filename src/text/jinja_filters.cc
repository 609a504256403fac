// Filters, tests and functions of chat templates.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/jinja_builtins.h"
#include "text/utf8.h"

namespace moesaic::jinja {

namespace {

using Builtin = Value (*)(const Call&, Context&);
struct Entry {
  std::string_view name;
  Builtin call;
};

Value wrong_type(const Call& call, Context& context) {
  return context.fail(call.place, str_cat(call.name, ": unexpected type ", call.args[0].type_name()));
}

Value change_case(const Call& call, Context& context, bool upper) {
  std::string text = call.args[0].text();
  for (char& c : text) {
    if (upper && c >= 'a' && c <= 'z') c = static_cast<char>(c - 32);
    if (!upper && c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  }
  return context.text(call.place, std::move(text));
}

Value tojson(const Call& call, Context& context) {
  JsonStyle style;
  if (const Value* indent = call.arg(2, "indent"); indent != nullptr && !indent->is_none()) {
    if (!indent->is_int() || indent->as_int() < 0 || indent->as_int() > 16) {
      return context.fail(call.place, "tojson: expected an indent of 0..16");
    }
    style.indent = static_cast<int>(indent->as_int());
    style.item_separator = ",";
  }
  if (const Value* flag = call.arg(1, "ensure_ascii")) style.ensure_ascii = flag->truth();
  if (const Value* flag = call.arg(4, "sort_keys")) style.sort_keys = flag->truth();
  if (const Value* pair = call.arg(3, "separators"); pair != nullptr && !pair->is_none()) {
    if (!pair->is_list() || pair->as_list().size() != 2 || !pair->as_list()[0].is_string() ||
        !pair->as_list()[1].is_string()) {
      return context.fail(call.place, "tojson: expected separators to be two strings");
    }
    style.item_separator = pair->as_list()[0].as_string();
    style.key_separator = pair->as_list()[1].as_string();
  }
  std::string out;
  if (!append_json(call.args[0], style, out)) {
    return context.fail(call.place, str_cat("tojson: a value of type ",
                                            call.args[0].is_undefined() ? "Undefined" : "other", " has no JSON form"));
  }
  return context.text(call.place, std::move(out));
}

Value length(const Call& call, Context& context) {
  const Value& value = call.args[0];
  if (value.is_undefined()) return Value(0);
  if (value.is_list()) return Value(static_cast<int64_t>(value.as_list().size()));
  if (value.is_dict()) return Value(static_cast<int64_t>(value.as_dict().size()));
  if (!value.is_string()) return wrong_type(call, context);
  context.step(call.place, static_cast<int64_t>(value.as_string().size() / 64));
  return Value(static_cast<int64_t>(std::count_if(value.as_string().begin(), value.as_string().end(),
                                                  [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; })));
}

Value default_value(const Call& call, Context&) {
  const Value* const fallback = call.arg(1, "default_value");
  const Value* const boolean = call.arg(2, "boolean");
  const bool use = call.args[0].is_undefined() || (boolean != nullptr && boolean->truth() && !call.args[0].truth());
  if (!use) return call.args[0];
  return fallback != nullptr ? *fallback : Value("");
}

Value trim(const Call& call, Context& context) {
  const Value* const chars = call.arg(1, "chars");
  const std::string* const set = chars != nullptr && chars->is_string() ? &chars->as_string() : nullptr;
  return context.text(call.place, strip(call.args[0].text(), set, true, true));
}

Value join(const Call& call, Context& context) {
  List items;
  if (!iterate(call.args[0], call.place, context, items)) return Value();
  const Value* const separator = call.arg(1, "d");
  const std::string between = separator != nullptr ? separator->text() : "";
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out += between;
    const std::string piece = items[i].text();
    if (!context.pay(call.place, static_cast<int64_t>(between.size() + piece.size()))) return Value();
    out += piece;
  }
  return Value(std::move(out));
}

Value pick(const Call& call, Context& context, bool first) {
  List items;
  if (!iterate(call.args[0], call.place, context, items)) return Value();
  if (items.empty()) return Value::undefined(str_cat("the ", call.name, " item of an empty sequence"));
  return first ? items.front() : items.back();
}

Value to_list(const Call& call, Context& context) {
  List items;
  if (!iterate(call.args[0], call.place, context, items)) return Value();
  return Value::list(std::move(items));
}

Value items_of(const Call& call, Context& context) {
  if (call.args[0].is_undefined()) return context.list(call.place, {});
  if (!call.args[0].is_dict()) return wrong_type(call, context);
  List out;
  for (const auto& [key, value] : call.args[0].as_dict()) out.push_back(Value::list({Value(key), value}));
  return context.list(call.place, std::move(out));
}

Value to_int(const Call& call, Context&) {
  const Value& value = call.args[0];
  const Value* const fallback = call.arg(1, "default");
  if (value.is_int() || value.is_bool()) return Value(value.as_int());
  if (value.is_float() && std::fabs(value.as_double()) < 1e18) return Value(static_cast<int64_t>(value.as_double()));
  if (value.is_string()) {
    const std::string text = strip(value.as_string(), nullptr, true, true);
    int64_t number = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size()) return Value(number);
  }
  return fallback != nullptr ? *fallback : Value(0);
}

Value replace(const Call& call, Context& context) {
  const Value* const from = call.arg(1, "old");
  const Value* const to = call.arg(2, "new");
  const Value* const count = call.arg(3, "count");
  if (from == nullptr || to == nullptr) return context.fail(call.place, "replace: expected two arguments");
  const std::string text = call.args[0].text(), old_text = from->text(), new_text = to->text();
  if (old_text.empty()) return context.fail(call.place, "replace: expected a text to replace, found \"\"");
  const int64_t most = static_cast<int64_t>(text.size() / old_text.size() * new_text.size());
  if (!context.pay(call.place, most)) return Value();
  const int64_t limit = count != nullptr && count->is_int() ? static_cast<int64_t>(count->as_int()) : -1;
  return context.text(call.place, replace_all(text, old_text, new_text, limit));
}

constexpr Entry kFilters[] = {
    {"tojson", tojson},
    {"length", length},
    {"count", length},
    {"default", default_value},
    {"d", default_value},
    {"trim", trim},
    {"upper", [](const Call& call, Context& context) { return change_case(call, context, true); }},
    {"lower", [](const Call& call, Context& context) { return change_case(call, context, false); }},
    {"join", join},
    {"first", [](const Call& call, Context& context) { return pick(call, context, true); }},
    {"last", [](const Call& call, Context& context) { return pick(call, context, false); }},
    {"list", to_list},
    {"items", items_of},
    {"int", to_int},
    {"replace", replace},
    {"string", [](const Call& call, Context& context) { return context.text(call.place, call.args[0].text()); }},
    {"safe", [](const Call& call, Context&) { return call.args[0]; }},
};

using Test = bool (*)(const Value&);
struct TestEntry {
  std::string_view name;
  Test test;
};

constexpr TestEntry kTests[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"mapping", [](const Value& v) { return v.is_dict(); }},
    {"iterable", [](const Value& v) { return v.is_iterable(); }},
    {"sequence", [](const Value& v) { return v.is_iterable(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"integer", [](const Value& v) { return v.is_int(); }},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.truth(); }},
    {"false", [](const Value& v) { return v.is_bool() && !v.truth(); }},
    {"odd", [](const Value& v) { return v.is_int() && v.as_int() % 2 != 0; }},
    {"even", [](const Value& v) { return v.is_int() && v.as_int() % 2 == 0; }},
};
constexpr std::string_view kBinaryTests[] = {"eq", "equalto", "ne", "in"};

Value range(const Call& call, Context& context) {
  if (call.args.empty() || call.args.size() > 3) return context.fail(call.place, "range: expected 1 to 3 arguments");
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < call.args.size(); ++i) {
    if (!call.args[i].is_int() || call.args[i].as_int() < -(Int{1} << 60) || call.args[i].as_int() > (Int{1} << 60)) {
      return context.fail(call.place, "range: expected integers");
    }
    bounds[call.args.size() == 1 ? 1 : i] = static_cast<int64_t>(call.args[i].as_int());
  }
  if (bounds[2] == 0) return context.fail(call.place, "range: the step must not be 0");
  const Int span = bounds[2] > 0 ? Int{bounds[1]} - bounds[0] : Int{bounds[0]} - bounds[1];
  const Int step = bounds[2] > 0 ? Int{bounds[2]} : -Int{bounds[2]};
  const Int count = span <= 0 ? 0 : (span + step - 1) / step;
  if (!context.step(call.place, static_cast<int64_t>(count))) return Value();
  List items;
  for (Int i = 0; i < count; ++i) items.emplace_back(Int{bounds[0]} + i * bounds[2]);
  return context.list(call.place, std::move(items));
}

Value make_namespace(const Call& call, Context& context) {
  auto ns = std::make_shared<Namespace>();
  if (!call.args.empty()) return context.fail(call.place, "namespace: expected name=value arguments");
  for (const auto& [name, value] : call.named) {
    if (value.is_namespace()) return context.fail(call.place, "a namespace cannot hold a namespace");
    ns->attributes.emplace_back(name, value);
  }
  return Value(std::move(ns));
}

Value make_dict(const Call& call, Context& context) {
  if (!call.args.empty()) return context.fail(call.place, "dict: expected name=value arguments");
  for (const auto& [name, value] : call.named) {
    if (value.is_namespace() || value.depth() >= kMaxValueDepth)
      return context.fail(call.place, "dict: a value cannot be stored");
  }
  return Value::dict(call.named);
}

Value raise_exception(const Call& call, Context& context) {
  return context.fail(call.place, str_cat("the template refuses: ",
                                          call.args.empty() ? std::string("no reason given") : call.args[0].text()));
}

constexpr Entry kFunctions[] = {
    {"range", range}, {"namespace", make_namespace}, {"dict", make_dict}, {"raise_exception", raise_exception}};

template <typename Table>
const auto* find_entry(const Table& table, std::string_view name) {
  const auto it =
      std::find_if(std::begin(table), std::end(table), [&](const auto& entry) { return entry.name == name; });
  return it == std::end(table) ? nullptr : &*it;
}

}  // namespace

bool is_known_filter(std::string_view name) {
  return find_entry(kFilters, name) != nullptr;
}
bool is_known_function(std::string_view name) {
  return find_entry(kFunctions, name) != nullptr;
}
bool is_known_test(std::string_view name) {
  return find_entry(kTests, name) != nullptr ||
         std::find(std::begin(kBinaryTests), std::end(kBinaryTests), name) != std::end(kBinaryTests);
}

Value call_filter(const Call& call, Context& context) {
  return find_entry(kFilters, call.name)->call(call, context);
}
Value call_function(const Call& call, Context& context) {
  return find_entry(kFunctions, call.name)->call(call, context);
}

Value call_test(const Call& call, Context& context) {
  const TestEntry* const entry = find_entry(kTests, call.name);
  const size_t expected = entry != nullptr ? 1 : 2;
  if (call.args.size() != expected || !call.named.empty()) {
    return context.fail(call.place, str_cat("the test ", call.name, " takes ", expected - 1, " arguments"));
  }
  if (entry != nullptr) return Value(entry->test(call.args[0]));
  if (call.name == "in") return Value(contains(call.args[1], call.args[0], call.place, context));
  return Value((call.args[0] == call.args[1]) == (call.name != "ne"));
}

}  // namespace moesaic::jinja
