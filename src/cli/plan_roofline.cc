#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/plan_command.h"
#include "cli/report_file.h"
#include "plan/deployment_settings.h"
#include "plan/roofline.h"

namespace moesaic {
namespace {

struct RooflineConfig {
  std::string command_line;
  DeploymentSettings deployment;
  int64_t query_len = 2;
  int64_t kv_len = 5000;
  std::string svg;
  bool json = false;
  std::string report;
};

void declare(ConfigFields& fields, RooflineConfig& config) {
  DeploymentSettings& s = config.deployment;
  fields.add("model", &s.model).doc("A known model, or the path of a config.json or checkpoint folder");
  fields.add("hardware", &s.hardware).doc("A known GPU, or the path of a TOML file");
  fields.add("tp", &s.tp).range(1, kMaxRanks).doc("Ranks that share the heads of a DP group");
  fields.add("kernels", &s.kernels).default_text("none: roofline").doc("JSON table of measured kernels");
  fields.add("query-len", &config.query_len).range(1, 64).unit("tokens").doc("Tokens of each request in a step");
  fields.add("kv-len", &config.kv_len).range(1, 1 << 24).unit("tokens").doc("Cached tokens of each request");
  fields.add("svg", &config.svg).default_text("none").doc("File for the figure");
  fields.add("json", &config.json).doc("Prints one JSON object");
  fields.add("report", &config.report).doc("Writes an HTML page, or its JSON if the name ends in .json");
}

std::string rows_json(const std::vector<RooflineRow>& rows) {
  nlohmann::ordered_json out;
  for (const RooflineRow& row : rows) {
    out["rows"].push_back({{"kernel", row.kernel},
                           {"ep", row.ep},
                           {"batch", row.batch},
                           {"m", row.m},
                           {"flops_per_byte", row.flops_per_byte},
                           {"bound", row.is_memory_bound ? "memory" : "compute"},
                           {"roof_tflops", row.roof_tflops},
                           {"us", row.predicted_us},
                           {"tflops", row.predicted_tflops},
                           {"kind", row.is_measured ? "measured" : "predicted"}});
  }
  return out.dump(2) + "\n";
}

absl::Status run(RooflineConfig& config) {
  config.deployment.tp = std::max(1, config.deployment.tp);
  RooflineRequest request{.query_len = config.query_len, .kv_len = config.kv_len};
  MOESAIC_ASSIGN_OR_RETURN(request.deployment, make_deployment(config.deployment));
  MOESAIC_RETURN_IF_ERROR(request.deployment.layout.validate_heads(request.deployment.model.num_attention_heads));
  const std::vector<RooflineRow> rows = roofline(request);
  std::fputs((config.json ? rows_json(rows) : roofline_table(rows)).c_str(), stdout);
  MOESAIC_RETURN_IF_ERROR(
      write_report(roofline_report(rows, request.deployment.hardware, config.command_line), config.report));
  return write_text(config.svg.empty() ? "" : roofline_svg(rows, request.deployment.hardware), config.svg);
}

}  // namespace

Command plan_roofline_command() {
  return make_command<RooflineConfig, declare, run>(
      "plan roofline", "Prints the kernels of a decode layer under the roofline, for EP 8 to 128 and batch 1 to 128.");
}

}  // namespace moesaic
