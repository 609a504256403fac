// The chat half of openai_request.h: messages, tools, tool_choice and the template's variables.
#include <utility>

#include "serve/http/fields.h"
#include "serve/http/openai_error.h"
#include "serve/http/openai_request.h"

namespace moesaic {
namespace {

std::string at(std::string_view list, size_t index) {
  return str_cat(list, "[", index, "]");
}

// A string, or text parts joined with one space (as SGLang's string form does).
absl::StatusOr<std::string> parse_content(const std::string& where, const Json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return invalid_param(where, str_cat("must be a string or a list of text parts, got ", json_type_name(content)));
  }
  std::string joined;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string place = at(where, i);
    if (content[i].is_string()) {
      joined += str_cat(i > 0 ? " " : "", content[i].get_ref<const std::string&>());
      continue;
    }
    if (!content[i].is_object()) return invalid_param(place, "must be an object with a type");
    Fields part(content[i]);
    std::string type = "text";
    part.text("type", &type);
    if (type != "text") {
      return invalid_param(
          place, str_cat("has the type ", json_string(type.substr(0, 64)), "; this model reads only \"text\" parts"));
    }
    if (!part.has("text")) return invalid_param(place, "has no text");
    std::string text;
    part.text("text", &text);
    if (!part.status().ok()) return invalid_param(place, "must have a string as text");
    joined += str_cat(i > 0 ? " " : "", text);
  }
  return joined;
}

absl::StatusOr<Json> parse_tool_calls(const std::string& where, const Json& calls) {
  if (!calls.is_array()) return invalid_param(where, str_cat("must be a list, got ", json_type_name(calls)));
  Json out = Json::array();
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string place = at(where, i);
    const auto function = calls[i].is_object() ? calls[i].find("function") : calls[i].end();
    if (!calls[i].is_object() || function == calls[i].end() || !function->is_object()) {
      return invalid_param(place, "must be an object with a function");
    }
    Fields fields(*function);
    std::string name;
    fields.text("name", &name);
    if (!fields.status().ok() || name.empty()) return invalid_param(place, "needs a function name");
    const Json* given = fields.find("arguments");
    const Json arguments = given == nullptr ? Json("{}") : *given;  // an object reaches the template as it is
    std::string id;
    Fields(calls[i]).text("id", &id);
    out.push_back(Json{{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}});
  }
  return out;
}

absl::StatusOr<Json> parse_message(const std::string& where, const Json& message) {
  if (!message.is_object()) return invalid_param(where, str_cat("must be an object, got ", json_type_name(message)));
  Fields fields(message);
  std::string role;
  fields.text("role", &role);
  MOESAIC_RETURN_IF_ERROR(annotate(fields.status(), where));
  if (role == "developer") role = "system";  // OpenAI's newer name
  if (role != "system" && role != "user" && role != "assistant" && role != "tool") {
    return invalid_param(str_cat(where, ".role"), str_cat("must be system, developer, user, assistant or tool, got ",
                                                          json_string(role.substr(0, 64))));
  }
  Json out = Json::object();
  out["role"] = role;
  out["content"] = nullptr;
  const Json* content = fields.find("content");
  const Json* calls = fields.find("tool_calls");
  const bool has_calls = role == "assistant" && calls != nullptr && !(calls->is_array() && calls->empty());
  if (content != nullptr) {
    MOESAIC_ASSIGN_OR_RETURN(out["content"], parse_content(str_cat(where, ".content"), *content));
  } else if (role != "assistant") {
    return invalid_param(str_cat(where, ".content"), str_cat("is missing; a ", role, " message needs one"));
  } else if (!has_calls) {
    out["content"] = "";
  }
  if (has_calls) {
    MOESAIC_ASSIGN_OR_RETURN(out["tool_calls"], parse_tool_calls(str_cat(where, ".tool_calls"), *calls));
  }
  for (const char* name : {"name", "tool_call_id", "reasoning_content"}) {
    std::string text;
    fields.text(name, &text);
    if (!text.empty()) out[name] = text;
  }
  MOESAIC_RETURN_IF_ERROR(annotate(fields.status(), where));
  return out;
}

absl::StatusOr<Json> parse_messages(const Json& body) {
  const Json* messages = Fields(body).find("messages");
  if (messages == nullptr) return invalid_param("messages", "is missing");
  if (!messages->is_array()) {
    return invalid_param("messages", str_cat("must be a list, got ", json_type_name(*messages)));
  }
  if (messages->empty()) return invalid_param("messages", "must not be empty");
  Json out = Json::array();
  for (size_t i = 0; i < messages->size(); ++i) {
    MOESAIC_ASSIGN_OR_RETURN(Json message, parse_message(at("messages", i), (*messages)[i]));
    out.push_back(std::move(message));
  }
  return out;
}

