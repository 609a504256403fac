#include "plan/deployment_settings.h"

#include "cost/embedded_files.h"
#include "cost/model_catalog.h"

namespace moesaic {
namespace {

OverlapMode parse_overlap(const std::string& name) {
  if (name == "none") return OverlapMode::kNone;
  if (name == "dispatch") return OverlapMode::kDispatch;
  return name == "two-batch" ? OverlapMode::kTwoBatch : OverlapMode::kBest;
}

CommFamily parse_comm(const std::string& name) {
  if (name == "pplx") return CommFamily::kPplx;
  return name == "moesaic" ? CommFamily::kMoesaic : CommFamily::kDeepEp;
}

}  // namespace

void add_deployment_fields(ConfigFields& fields, DeploymentSettings& s) {
  fields.add("model", &s.model).doc("A known model, or the path of a config.json or checkpoint folder");
  fields.add("hardware", &s.hardware).doc("A known GPU, or the path of a TOML file");
  fields.add("ep", &s.ep).range(0, kMaxRanks).default_text("DP x TP").doc("Ranks that share the experts");
  fields.add("dp", &s.dp).range(0, kMaxRanks).default_text("EP / TP").doc("Data-parallel groups of attention");
  fields.add("tp", &s.tp).range(0, kMaxRanks).default_text("1").doc("Ranks that share the heads of a DP group");
  fields.add("redundant-experts", &s.redundant_experts).range(0, 1 << 16).doc("Expert slots beyond one an expert");
  fields.add("comm", &s.comm).choices({"deepep", "pplx", "moesaic"}).doc("Whose dispatch and combine");
  fields.add("overlap", &s.overlap)
      .choices({"best", "none", "dispatch", "two-batch"})
      .doc("What hides communication; best takes the fastest for the step");
  fields.add("draft", &s.draft).range(0, 16).doc("MTP drafts in each step");
  fields.add("kv-cache-dtype", &s.kv_cache_dtype).choices({"bf16", "fp8"}).doc("Element type of the latent cache");
  fields.add("balancedness", &s.balancedness)
      .range(0, 1.0)
      .default_text("0.85 in decode, 0.68 in prefill, 1 with pplx")
      .doc("Mean over maximum of the tokens that ranks receive; 1 is perfect routing");
  fields.add("gpus-per-node", &s.gpus_per_node)
      .range(0, 1024)
      .default_text("the hardware's")
      .doc("GPUs that throughput per node counts");
  fields.add("kernels", &s.kernels)
      .default_text("none: roofline")
      .doc("JSON table of measured kernels: rows of op, m, n, k, groups, batch, heads, q_len, kv_len, dtype, us");
}

double default_balancedness(CommFamily comm, Phase phase) {
  if (comm == CommFamily::kPplx) return 1;
  return phase == Phase::kDecode ? 0.85 : 0.68;
}

absl::StatusOr<Deployment> make_deployment(const DeploymentSettings& s, Phase phase) {
  Deployment d;
  MOESAIC_ASSIGN_OR_RETURN(d.model, find_model(s.model));
  MOESAIC_ASSIGN_OR_RETURN(d.hardware, find_hardware(s.hardware));
  MOESAIC_ASSIGN_OR_RETURN(d.layout, ParallelLayout::make(s.ep, s.dp, s.tp));
  d.num_redundant_experts = s.redundant_experts;
  d.comm = parse_comm(s.comm);
  d.overlap = parse_overlap(s.overlap);
  d.num_draft = s.draft;
  d.fp8_kv = s.kv_cache_dtype == "fp8";
  d.balancedness = s.balancedness > 0 ? s.balancedness : default_balancedness(d.comm, phase);
  if (!s.kernels.empty()) {
    MOESAIC_ASSIGN_OR_RETURN(const std::string text, read_text_file(s.kernels));
    MOESAIC_ASSIGN_OR_RETURN(d.kernels, MeasuredKernels::parse(text, s.kernels));
    MOESAIC_RETURN_IF_ERROR(d.kernels->check_device(d.hardware, s.kernels));
  }
  return d;
}

int64_t gpus_per_node(const DeploymentSettings& settings, const HardwareSpec& hardware) {
  return settings.gpus_per_node > 0 ? settings.gpus_per_node : hardware.gpus_per_node;
}

const char* overlap_name(OverlapMode mode) {
  constexpr const char* kNames[] = {"none", "dispatch", "two-batch", "best"};
  return kNames[static_cast<size_t>(mode)];
}

}  // namespace moesaic
