#include "serve/http/output_format.h"

#include <functional>
#include <utility>

#include "serve/http/openai_error.h"

namespace moesaic {
namespace {

using Kind = OutputFormat::Kind;

constexpr size_t kMaxChoices = 10'000;

absl::StatusOr<OutputFormat> schema_format(std::string_view param, const Json& schema) {
  OutputFormat out{.kind = Kind::kJsonSchema};
  if (schema.is_string()) {
    absl::StatusOr<Json> parsed = parse_json(schema.get_ref<const std::string&>());
    if (!parsed.ok()) return invalid_param(param, str_cat("is ", parsed.status().message()));
    out.schema = std::make_shared<const Json>(*std::move(parsed));
  } else {
    out.schema = std::make_shared<const Json>(schema);
  }
  if (out.schema->is_object() || out.schema->is_boolean()) return out;
  return invalid_param(param, str_cat("must be a JSON schema, got ", json_type_name(*out.schema)));
}

absl::StatusOr<OutputFormat> text_format(std::string_view param, Kind kind, const Json& value) {
  if (!value.is_string()) return invalid_param(param, str_cat("must be a string, got ", json_type_name(value)));
  return OutputFormat{.kind = kind, .text = value.get<std::string>()};
}

absl::StatusOr<OutputFormat> choice_format(std::string_view param, const Json& value) {
  if (!value.is_array() || value.empty() || value.size() > kMaxChoices) {
    return invalid_param(param, str_cat("must be a list of 1 to ", kMaxChoices, " strings"));
  }
  OutputFormat out{.kind = Kind::kChoice};
  for (const Json& item : value) {
    if (!item.is_string()) return invalid_param(param, str_cat("must hold strings, got ", json_type_name(item)));
    out.choices.push_back(item.get<std::string>());
  }
  return out;
}

absl::StatusOr<OutputFormat> value_format(std::string_view param, Kind kind, const Json& value) {
  switch (kind) {
    case Kind::kJsonSchema:
      return schema_format(param, value);
    case Kind::kChoice:
      return choice_format(param, value);
    case Kind::kRegex:
    case Kind::kEbnf:
      return text_format(param, kind, value);
    case Kind::kJsonObject:
    case Kind::kNone:
      break;
  }
  if (!value.is_boolean()) return invalid_param(param, "must be true or false");
  return OutputFormat{.kind = value.get<bool>() ? Kind::kJsonObject : Kind::kNone};
}

absl::StatusOr<OutputFormat> response_format(const Json& value) {
  constexpr std::string_view kParam = "response_format";
  if (!value.is_object()) return invalid_param(kParam, "must be an object with a type");
  std::string type;
  Fields fields(value);
  fields.text("type", &type);
  if (!fields.status().ok() || type.empty()) return invalid_param(kParam, "must be an object with a type");
  if (type == "text") return OutputFormat{};
  if (type == "json_object") return OutputFormat{.kind = Kind::kJsonObject};
  if (type != "json_schema") {
    return invalid_param(kParam, str_cat("of type ", json_string(type.substr(0, 64)),
                                         " is not supported, only text, json_object and json_schema are"));
  }
  const Json* outer = fields.find("json_schema");
  if (outer == nullptr || !outer->is_object()) return invalid_param(kParam, "needs an object json_schema");
  Fields inner(*outer);
  bool strict = false;  // the schema is kept in either case
  inner.boolean("strict", &strict);
  if (!inner.status().ok()) return invalid_param(kParam, "json_schema.strict must be true or false");
  const Json* schema = inner.find("schema");
  if (schema == nullptr) return invalid_param(kParam, "needs json_schema.schema");
  return schema_format(kParam, *schema);
}

struct Named {
  const char* name;
  Kind kind;
};

// vLLM's object of alternatives.
void read_structured_outputs(const Json& value, Fields& fields,
                             const std::function<void(std::string_view, absl::StatusOr<OutputFormat>)>& add) {
  constexpr std::string_view kParam = "structured_outputs";
  if (!value.is_object()) return fields.fail(invalid_param(kParam, "must be an object"));
  static constexpr Named kKinds[] = {{"json", Kind::kJsonSchema},
                                     {"regex", Kind::kRegex},
                                     {"choice", Kind::kChoice},
                                     {"grammar", Kind::kEbnf},
                                     {"json_object", Kind::kJsonObject}};
  bool found_any = false;
  for (const auto& [name, part] : value.get_ref<const Json::object_t&>()) {
    if (part.is_null() || part == false) continue;
    bool known = false;
    for (const Named& named : kKinds) {
      if (named.name != name) continue;
      known = found_any = true;
      add(kParam, value_format(kParam, named.kind, part));
    }
    if (!known) {
      return fields.fail(invalid_param(kParam, str_cat("has ", json_string(name.substr(0, 64)),
                                                       ", which is not supported; json, regex, choice, grammar and "
                                                       "json_object are")));
    }
  }
  if (!found_any) fields.fail(invalid_param(kParam, "names no format"));
}

}  // namespace

void read_output_format(Fields& fields, RequestedFormat* out) {
  const auto add = [&](std::string_view param, absl::StatusOr<OutputFormat> format) {
    if (!format.ok()) return fields.fail(format.status());
    if (format->kind == Kind::kNone) return;
    if (out->format.kind != Kind::kNone) {
      return fields.fail(
          invalid_param(param, str_cat("cannot be joined with ", out->param == param ? "a second format" : out->param,
                                       ": only one may say what the output must be")));
    }
    *out = {*std::move(format), std::string(param)};
  };
  if (const Json* value = fields.find("response_format")) add("response_format", response_format(*value));
  static constexpr Named kFields[] = {{"json_schema", Kind::kJsonSchema},
                                      {"guided_json", Kind::kJsonSchema},
                                      {"regex", Kind::kRegex},
                                      {"guided_regex", Kind::kRegex},
                                      {"ebnf", Kind::kEbnf},
                                      {"guided_grammar", Kind::kEbnf},
                                      {"guided_choice", Kind::kChoice}};
  for (const Named& named : kFields) {
    if (const Json* value = fields.find(named.name)) add(named.name, value_format(named.name, named.kind, *value));
  }
  if (const Json* value = fields.find("structured_outputs")) read_structured_outputs(*value, fields, add);
}

}  // namespace moesaic
