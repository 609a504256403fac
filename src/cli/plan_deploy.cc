#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "cli/plan_command.h"
#include "cli/report_file.h"
#include "plan/deploy_report.h"
#include "plan/deployment_settings.h"

namespace moesaic {
namespace {

struct DeployConfig {
  std::string command_line;
  DeploymentSettings deployment;
  std::string hardware = "h100";
  std::string ep_sizes = "8,16,32,64,72,96,128,144";
  double prefill_balancedness = 0.68;
  double acceptance = 0.6;
  Traffic traffic{.requests_per_s = 100};
  Goals goals;
  uint64_t seed = 0;
  bool json = false;
  std::string report;
};

void declare(ConfigFields& fields, DeployConfig& config) {
  DeploymentSettings& s = config.deployment;
  fields.add("model", &s.model).doc("A known model, or the path of a config.json or checkpoint folder");
  fields.add("hardware", &config.hardware).doc("Known GPUs or paths of TOML files, joined by commas");
  fields.add("ep", &config.ep_sizes).doc("EP sizes to try, joined by commas");
  fields.add("redundant-experts", &s.redundant_experts)
      .range(0, 1 << 16)
      .doc("Least expert slots beyond one an expert");
  fields.add("comm", &s.comm).choices({"deepep", "pplx", "moesaic"}).doc("Whose dispatch and combine");
  fields.add("kv-cache-dtype", &s.kv_cache_dtype).choices({"bf16", "fp8"}).doc("Element type of the latent cache");
  fields.add("balancedness", &s.balancedness)
      .range(0, 1)
      .default_text("0.85")
      .doc("Decode: mean over maximum of the tokens that ranks receive");
  fields.add("prefill-balancedness", &config.prefill_balancedness).range(0.01, 1).doc("The same of prefill");
  fields.add("acceptance", &config.acceptance).range(0, 1).doc("Chance that a draft after a right one is right");
  fields.add("kernels", &s.kernels).default_text("none: roofline").doc("JSON table of measured kernels");
  Traffic& t = config.traffic;
  fields.add("requests-per-s", &t.requests_per_s).range(1e-6, 1e9).doc("Requests that arrive");
  fields.add("input-len", &t.input_len).range(1, 1 << 24).unit("tokens").doc("Of a prompt, mean");
  fields.add("output-len", &t.output_len).range(1, 1 << 24).unit("tokens").doc("Of an answer, mean");
  fields.add("random-range-ratio", &t.range_ratio)
      .range(0, 1)
      .doc("Lengths are uniform in [len x (1 - ratio), len x (1 + ratio)]; only queues feel it");
  fields.add("cached-share", &t.cached_share).range(0, 0.999).doc("Of the prompts' tokens, found in the prefix cache");
  Goals& goals = config.goals;
  fields.add("tokens-per-s-per-user", &goals.least_tokens_per_s_per_user)
      .range(1e-3, 1e6)
      .doc("Least output speed of a request");
  fields.add("tpot-percentile", &goals.tpot_percent).range(0, 100).doc("Of the requests, how many have it with queues");
  fields.add("ttft-s", &goals.most_ttft_s).range(1e-3, 1e6).unit("s").doc("Longest time to the first token");
  fields.add("ttft-percentile", &goals.ttft_percent).range(0, 100).doc("Of the requests, how many keep it with queues");
  fields.add("seed", &config.seed).doc("Of the simulated arrivals, lengths and accepted drafts");
  fields.add("json", &config.json).doc("Prints one JSON object");
  fields.add("report", &config.report).doc("Writes an HTML page, or its JSON if the name ends in .json");
}

std::vector<std::string> parts_of(const std::string& list) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

absl::StatusOr<std::vector<int>> ep_sizes_of(const std::string& list) {
  std::vector<int> sizes;
  for (const std::string& part : parts_of(list)) {
    int size = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (error != std::errc() || *end != '\0' || size < 1 || size > kMaxRanks) {
      return absl::InvalidArgumentError(
          str_cat("--ep expects integers from 1 to ", kMaxRanks, " joined by commas, found ", part));
    }
    sizes.push_back(size);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// One line, redrawn.
void show_progress(const std::string& text) {
  if (isatty(STDERR_FILENO) == 1) std::fputs(str_cat("\r\x1b[K", text).c_str(), stderr);
}

absl::Status run(DeployConfig& config) {
  DeploymentSettings& s = config.deployment;
  DeployRequest request{.prefill_balancedness = config.prefill_balancedness,
                        .acceptance = config.acceptance,
                        .traffic = config.traffic,
                        .goals = config.goals};
  for (const std::string& name : parts_of(config.hardware)) {
    MOESAIC_ASSIGN_OR_RETURN(HardwareSpec hardware, find_hardware(name));
    request.space.hardware.push_back(std::move(hardware));
    s.hardware = name;
  }
  MOESAIC_ASSIGN_OR_RETURN(request.space.ep_sizes, ep_sizes_of(config.ep_sizes));
  s.ep = s.dp = s.tp = 1;  // the sweep sets the layout
  MOESAIC_ASSIGN_OR_RETURN(request.base, make_deployment(s));
  for (const HardwareSpec& hardware : request.space.hardware) {
    if (request.base.kernels) MOESAIC_RETURN_IF_ERROR(request.base.kernels->check_device(hardware, s.kernels));
  }
  MOESAIC_ASSIGN_OR_RETURN(const DeployPlan plan, plan_deployment(request));
  MOESAIC_ASSIGN_OR_RETURN(const DeployQueues queues,
                           check_queues(request, plan, config.seed, [](const std::string& trial) {
                             show_progress(str_cat("simulating ", trial));
                           }));
  show_progress("");
  const auto text_of = config.json ? deploy_json : deploy_text;
  std::fputs(text_of(plan, queues, request, s.model).c_str(), stdout);
  return write_report(deploy_report(plan, queues, request, config.command_line), config.report);
}

}  // namespace

Command plan_deploy_command() {
  return make_command<DeployConfig, declare, run>(
      "plan deploy",
      "Chooses decode and prefill instances for given traffic, by means and "
      "with queues: frontier by EP, memory, cost, what binds, serve "
      "settings.");
}

}  // namespace moesaic
