#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/engine_run.h"
#include "cli/eval_modes.h"
#include "cli/model_host.h"
#include "model/file_map.h"
#include "text/messages.h"

namespace moesaic {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMaxTasksBytes = 256 << 20;

struct Task {
  std::vector<int32_t> prompt_ids;
  std::string answer;
  std::string text;  // what the model wrote
};

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

struct TaskFile {
  std::vector<Task> tasks;
  std::optional<double> reference;  // the accuracy that the file states for these tasks
};

// "accuracy", or "accuracy_fp8act" where activations are quantised and the file has it.
absl::StatusOr<std::optional<double>> read_reference(const ordered_json& file, bool fp8_activations) {
  const char* name = fp8_activations && file.contains("accuracy_fp8act") ? "accuracy_fp8act" : "accuracy";
  if (!file.is_object() || !file.contains(name) || file[name].is_null()) return std::nullopt;
  const ordered_json& value = file[name];
  if (value.is_number() && value.get<double>() >= 0.0 && value.get<double>() <= 1.0) return value.get<double>();
  return absl::InvalidArgumentError(str_cat("expected \"", name, "\" from 0 to 1"));
}

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

std::vector<Request> make_requests(const std::vector<Task>& tasks, int32_t max_tokens) {
  std::vector<Request> requests(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    requests[i].prompt_ids = tasks[i].prompt_ids;
    requests[i].max_tokens = max_tokens;
    requests[i].sampling.temperature = 0.0f;
    requests[i].skip_special_tokens = false;  // answers hold the tool-call tokens; EOS has no text
  }
  return requests;
}

std::string summary(bool json, size_t num_tasks, int64_t num_right, double accuracy, std::optional<double> reference) {
  const auto format = [](const char* text, auto... values) { return fmt::format(fmt::runtime(text), values...); };
  std::string out =
      format(json ? "{{\"tasks\": {}, \"right\": {}, \"accuracy\": {:.6f}" : "{} tasks, {} right, accuracy {:.6f}",
             num_tasks, num_right, accuracy);
  if (reference) {
    out += format(json ? ", \"reference\": {:.6f}, \"difference\": {:.6f}" : ", reference {:.6f}, difference {:+.6f}",
                  *reference, accuracy - *reference);
  }
  return out + (json ? "}\n" : "\n");
}

}  // namespace

absl::Status eval_tasks(const EvalConfig& config) {
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<ModelHost> host, ModelHost::load(config.model, {}));
  MOESAIC_ASSIGN_OR_RETURN(TaskFile file, read_tasks(config.tasks, *host, config.model.activations == "fp8"));
  std::vector<Task>& tasks = file.tasks;
  const int max_open = config.model.max_running_requests * host->plan().model.layout.dp_size;
  MOESAIC_RETURN_IF_ERROR(
      run_requests(host->engine(), make_requests(tasks, config.max_tokens), {.max_open = max_open, .stop_wanted = {}},
                   [&](size_t index, const RequestOutput& output) { tasks[index].text += output.text; }));
  int64_t num_right = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const bool right = tasks[i].text == tasks[i].answer;
    num_right += right;
    if (right || config.json) continue;
    const ordered_json wrong = {{"task", i}, {"answer", tasks[i].answer}, {"text", tasks[i].text}};
    std::fputs(str_cat(wrong.dump(-1, ' ', false, ordered_json::error_handler_t::replace), "\n").c_str(), stdout);
  }
  const double accuracy = static_cast<double>(num_right) / static_cast<double>(tasks.size());
  std::fputs(summary(config.json, tasks.size(), num_right, accuracy, file.reference).c_str(), stdout);
  if (accuracy >= config.min_accuracy) return absl::OkStatus();
  return absl::FailedPreconditionError(
      str_cat("accuracy ", accuracy, " is below --min-accuracy ", config.min_accuracy));
}

}  // namespace moesaic
