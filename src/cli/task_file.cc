#include "cli/task_file.h"

#include <nlohmann/json.hpp>

#include "model/file_map.h"
#include "text/messages.h"

namespace moesaic {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxTasksBytes = 256 << 20;

// The rendered "prompt" if the task has one, else its messages through the model's template.
absl::StatusOr<std::string> prompt_text(const ordered_json& task, const ChatTemplate* chat_template) {
  const auto prompt = task.find("prompt");
  if (prompt != task.end() && prompt->is_string()) return prompt->get<std::string>();
  const auto messages = task.find("messages");
  if (messages == task.end()) return absl::InvalidArgumentError("expected \"prompt\" or \"messages\", found neither");
  if (chat_template == nullptr) return absl::InvalidArgumentError("\"messages\" needs a model with a chat template");
  ordered_json variables = {{"messages", *messages}, {"add_generation_prompt", true}};
  for (const char* name : {"tools", "thinking"}) {
    if (task.contains(name)) variables[name] = task[name];
  }
  return render_messages(*chat_template, std::move(variables));
}

// "accuracy", or "accuracy_fp8act" where activations are quantised and the file has it.
absl::StatusOr<std::optional<double>> read_reference(const ordered_json& file, bool fp8_activations) {
  const char* name = fp8_activations && file.contains("accuracy_fp8act") ? "accuracy_fp8act" : "accuracy";
  if (!file.is_object() || !file.contains(name) || file[name].is_null()) return std::nullopt;
  const ordered_json& value = file[name];
  if (value.is_number() && value.get<double>() >= 0.0 && value.get<double>() <= 1.0) return value.get<double>();
  return absl::InvalidArgumentError(str_cat("expected \"", name, "\" from 0 to 1"));
}

}  // namespace

absl::StatusOr<TaskFile> read_tasks(const std::string& path, const ModelHost& host, bool fp8_activations) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxTasksBytes));
  const ordered_json file = ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  const ordered_json* list = file.is_object() && file.contains("tasks") ? &file["tasks"] : &file;
  if (!list->is_array() || list->empty()) {
    return absl::InvalidArgumentError(str_cat(path, ": expected {\"tasks\": [...]} or a list, not empty"));
  }
  auto reference = read_reference(file, fp8_activations);
  if (!reference.ok()) return annotate(reference.status(), path);
  TaskFile read = {.tasks = {}, .reference = *reference};
  for (const ordered_json& entry : *list) {
    const std::string where = str_cat(path, ": task ", read.tasks.size());
    if (!entry.is_object() || !entry.contains("answer") || !entry["answer"].is_string()) {
      return absl::InvalidArgumentError(str_cat(where, ": expected an object with a text \"answer\""));
    }
    const auto prompt = prompt_text(entry, host.chat_template());
    if (!prompt.ok()) return annotate(prompt.status(), where);
    read.tasks.push_back(
        {.prompt_ids = host.tokenizer().encode(*prompt), .answer = entry["answer"].get<std::string>(), .text = ""});
  }
  return read;
}

std::vector<Request> task_requests(const std::vector<Task>& tasks, int32_t max_tokens) {
  std::vector<Request> requests(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    requests[i].prompt_ids = tasks[i].prompt_ids;
    requests[i].max_tokens = max_tokens;
    requests[i].sampling.temperature = 0.0f;
    requests[i].skip_special_tokens = false;  // answers hold the tool-call tokens; EOS has no text
  }
  return requests;
}

}  // namespace moesaic
