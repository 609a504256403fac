#include "cli/command.h"
#include "cli/eval_modes.h"

namespace moesaic {
namespace {

void declare(ConfigFields& fields, EvalConfig& config) {
  add_model_path(fields, &config.model.model_path).required();
  fields.add("ids", &config.ids).doc("Safetensors file of i32 tensors NAME [n]: writes their logits to --out");
  fields.add("out", &config.out).doc("Safetensors file for NAME.logits [n, vocab] f32");
  fields.add("mtp", &config.mtp).doc("With --ids: also NAME.mtp_logits [n - 1, vocab] of the MTP module");
  fields.add("text", &config.text).doc("Text file: prints its perplexity");
  fields.add("window", &config.window)
      .range(2, 1 << 30)
      .unit("tokens")
      .default_text("2048 or the model's context")
      .doc("With --text: tokens that are scored together");
  fields.add("tasks", &config.tasks)
      .doc(
          "JSON file of tasks (messages or prompt, and answer): prints the share that greedy decoding answers exactly, "
          "beside the file's own accuracy if it states one");
  fields.add("max-tokens", &config.max_tokens).range(1, 1 << 20).unit("tokens").doc("With --tasks: longest answer");
  fields.add("min-accuracy", &config.min_accuracy).range(0, 1).doc("With --tasks: exit code 1 below it");
  fields.add("json", &config.json).doc("Prints one JSON line");
  add_layout_fields(fields, config.model);
  add_engine_fields(fields, config.model);
}

absl::Status run(EvalConfig& config) {
  const int num_modes = !config.ids.empty() + !config.text.empty() + !config.tasks.empty();
  if (num_modes != 1) {
    return absl::InvalidArgumentError(str_cat("expected one of --ids, --text and --tasks, found ", num_modes));
  }
  if (config.model.kv_cache_dtype == "auto") config.model.kv_cache_dtype = "f32";
  if (!config.ids.empty()) return eval_ids(config);
  return !config.text.empty() ? eval_text(config) : eval_tasks(config);
}

}  // namespace

Command eval_command() {
  return make_command<EvalConfig, declare, run>("eval", "Measures quality: logits of given ids, perplexity, or tasks.");
}

}  // namespace moesaic
