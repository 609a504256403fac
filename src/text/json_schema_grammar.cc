#include "text/json_schema_grammar.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <unordered_map>
#include <utility>

#include <nlohmann/json.hpp>

#include "text/json_exprs.h"
#include "text/regex_grammar.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
using Expr = GrammarBuilder::Expr;
using Rule = GrammarBuilder::Rule;

constexpr size_t kMaxNameBytes = 512;

constexpr std::string_view kAnnotations[] = {"title", "description", "default",    "examples",     "$schema",
                                             "$id",   "$comment",    "deprecated", "readOnly",     "writeOnly",
                                             "$defs", "definitions", "nullable",   "discriminator"};
constexpr std::string_view kOfObject[] = {"properties", "required", "additionalProperties"};
constexpr std::string_view kOfArray[] = {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"};
constexpr std::string_view kOfString[] = {"pattern", "minLength", "maxLength", "format"};
constexpr std::string_view kOfNumber[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"};
constexpr std::string_view kOfAny[] = {"type", "enum", "const", "anyOf", "oneOf", "allOf", "$ref"};

struct Format {
  std::string_view name;
  std::string_view regex;
};
#define MOESAIC_DATE                                                                                    \
  "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|" \
  "02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
#define MOESAIC_TIME \
  "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
constexpr Format kFormats[] = {
    {"date", MOESAIC_DATE},
    {"time", MOESAIC_TIME},
    {"date-time", MOESAIC_DATE "T" MOESAIC_TIME},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"email",
     "[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}"
     "@[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?){1,4}"},
    {"ipv4", "(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"},
};
#undef MOESAIC_DATE
#undef MOESAIC_TIME

template <typename List>
bool contains(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

std::string text_of(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string shortened(std::string_view text) {
  constexpr size_t kMax = 64;
  return text.size() <= kMax ? std::string(text) : str_cat(text.substr(0, kMax), "...");
}

const Json* find(const Json& schema, std::string_view name) {
  const auto it = schema.find(name);
  return it == schema.end() ? nullptr : &*it;
}

// Whether `value` has a type of this name.
bool has_type(const Json& value, std::string_view type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "number") return value.is_number();
  if (!value.is_number()) return false;
  return value.is_number_integer() || std::trunc(value.get<double>()) == value.get<double>();
}

class SchemaReader {
 public:
  SchemaReader(const Json& root, GrammarBuilder* builder) : root_(root), builder_(*builder), json_(builder) {}

  absl::StatusOr<Rule> read() {
    const Rule rule = rule_of(root_, "#");
    // A queue instead of recursion: chains of references may be long.
    for (size_t i = 0; i < open_.size(); ++i) {
      const Open open = open_[i];
      at_ = open.path;
      MOESAIC_ASSIGN_OR_RETURN(const Expr expr, expr_of(*open.schema));
      builder_.define(open.rule, expr);
      if (builder_.too_large()) return fail("the schema is too large");
    }
    return rule;
  }

 private:
  struct Open {
    const Json* schema;
    std::string path;
    Rule rule;
  };

  template <typename... Pieces>
  absl::Status fail(const Pieces&... pieces) const {
    return absl::InvalidArgumentError(str_cat("at ", at_, ": ", pieces...));
  }

  Rule rule_of(const Json& schema, std::string path) {
    const auto [found, is_new] = rules_.try_emplace(&schema, -1);
    if (is_new) {
      found->second = builder_.new_rule(shortened(path), /*frame=*/true);
      open_.push_back({&schema, std::move(path), found->second});
    }
    return found->second;
  }
  template <typename... Pieces>
  Expr sub(const Json& schema, const Pieces&... pieces) {
    constexpr size_t kMaxPath = 400;
    std::string path = str_cat(at_, pieces...);
    if (path.size() > kMaxPath) path = str_cat("...", path.substr(path.size() - kMaxPath));
    return builder_.call(rule_of(schema, std::move(path)));
  }

  Expr nothing() { return builder_.alt({}); }

  absl::StatusOr<Expr> expr_of(const Json& schema) {
    if (schema.is_boolean()) return schema.get<bool>() ? json_.value() : nothing();
    if (!schema.is_object()) return fail("a schema must be an object or a boolean");
    MOESAIC_RETURN_IF_ERROR(check_keywords(schema));
    if (const Json* ref = find(schema, "$ref")) return reference(schema, *ref);
    if (find(schema, "enum") || find(schema, "const")) return values(schema);
    for (const char* name : {"anyOf", "oneOf", "allOf"}) {
      if (const Json* parts = find(schema, name)) return combination(schema, name, *parts);
    }
    return typed(schema);
  }

  absl::Status check_keywords(const Json& schema) const {
    for (const auto& [name, value] : schema.items()) {
      if (contains(kAnnotations, name) || contains(kOfAny, name) || contains(kOfObject, name) ||
          contains(kOfArray, name) || contains(kOfString, name) || contains(kOfNumber, name)) {
        continue;
      }
      return fail("the keyword ", text_of(Json(shortened(name))), " is not supported");
    }
    return absl::OkStatus();
  }

  // Keywords that stand beside `name` must be annotations or in `allowed`.
  absl::Status check_alone(const Json& schema, std::string_view name,
                           std::initializer_list<std::string_view> allowed = {}) const {
    for (const auto& [other, value] : schema.items()) {
      if (other == name || contains(kAnnotations, other) || contains(allowed, other)) continue;
      return fail("the keyword \"", name, "\" together with \"", other, "\" is not supported");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Expr> reference(const Json& schema, const Json& ref) {
    MOESAIC_RETURN_IF_ERROR(check_alone(schema, "$ref"));
    const std::string target = ref.is_string() ? ref.get<std::string>() : "";
    if (target != "#" && !target.starts_with("#/")) {
      return fail("\"$ref\" must be a path within the schema such as \"#/$defs/item\", got ", shortened(text_of(ref)));
    }
    const Json* place = &root_;
    for (size_t begin = 2; begin <= target.size();) {
      const size_t end = std::min(target.find('/', begin), target.size());
      std::string key = target.substr(begin, end - begin);
      for (size_t tilde = key.find('~'); tilde != key.npos; tilde = key.find('~', tilde + 1)) {
        if (key.compare(tilde, 2, "~1") == 0) key.replace(tilde, 2, "/");
        if (key.compare(tilde, 2, "~0") == 0) key.replace(tilde, 2, "~");
      }
      const Json* next = nullptr;
      if (place->is_object()) next = find(*place, key);
      if (place->is_array() && !key.empty() && key.size() < 6 && key.find_first_not_of("0123456789") == key.npos) {
        if (const size_t index = std::stoul(key); index < place->size()) next = &(*place)[index];
      }
      if (next == nullptr) return fail("\"$ref\" points to ", shortened(target), ", which is not there");
      place = next;
      begin = end + 1;
    }
    return builder_.call(rule_of(*place, target));
  }

  absl::StatusOr<Expr> values(const Json& schema) {
    MOESAIC_ASSIGN_OR_RETURN(const std::vector<std::string> types, types_of(schema));
    const Json* list = find(schema, "enum");
    const Json* constant = find(schema, "const");
    MOESAIC_RETURN_IF_ERROR(check_alone(schema, list ? "enum" : "const", {"type", list ? "const" : "enum"}));
    if (list != nullptr && !list->is_array()) return fail("\"enum\" must be a list");
    std::vector<std::string> texts;
    const auto add = [&](const Json& value) {
      const bool typed = types.empty() || std::any_of(types.begin(), types.end(),
                                                      [&](const std::string& type) { return has_type(value, type); });
      if (typed && (constant == nullptr || *constant == value)) texts.push_back(text_of(value));
    };
    if (list == nullptr) {
      add(*constant);
    } else {
      for (const Json& value : *list) add(value);
    }
    if (texts.empty()) return fail("no value is possible: \"enum\", \"const\" and \"type\" exclude all");
    return json_.one_of(std::move(texts));
  }

  absl::StatusOr<Expr> combination(const Json& schema, std::string_view name, const Json& parts) {
    MOESAIC_RETURN_IF_ERROR(check_alone(schema, name));
    if (!parts.is_array() || parts.empty()) return fail("\"", name, "\" must be a list, not empty");
    if (name == "allOf" && parts.size() > 1) return fail("\"allOf\" of more than one schema is not supported");
    std::vector<Expr> choices;
    for (size_t i = 0; i < parts.size(); ++i) choices.push_back(sub(parts[i], '/', name, '/', i));
    return builder_.alt(std::move(choices));
  }

  // Empty without "type".
  absl::StatusOr<std::vector<std::string>> types_of(const Json& schema) const {
    std::vector<std::string> types;
    const Json* type = find(schema, "type");
    if (type == nullptr) return types;
    const Json list = type->is_array() ? *type : Json::array({*type});
    if (list.empty()) return fail("\"type\" must not be empty");
    for (const Json& item : list) {
      static constexpr std::string_view kTypes[] = {"object", "array",  "string", "boolean",
                                                    "null",   "number", "integer"};
      if (!item.is_string() || !contains(kTypes, item.get<std::string>())) {
        return fail("\"type\" must be a name of a type or a list of them, got ", shortened(text_of(item)));
      }
      if (!contains(types, item.get<std::string>())) types.push_back(item.get<std::string>());
    }
    return types;
  }

  absl::StatusOr<Expr> typed(const Json& schema) {
    MOESAIC_ASSIGN_OR_RETURN(std::vector<std::string> types, types_of(schema));
    if (types.empty()) {
      const auto add_if = [&](const auto& keywords, const char* type) {
        const auto has = [&](std::string_view name) { return find(schema, name) != nullptr; };
        if (std::any_of(std::begin(keywords), std::end(keywords), has)) types.push_back(type);
      };
      add_if(kOfObject, "object");
      add_if(kOfArray, "array");
      add_if(kOfString, "string");
      add_if(kOfNumber, "number");
      if (types.empty()) return json_.value();
      if (types.size() > 1)
        return fail("keywords of ", types[0], " and ", types[1], " without \"type\" are not supported");
    }
    std::vector<Expr> choices;
    for (const std::string& type : types) {
      MOESAIC_ASSIGN_OR_RETURN(const Expr expr, of_type(schema, type));
      choices.push_back(expr);
    }
    return builder_.alt(std::move(choices));
  }

  absl::StatusOr<Expr> of_type(const Json& schema, const std::string& type) {
    if (type == "object") return object(schema);
    if (type == "array") return array(schema);
    if (type == "string") return string(schema);
    if (type == "number" || type == "integer") return number(schema, type == "integer");
    return json_.one_of(type == "null" ? std::vector<std::string>{"null"} : std::vector<std::string>{"true", "false"});
  }

  // A count that is not negative; `fallback` without the keyword.
  absl::StatusOr<int> count(const Json& schema, std::string_view name, int fallback) const {
    const Json* value = find(schema, name);
    if (value == nullptr) return fallback;
    const bool whole = has_type(*value, "integer") && value->get<double>() >= 0;
    if (!whole) return fail("\"", name, "\" must be a whole number of at least 0");
    const bool is_min = name.starts_with("min");
    if (is_min && value->get<double>() > GrammarBuilder::kMaxRepeat) {
      return fail("\"", name, "\" is ", text_of(*value), ", the limit is ", GrammarBuilder::kMaxRepeat);
    }
    return static_cast<int>(std::min<double>(value->get<double>(), GrammarBuilder::kMaxRepeat));
  }

  absl::StatusOr<Expr> string(const Json& schema) {
    const Json* pattern = find(schema, "pattern");
    const Json* format = find(schema, "format");
    const bool has_length = find(schema, "minLength") || find(schema, "maxLength");
    if ((pattern != nullptr) + (format != nullptr) + has_length > 1) {
      return fail("more than one of \"pattern\", \"format\" and \"minLength\"/\"maxLength\" is not supported");
    }
    std::string regex;
    if (pattern != nullptr) {
      if (!pattern->is_string()) return fail("\"pattern\" must be a string");
      regex = pattern->get<std::string>();
    } else if (format != nullptr) {
      const std::string name = format->is_string() ? format->get<std::string>() : "";
      const auto found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                      [&](const Format& known) { return known.name == name; });
      if (found == std::end(kFormats)) {
        return fail("the \"format\" ", shortened(text_of(*format)),
                    " is not supported; known are date, time, date-time, uuid, email, ipv4");
      }
      regex = str_cat("^(?:", found->regex, ")$");
    } else {
      MOESAIC_ASSIGN_OR_RETURN(const int min, count(schema, "minLength", 0));
      MOESAIC_ASSIGN_OR_RETURN(const int max, count(schema, "maxLength", GrammarBuilder::kUnbounded));
      return max != GrammarBuilder::kUnbounded && max < min ? nothing() : json_.string(min, max);
    }
    const RegexOptions options{.characters = [this](const CodePointRanges& ranges) { return json_.characters(ranges); },
                               .search = true};
    const absl::StatusOr<Expr> expr = regex_expr(regex, options, &builder_);
    if (!expr.ok()) return fail("\"pattern\": ", expr.status().message());
    return json_.quoted(*expr);
  }

  // Reads one bound into `bound`; false if it has a fraction.
  absl::StatusOr<bool> read_bound(const Json& schema, std::string_view name, bool is_low, bool integer,
                                  JsonExprs::Range* range) const {
    const Json* value = find(schema, name);
    if (value == nullptr) return true;
    if (!value->is_number()) return fail("\"", name, "\" must be a number");
    const double number = value->get<double>();
    if (!(std::abs(number) < 9.2e18)) return fail("\"", name, "\" is out of range");
    bool exclusive = name.starts_with("exclusive");
    int64_t bound = 0;
    if (value->is_number_integer()) {
      bound = value->get<int64_t>();
    } else if (std::trunc(number) == number) {
      bound = static_cast<int64_t>(number);
    } else if (integer) {
      bound = static_cast<int64_t>(is_low ? std::ceil(number) : std::floor(number));
      exclusive = false;
    } else {
      return false;
    }
    std::optional<int64_t>& current = is_low ? range->low : range->high;
    bool& current_exclusive = is_low ? range->low_exclusive : range->high_exclusive;
    if (current && *current == bound) {
      current_exclusive = current_exclusive || exclusive;
    } else if (!current || (is_low ? bound > *current : bound < *current)) {
      current = bound;
      current_exclusive = exclusive;
    }
    return true;
  }

  absl::StatusOr<Expr> number(const Json& schema, bool integer) {
    if (const Json* multiple = find(schema, "multipleOf")) {
      if (!integer || *multiple != 1) return fail("the keyword \"multipleOf\" is not supported");
    }
    JsonExprs::Range range;
    for (const auto& [name, is_low] : {std::pair("minimum", true), std::pair("exclusiveMinimum", true),
                                       std::pair("maximum", false), std::pair("exclusiveMaximum", false)}) {
      MOESAIC_ASSIGN_OR_RETURN(const bool whole, read_bound(schema, name, is_low, integer, &range));
      if (!whole) return fail("\"", name, "\" with a fraction is not supported for the type number");
    }
    return integer ? json_.integer(range) : json_.number(range);
  }

  absl::StatusOr<Expr> array(const Json& schema) {
    const Json* unique = find(schema, "uniqueItems");
    if (unique != nullptr && *unique != false) return fail("the keyword \"uniqueItems\" is not supported");
    MOESAIC_ASSIGN_OR_RETURN(const int min, count(schema, "minItems", 0));
    MOESAIC_ASSIGN_OR_RETURN(int max, count(schema, "maxItems", GrammarBuilder::kUnbounded));
    const Json* prefix = find(schema, "prefixItems");
    const Json* items = find(schema, "items");
    if (prefix != nullptr && !prefix->is_array()) return fail("\"prefixItems\" must be a list");
    if (items != nullptr && items->is_array())
      return fail("\"items\" must be one schema; use \"prefixItems\" for a list");
    std::vector<Expr> first;  // the leading items
    if (prefix != nullptr) {
      for (size_t i = 0; i < prefix->size(); ++i) first.push_back(sub((*prefix)[i], "/prefixItems/", i));
    }
    const bool closed = items != nullptr ? *items == false : prefix != nullptr;
    if (closed) max = std::min(static_cast<size_t>(max), first.size());  // kUnbounded is the largest size_t
    const Expr item = items != nullptr ? sub(*items, "/items") : json_.value();
    return items_between(std::move(first), item, min, max);
  }

  // min .. max items; the leading ones are `first`, the others `item`.
  Expr items_between(std::vector<Expr> first, Expr item, int min, int max) {
    const bool bounded = max != GrammarBuilder::kUnbounded;
    if (bounded && max < min) return nothing();
    if (bounded && first.size() > static_cast<size_t>(max)) first.resize(max);
    if (first.empty() && max != 0) first.push_back(item);
    const Expr comma = builder_.seq({builder_.literal(","), json_.space()});
    const auto num_first = static_cast<int>(first.size());
    Expr tail = builder_.repeat(builder_.seq({comma, item}), std::max(0, min - num_first),
                                bounded ? max - num_first : GrammarBuilder::kUnbounded);
    for (int i = num_first - 1; i >= 0; --i) {
      tail = builder_.seq({i > 0 ? comma : builder_.empty(), first[i], tail, i > 0 ? builder_.empty() : json_.space()});
      if (min <= i) tail = builder_.optional(tail);
    }
    return builder_.seq({builder_.literal("["), json_.space(), tail, builder_.literal("]")});
  }

  struct Member {
    std::string name;
    Expr value = 0;
    bool required = false;
  };

  absl::StatusOr<std::vector<Member>> members_of(const Json& schema, bool closed, const std::optional<Expr>& other) {
    std::vector<Member> members;
    if (const Json* properties = find(schema, "properties")) {
      if (!properties->is_object()) return fail("\"properties\" must be an object");
      for (const auto& [name, value] : properties->items()) {
        members.push_back({.name = name, .value = sub(value, "/properties/", shortened(name))});
      }
    }
    const Json* required = find(schema, "required");
    if (required == nullptr) return members;
    if (!required->is_array()) return fail("\"required\" must be a list of names");
    std::unordered_map<std::string, size_t> index;
    for (size_t i = 0; i < members.size(); ++i) index.emplace(members[i].name, i);
    for (const Json& item : *required) {
      if (!item.is_string()) return fail("\"required\" must be a list of names");
      const auto [found, is_new] = index.try_emplace(item.get<std::string>(), members.size());
      if (is_new && closed) {
        return fail("\"required\" names ", shortened(text_of(item)), ", which \"properties\" does not have");
      }
      if (is_new) members.push_back({.name = found->first, .value = *other});
      members[found->second].required = true;
    }
    return members;
  }

  absl::StatusOr<Expr> object(const Json& schema) {
    const Json* additional = find(schema, "additionalProperties");
    const bool closed = additional != nullptr ? *additional == false : find(schema, "properties") != nullptr;
    std::optional<Expr> other;  // the value of an additional member
    if (!closed) other = additional != nullptr ? sub(*additional, "/additionalProperties") : json_.value();
    MOESAIC_ASSIGN_OR_RETURN(const std::vector<Member> members, members_of(schema, closed, other));
    const Expr comma = builder_.seq({builder_.literal(","), json_.space()});
    const Expr colon = builder_.seq({builder_.literal(":"), json_.space()});
    const Expr end = builder_.seq({json_.space(), builder_.literal("}")});
    // after: behind a member, those before `i` are done. next: the next member is `i` or a later one.
    Rule after = builder_.new_rule("members", /*frame=*/true);
    Rule next = builder_.new_rule("member", /*frame=*/true);
    builder_.define(after, builder_.alt({builder_.seq({comma, builder_.call(next)}), end}));
    builder_.define(next, nothing());
    if (other) {
      std::vector<std::string> names;
      for (const Member& member : members) {
        if (member.name.size() > kMaxNameBytes)
          return fail("a name of more than ", kMaxNameBytes, " bytes is not supported");
        names.push_back(member.name);
      }
      const Expr name = names.empty() ? json_.string() : json_.string_other_than(names);
      builder_.define(next, builder_.seq({name, colon, *other, builder_.call(after)}));
    }
    bool may_end = true;
    for (size_t i = members.size(); i-- > 0;) {
      const Member& member = members[i];
      const Expr one =
          builder_.seq({builder_.literal(text_of(Json(member.name))), colon, member.value, builder_.call(after)});
      const Rule from_here = builder_.new_rule("member", /*frame=*/true);
      builder_.define(from_here, member.required ? one : builder_.alt({one, builder_.call(next)}));
      next = from_here;
      may_end = may_end && !member.required;
      after = builder_.new_rule("members", /*frame=*/true);
      const Expr more = builder_.seq({comma, builder_.call(next)});
      builder_.define(after, may_end ? builder_.alt({more, end}) : more);
    }
    const Expr first = builder_.call(next);
    const Expr body = may_end ? builder_.alt({first, builder_.literal("}")}) : first;
    return builder_.seq({builder_.literal("{"), json_.space(), body});
  }

  const Json& root_;
  GrammarBuilder& builder_;
  JsonExprs json_;
  std::unordered_map<const Json*, Rule> rules_;
  std::vector<Open> open_;
  std::string at_;  // path of the schema that is being read
};

}  // namespace

absl::StatusOr<Rule> json_schema_rule(const Json& schema, GrammarBuilder* builder) {
  return SchemaReader(schema, builder).read();
}

}  // namespace moesaic
