#include "text/messages.h"

#include <nlohmann/json.hpp>

#include "text/jinja_value.h"

namespace moesaic {

namespace {

using Json = nlohmann::ordered_json;

absl::Status bad(std::string_view place, std::string_view message) {
  return absl::InvalidArgumentError(str_cat(place, ": ", message));
}

absl::StatusOr<std::string> join_parts(const Json& parts, const std::string& place) {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const std::string part_place = str_cat(place, "[", i, "]");
    const Json& part = parts[i];
    if (!part.is_object()) return bad(part_place, str_cat("expected an object, found ", part.type_name()));
    const auto type = part.find("type");
    if (type == part.end() || !type->is_string()) return bad(part_place, "expected a type");
    if (*type != "text") {
      return bad(part_place,
                 str_cat("content part of type ", type->get<std::string>(), " is not supported, expected text"));
    }
    const auto value = part.find("text");
    if (value == part.end() || !value->is_string()) return bad(str_cat(part_place, ".text"), "expected a string");
    if (i > 0) text += ' ';
    text += value->get_ref<const std::string&>();
  }
  return text;
}

absl::Status normalize_content(Json& message, const std::string& place, bool has_calls) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) {
    // The templates tell "no text" by none, and add other messages' content to strings.
    message["content"] = has_calls ? Json(nullptr) : Json("");
    return absl::OkStatus();
  }
  if (content->is_string()) return absl::OkStatus();
  if (!content->is_array()) {
    return bad(str_cat(place, ".content"),
               str_cat("expected a string, a list of parts or null, found ", content->type_name()));
  }
  MOESAIC_ASSIGN_OR_RETURN(*content, join_parts(*content, str_cat(place, ".content")));
  return absl::OkStatus();
}

absl::StatusOr<std::string> arguments_text(const Json& arguments) {
  if (arguments.is_string()) return arguments.get<std::string>();
  // The same form as the template's tojson.
  MOESAIC_ASSIGN_OR_RETURN(const jinja::Value value, jinja::Value::from_json(arguments));
  std::string text;
  if (!jinja::append_json(value, {}, text)) return absl::InvalidArgumentError("expected JSON");
  return text;
}

absl::Status normalize_call(Json& call, const std::string& place) {
  if (!call.is_object()) return bad(place, str_cat("expected an object, found ", call.type_name()));
  if (!call.contains("type")) call["type"] = "function";
  const auto function = call.find("function");
  if (function == call.end() || !function->is_object()) return bad(str_cat(place, ".function"), "expected an object");
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) return bad(str_cat(place, ".function.name"), "expected a string");
  const auto arguments = function->find("arguments");
  if (arguments == function->end() || arguments->is_null()) {
    (*function)["arguments"] = "{}";
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> text = arguments_text(*arguments);
  if (!text.ok()) return annotate(text.status(), str_cat(place, ".function.arguments"));
  *arguments = *std::move(text);
  return absl::OkStatus();
}

absl::Status normalize_message(Json& message, const std::string& place) {
  if (!message.is_object()) return bad(place, str_cat("expected an object, found ", message.type_name()));
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) return bad(str_cat(place, ".role"), "expected a string");
  const auto calls = message.find("tool_calls");
  bool has_calls = false;
  if (calls != message.end() && (calls->is_null() || (calls->is_array() && calls->empty()))) {
    message.erase("tool_calls");  // the same as none, which templates tell by "is defined"
  } else if (calls != message.end()) {
    if (!calls->is_array())
      return bad(str_cat(place, ".tool_calls"), str_cat("expected a list, found ", calls->type_name()));
    has_calls = true;
    for (size_t i = 0; i < calls->size(); ++i) {
      MOESAIC_RETURN_IF_ERROR(normalize_call((*calls)[i], str_cat(place, ".tool_calls[", i, "]")));
    }
  }
  return normalize_content(message, place, has_calls);
}

}  // namespace

absl::StatusOr<Json> normalize_messages(const Json& messages) {
  if (!messages.is_array()) return bad("messages", str_cat("expected a list, found ", messages.type_name()));
  if (messages.empty()) return bad("messages", "expected at least one message");
  Json out = messages;
  for (size_t i = 0; i < out.size(); ++i)
    MOESAIC_RETURN_IF_ERROR(normalize_message(out[i], str_cat("messages[", i, "]")));
  return out;
}

}  // namespace moesaic
