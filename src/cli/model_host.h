// ModelHost: a loaded model with its tokenizer, template and Engine: what serve, generate, eval --tasks and
// bench generate stand on. Made and destroyed by one thread; the Engine inside may be used from any.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/model_settings.h"
#include "engine/engine.h"
#include "model/rank_group.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moesaic {

// What the engine will hold, decided from the settings, the model and the machine's memory.
struct EnginePlan {
  ModelOptions model;
  int64_t context_length = 0;
  int64_t num_kv_blocks = 0;  // of each DP group
  int64_t kv_bytes = 0;       // of all ranks
  int max_draft_depth = 0;    // 0: no speculation
};

// `available_bytes`: memory that may be used. Errors name the setting to change.
absl::StatusOr<EnginePlan> plan_engine(const ModelSettings& settings, const ModelConfig& config,
                                       int64_t available_bytes);
// Sets the token budget of a step (at least one for each running request) and the limits that follow from it.
void set_step_tokens(int64_t num_tokens, EnginePlan* plan);
// What an Engine for the plan is made with.
EngineOptions engine_options(const ModelSettings& settings, const ModelConfig& config, const EnginePlan& plan);
// --context-length, or without it the model's max_position_embeddings. Error: more than those.
absl::StatusOr<int64_t> pick_context(const ModelSettings& settings, const ModelConfig& config);
// MemAvailable of /proc/meminfo; 4 GiB where there is none.
int64_t available_memory_bytes();

// Calls `print` with "12 %" and the like at most every 10 % of the bytes.
std::function<void(int64_t, int64_t)> progress_printer(std::function<void(const std::string&)> print);

using WrapExecutor = std::function<std::unique_ptr<Executor>(std::unique_ptr<Executor>)>;

class ModelHost {
 public:
  // Progress goes to the log. Errors of config, checkpoint and tokenizer name the file. `wrap` (may be empty) puts
  // another executor around the model's before the engine gets it.
  static absl::StatusOr<std::unique_ptr<ModelHost>> load(const ModelSettings& settings, const TestHooks& hooks,
                                                         const WrapExecutor& wrap = {});
  ~ModelHost();

  Engine& engine() { return *engine_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatTemplate* chat_template() const { return chat_template_.get(); }  // null if the model has none
  const ModelConfig& config() const { return group_->config(); }
  const EnginePlan& plan() const { return plan_; }

 private:
  ModelHost() = default;
  EnginePlan plan_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::unique_ptr<RankGroup> group_;
  std::unique_ptr<Engine> engine_;  // last: its thread uses all of the above
};

}  // namespace moesaic
