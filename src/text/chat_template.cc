#include "text/chat_template.h"

#include <nlohmann/json.hpp>

#include "text/files.h"
#include "text/jinja_eval.h"
#include "text/jinja_parser.h"

namespace moesaic {

namespace {

constexpr size_t kMaxTemplateBytes = 1 << 20;
constexpr size_t kMaxConfigBytes = 64 << 20;

// What a rendering may cost: DeepSeek's templates take about 30 steps for each value of a message.
constexpr int64_t kBaseSteps = 1'000'000;
constexpr int64_t kStepsPerValue = 500;

using Json = nlohmann::ordered_json;

int64_t count_values(const Json& json) {  // of bounded depth: the variables have been converted
  int64_t count = 1;
  if (json.is_structured()) {
    for (const Json& item : json) count += count_values(item);
  }
  return count;
}

// A token is a string, an object with "content", or absent.
std::string token_text(const Json& config, const char* key) {
  auto it = config.find(key);
  if (it == config.end()) return "";
  if (it->is_object() && it->contains("content"))
    return it->at("content").is_string() ? it->at("content").get<std::string>() : "";
  return it->is_string() ? it->get<std::string>() : "";
}

// chat_template is a string, or a list of {"name", "template"} of which "default" is taken.
absl::StatusOr<std::string> template_text(const Json& config, const std::string& path) {
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) {
    return absl::NotFoundError(str_cat(path, " has no chat_template, and there is no chat_template.jinja beside it"));
  }
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array())
    return absl::InvalidArgumentError(str_cat(path, ": chat_template: expected a string, found ", it->type_name()));
  for (const Json& entry : *it) {
    if (entry.is_object() && entry.value("name", Json()) == "default" && entry.contains("template") &&
        entry["template"].is_string()) {
      return entry["template"].get<std::string>();
    }
  }
  return absl::InvalidArgumentError(str_cat(path, ": chat_template: expected an entry named default with a template"));
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  jinja::Body body;
  std::string bos_token;
  std::string eos_token;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view source) {
  if (source.size() > kMaxTemplateBytes) {
    return absl::InvalidArgumentError(
        str_cat("chat template: expected at most ", kMaxTemplateBytes, " bytes, found ", source.size()));
  }
  auto impl = std::make_unique<Impl>();
  impl->source = std::string(source);
  MOESAIC_ASSIGN_OR_RETURN(impl->body, jinja::parse_template(source));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::load(const std::string& model_dir) {
  const std::string config_path = model_dir + "/tokenizer_config.json";
  const std::string jinja_path = model_dir + "/chat_template.jinja";
  absl::StatusOr<std::string> config_text = read_text_file(config_path, kMaxConfigBytes);
  if (!config_text.ok() && !absl::IsNotFound(config_text.status())) return config_text.status();
  const Json config = Json::parse(config_text.ok() ? *config_text : "{}", nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::InvalidArgumentError(str_cat(config_path, ": expected a JSON object"));
  absl::StatusOr<std::string> source = read_text_file(jinja_path, kMaxTemplateBytes);
  const std::string& path = source.ok() ? jinja_path : config_path;
  if (absl::IsNotFound(source.status())) source = template_text(config, config_path);
  if (!source.ok()) return source.status();
  auto chat_template = parse(*source);
  if (!chat_template.ok()) return annotate(chat_template.status(), path);
  (*chat_template)->impl_->bos_token = token_text(config, "bos_token");
  (*chat_template)->impl_->eos_token = token_text(config, "eos_token");
  return chat_template;
}

const std::string& ChatTemplate::source() const {
  return impl_->source;
}

absl::StatusOr<std::string> ChatTemplate::render(const nlohmann::ordered_json& variables) const {
  if (!variables.is_object()) return absl::InvalidArgumentError("chat template: expected the variables as an object");
  jinja::Dict scope;
  scope.emplace_back("bos_token", jinja::Value(impl_->bos_token));
  scope.emplace_back("eos_token", jinja::Value(impl_->eos_token));
  for (const auto& [name, json] : variables.items()) {
    MOESAIC_ASSIGN_OR_RETURN(jinja::Value value, jinja::Value::from_json(json));
    scope.emplace_back(name, std::move(value));
  }
  return jinja::render_template(impl_->body, std::move(scope), kBaseSteps + kStepsPerValue * count_values(variables));
}

bool ChatTemplate::opens_reasoning(std::string_view rendered) {
  const size_t open = rendered.rfind("<think>");
  if (open == std::string_view::npos) return false;
  // Only white space may follow: a <think> further up belongs to a message.
  return rendered.substr(open + 7).find_first_not_of(" \t\r\n") == std::string_view::npos;
}

}  // namespace moesaic