absl::StatusOr<Json> parse_tools(const Json& body) {
  const Json* tools = Fields(body).find("tools");
  if (tools == nullptr) return Json(nullptr);
  if (!tools->is_array()) return invalid_param("tools", str_cat("must be a list, got ", json_type_name(*tools)));
  if (tools->empty()) return Json(nullptr);
  Json out = *tools;
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string where = at("tools", i);
    Json& tool = out[i];
    if (!tool.is_object()) return invalid_param(where, "must be an object");
    std::string type = "function";
    Fields(tool).text("type", &type);
    if (type != "function") return invalid_param(where, "must have the type \"function\"");
    tool["type"] = type;
    const auto function = tool.find("function");
    if (function == tool.end() || !function->is_object()) return invalid_param(where, "must have a function");
    Fields fields(*function);
    std::string name;
    std::string description;
    fields.text("name", &name);
    fields.text("description", &description);
    MOESAIC_RETURN_IF_ERROR(annotate(fields.status(), where));
    if (name.empty()) return invalid_param(where, "needs a function name");
    if (const Json* parameters = fields.find("parameters"); parameters != nullptr && !parameters->is_object()) {
      return invalid_param(where, "must have an object as function.parameters");
    }
    // Templates join these to strings: absent ones are filled in.
    (*function)["description"] = description;
    if (!fields.has("parameters")) (*function)["parameters"] = Json{{"type", "object"}, {"properties", Json::object()}};
  }
  return out;
}

bool has_tool(const Json& tools, const std::string& name) {
  for (const Json& tool : tools) {
    if (tool["function"]["name"] == name) return true;
  }
  return false;
}

absl::Status read_tool_choice(const Json& body, ChatInput* out) {
  out->tool_choice = out->tools.is_null() ? ToolChoice::kNone : ToolChoice::kAuto;
  const Json* choice = Fields(body).find("tool_choice");
  if (choice == nullptr) return absl::OkStatus();
  const std::string word = choice->is_string() ? choice->get<std::string>() : "";
  if (word == "none") {
    out->tool_choice = ToolChoice::kNone;
    out->tools = nullptr;
    return absl::OkStatus();
  }
  if (word == "auto") return absl::OkStatus();
  if (word == "required") {
    out->tool_choice = ToolChoice::kRequired;
  } else if (choice->is_object()) {
    const auto function = choice->find("function");
    if (function != choice->end() && function->is_object()) Fields(*function).text("name", &out->tool_name);
    if (out->tool_name.empty())
      return invalid_param("tool_choice", "must name a function: {\"type\":\"function\",...}");
    out->tool_choice = ToolChoice::kNamed;
  } else {
    return invalid_param("tool_choice", "must be \"none\", \"auto\", \"required\" or an object that names a function");
  }
  if (out->tools.is_null()) return invalid_param("tool_choice", "needs tools");
  if (out->tool_choice == ToolChoice::kNamed && !has_tool(out->tools, out->tool_name)) {
    return invalid_param(
        "tool_choice", str_cat("names ", json_string(out->tool_name.substr(0, 64)), ", which is not among the tools"));
  }
  return absl::OkStatus();
}

// `thinking`: true/false, or DeepSeek's {"type": "enabled"}.
absl::Status read_template_variables(const Json& body, ChatInput* out) {
  Fields fields(body);
  if (const Json* kwargs = fields.find("chat_template_kwargs")) {
    if (!kwargs->is_object()) return invalid_param("chat_template_kwargs", "must be an object");
    out->template_variables = *kwargs;
  }
  const Json* thinking = fields.find("thinking");
  if (thinking == nullptr) return absl::OkStatus();
  if (thinking->is_object()) {
    std::string type;
    Fields(*thinking).text("type", &type);
    if (type != "enabled" && type != "disabled") {
      return invalid_param("thinking", "must have the type \"enabled\" or \"disabled\"");
    }
    out->template_variables["thinking"] = type == "enabled";
    return absl::OkStatus();
  }
  if (!thinking->is_boolean()) return invalid_param("thinking", "must be true or false");
  out->template_variables["thinking"] = *thinking;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatInput> parse_chat_input(const Json& body) {
  ChatInput out;
  MOESAIC_ASSIGN_OR_RETURN(out.messages, parse_messages(body));
  MOESAIC_ASSIGN_OR_RETURN(out.tools, parse_tools(body));
  MOESAIC_RETURN_IF_ERROR(read_tool_choice(body, &out));
  MOESAIC_RETURN_IF_ERROR(read_template_variables(body, &out));
  Fields fields(body);
  fields.boolean("parallel_tool_calls", &out.parallel_tool_calls);
  fields.boolean("separate_reasoning", &out.separate_reasoning);
  fields.boolean("continue_final_message", &out.continue_final_message);
  out.add_generation_prompt = !out.continue_final_message;
  fields.boolean("add_generation_prompt", &out.add_generation_prompt);
  MOESAIC_RETURN_IF_ERROR(fields.status());
  if (!out.continue_final_message) return out;
  if (out.add_generation_prompt) {
    return invalid_param("continue_final_message", "and add_generation_prompt cannot both be true");
  }
  const Json& last = out.messages.back();
  if (last["role"] != "assistant" || !last["content"].is_string()) {
    return invalid_param("continue_final_message", "needs an assistant message with text at the end");
  }
  return out;
}

}  // namespace moesaic
