#include "cli/command.h"
#include "cli/model_report.h"
#include "cli/model_settings.h"
#include "model/checkpoint.h"

namespace moesaic {
namespace {

struct InspectConfig {
  std::string model_path;
  int32_t ep_size = 0;
  int32_t dp_size = 0;
  int32_t tp_size = 0;
  bool json = false;
};

void declare(ConfigFields& fields, InspectConfig& config) {
  add_model_path(fields, &config.model_path);
  add_parallel_fields(fields, &config.ep_size, &config.dp_size, &config.tp_size);
  fields.add("json", &config.json).doc("Prints one JSON object");
}

absl::Status run(InspectConfig& config) {
  MOESAIC_ASSIGN_OR_RETURN(const ParallelLayout layout,
                           ParallelLayout::make(config.ep_size, config.dp_size, config.tp_size));
  MOESAIC_ASSIGN_OR_RETURN(const ModelConfig model, ModelConfig::load(config.model_path));
  MOESAIC_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, Checkpoint::open(config.model_path));
  std::map<std::string, Tensor> tensors;
  for (const std::string& name : checkpoint->names()) {
    MOESAIC_ASSIGN_OR_RETURN(tensors[name], checkpoint->tensor(name));
  }
  MOESAIC_ASSIGN_OR_RETURN(const ModelReport report, make_model_report(model, tensors, layout));
  const std::string text = config.json ? report_json(model, layout, report) : report_text(model, layout, report);
  std::fputs(text.c_str(), stdout);
  return absl::OkStatus();
}

}  // namespace

Command inspect_command() {
  return make_command<InspectConfig, declare, run>(
      "inspect", "Prints a model's architecture, sizes by part, KV bytes per token and what each rank would hold.");
}

}  // namespace moesaic
