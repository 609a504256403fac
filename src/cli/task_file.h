// Task files: prompts with the right answers, {"tasks": [{"prompt" or "messages", "answer"}, ...], "accuracy"?} or the
// list alone. For eval --tasks and bench generate --tasks.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/model_host.h"

namespace moesaic {

struct Task {
  std::vector<int32_t> prompt_ids;
  std::string answer;
  std::string text;  // what the model wrote
};

struct TaskFile {
  std::vector<Task> tasks;          // at least one
  std::optional<double> reference;  // the accuracy that the file states for these tasks
};

// Messages go through the model's chat template. `fp8_activations` chooses the reference. Errors name file and task.
absl::StatusOr<TaskFile> read_tasks(const std::string& path, const ModelHost& host, bool fp8_activations);

// Greedy, one a task, in order.
std::vector<Request> task_requests(const std::vector<Task>& tasks, int32_t max_tokens);

}  // namespace moesaic
