#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "cli/engine_run.h"
#include "cli/eval_modes.h"
#include "cli/model_host.h"
#include "cli/task_file.h"

namespace moesaic {
namespace {

using nlohmann::ordered_json;

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
      run_requests(host->engine(), task_requests(tasks, config.max_tokens), {.max_open = max_open, .stop_wanted = {}},
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
