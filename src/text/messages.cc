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
  if (content == message.end()) {
    message["content"] = has_calls ? Json(nullptr) : Json("");
    return absl::OkStatus();
  }
  if (content->is_null() && message["role"] == "assistant") return absl::OkStatus();
  if (content->is_string()) return absl::OkStatus();
  if (!content->is_array()) {
    return bad(str_cat(place, ".content"),
               str_cat("expected a string or a list of parts, found ", content->type_name()));
  }
  MOESAIC_ASSIGN_OR_RETURN(*content, join_parts(*content, str_cat(place, ".content")));
  return absl::OkStatus();
}

absl::Status normalize_call(Json& call, const std::string& place) {
  if (!call.is_object()) return bad(place, str_cat("expected an object, found ", call.type_name()));
  if (!call.contains("type")) call["type"] = "function";
  const auto function = call.find("function");
  if (function == call.end() || !function->is_object()) return bad(str_cat(place, ".function"), "expected an object");
  const auto name = function->find("name");
  if (name == function->end() || !name->is_string()) return bad(str_cat(place, ".function.name"), "expected a string");
  if (!function->contains("arguments") || (*function)["arguments"].is_null()) (*function)["arguments"] = "{}";
  return absl::OkStatus();
}

// Arguments that are not strings as JSON text, in the form of the template's tojson. False if there are none.
absl::StatusOr<bool> write_arguments(Json& messages) {
  bool changed = false;
  for (Json& message : messages) {
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) {
      Json& arguments = call["function"]["arguments"];
      if (arguments.is_string()) continue;
      MOESAIC_ASSIGN_OR_RETURN(const jinja::Value value, jinja::Value::from_json(arguments));
      std::string text;
      if (!jinja::append_json(value, {}, text)) return absl::InvalidArgumentError("tool call arguments: expected JSON");
      arguments = std::move(text);
      changed = true;
    }
  }
  return changed;
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

absl::StatusOr<std::string> render_messages(const ChatTemplate& chat_template, Json variables) {
  if (!variables.is_object() || !variables.contains("messages"))
    return bad("messages", "expected a list, found nothing");
  MOESAIC_ASSIGN_OR_RETURN(variables["messages"], normalize_messages(variables["messages"]));
  absl::StatusOr<std::string> rendered = chat_template.render(variables);
  if (rendered.ok()) return rendered;
  MOESAIC_ASSIGN_OR_RETURN(const bool changed, write_arguments(variables["messages"]));
  return changed ? chat_template.render(variables) : rendered;
}

}  // namespace moesaic
