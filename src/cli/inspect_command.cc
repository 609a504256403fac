#include "cli/command.h"
#include "cli/memory_report.h"
#include "cli/model_report.h"
#include "cli/model_settings.h"
#include "model/checkpoint.h"
#include "model/random_checkpoint.h"

namespace moesaic {
namespace {

struct InspectConfig {
  ModelSettings model;
  bool json = false;
  std::string make_random;
  std::string out;
  std::string tokenizer_path;
  int64_t seed = 0;
};

void declare(ConfigFields& fields, InspectConfig& config) {
  add_model_path(fields, &config.model.model_path);
  add_layout_fields(fields, config.model);
  add_engine_fields(fields, config.model);
  fields.add("json", &config.json).doc("Prints one JSON object");
  fields.add("make-random", &config.make_random)
      .doc(
          "A config.json: writes a checkpoint of its shape with random weights to --out, for speed at any size; its "
          "text means nothing");
  fields.add("out", &config.out).doc("With --make-random: the new folder");
  fields.add("tokenizer-path", &config.tokenizer_path)
      .doc("With --make-random: folder whose tokenizer files are copied, so that the checkpoint can be served");
  fields.add("seed", &config.seed).range(0, 1e15).doc("With --make-random: same seed, same bytes");
}

// What `serve` with these settings would hold on this machine.
struct Deployment {
  EnginePlan plan;
  MemoryPlan memory;
};

absl::StatusOr<Deployment> plan_deployment(const ModelSettings& settings, const ModelConfig& model,
                                           const Checkpoint& checkpoint, int64_t available_bytes) {
  MOESAIC_ASSIGN_OR_RETURN(EnginePlan plan, plan_engine(settings, model, available_bytes));
  MOESAIC_ASSIGN_OR_RETURN(MemoryPlan memory, plan_memory(checkpoint, model, plan.model));
  return Deployment{std::move(plan), std::move(memory)};
}

std::string memory_text(const absl::StatusOr<Deployment>& deployment, const ModelConfig& model,
                        const Checkpoint& checkpoint, int64_t available_bytes) {
  if (!deployment.ok()) return str_cat("\nno memory plan: ", deployment.status().message(), "\n");
  const auto& [plan, memory] = *deployment;
  std::string text = memory_table(memory) + memory_line(memory, available_bytes) + "\n";
  for (const std::string& change : changes_to_fit(checkpoint, model, plan, memory, available_bytes)) {
    text += str_cat("to fit: ", change, "\n");
  }
  return text;
}

absl::Status make_random(const InspectConfig& config) {
  if (config.out.empty()) return absl::InvalidArgumentError("--make-random: expected --out FOLDER beside it");
  int64_t written = 0;
  const auto progress = [&](int64_t num_bytes) {
    written += num_bytes;
    std::fprintf(stderr, "written: %lld MB\n", static_cast<long long>(written / 1'000'000));
  };
  return write_random_checkpoint({.config_path = config.make_random,
                                  .out_dir = config.out,
                                  .tokenizer_dir = config.tokenizer_path,
                                  .seed = static_cast<uint64_t>(config.seed),
                                  .progress = progress});
}

absl::Status run(InspectConfig& config) {
  if (!config.make_random.empty()) return make_random(config);
  if (config.model.model_path.empty()) {
    return absl::InvalidArgumentError("expected a model path, or --make-random CONFIG, found neither");
  }
  MOESAIC_ASSIGN_OR_RETURN(const ModelOptions options, model_options(config.model));
  const ParallelLayout& layout = options.layout;
  MOESAIC_ASSIGN_OR_RETURN(const ModelConfig model, ModelConfig::load(config.model.model_path));
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(config.model.model_path));
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : checkpoint->names()) {
    MOESAIC_ASSIGN_OR_RETURN(tensors[name], checkpoint->tensor(name));
  }
  MOESAIC_ASSIGN_OR_RETURN(const ModelReport report, make_model_report(model, tensors, layout));
  // A checkpoint with gaps, or one that this machine cannot hold, is still worth looking at.
  const int64_t available_bytes = available_memory_bytes();
  const auto deployment = plan_deployment(config.model, model, *checkpoint, available_bytes);
  const std::string text =
      config.json ? report_json(model, layout, report,
                                deployment.ok() ? deployment->memory : absl::StatusOr<MemoryPlan>(deployment.status()))
                  : report_text(model, layout, report) + memory_text(deployment, model, *checkpoint, available_bytes);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

Command inspect_command() {
  return make_command<InspectConfig, declare, run>(
      "inspect", "Prints a model's architecture, sizes by part, KV bytes per token and what each rank would hold.");
}

}  // namespace moesaic
