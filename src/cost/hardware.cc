#include "cost/hardware.h"

#include "base/config_fields.h"
#include "cost/embedded_files.h"

namespace moesaic {
namespace {

constexpr char kFolder[] = "hardware";
constexpr char kEnding[] = ".toml";
constexpr double kMost = 1e9;

void declare(ConfigFields& fields, HardwareSpec& spec) {
  fields.add("about", &spec.about).doc("what it is, and the source of the figures");
  fields.add("family", &spec.family).choices({"hopper", "blackwell", "other"}).doc("whose kernels run on it");
  fields.add("fp8-tflops", &spec.fp8_tflops).range(0, kMost).doc("dense peak; 0 = no FP8 units");
  fields.add("bf16-tflops", &spec.bf16_tflops).range(1e-6, kMost).doc("dense peak");
  fields.add("num-sms", &spec.num_sms).range(1, 1 << 20).doc("multiprocessors, or cores");
  fields.add("sustained-clock", &spec.sustained_clock).range(0.1, 1).doc("of the peaks' clock, under the power limit");
  fields.add("hbm-gb", &spec.hbm_gb).range(1e-3, kMost).doc("memory, 1e9 bytes");
  fields.add("hbm-gb-per-s", &spec.hbm_gb_per_s).range(1e-3, kMost).doc("memory bandwidth");
  fields.add("nvlink-gb-per-s", &spec.nvlink_gb_per_s).range(1e-3, kMost).doc("one direction, of one GPU");
  fields.add("nic-gb-per-s", &spec.nic_gb_per_s).range(1e-3, kMost).doc("one direction, the share of one GPU");
  fields.add("gpus-per-node", &spec.gpus_per_node).range(1, 1024).doc("GPUs of a node");
  fields.add("nvlink-domain", &spec.nvlink_domain).range(1, 4096).doc("GPUs that NVLink joins");
  fields.add("price-per-gpu-hour", &spec.price_per_gpu_hour).range(0, kMost).unit("dollars").doc("what an hour costs");
}

}  // namespace

absl::StatusOr<HardwareSpec> find_hardware(const std::string& name) {
  MOESAIC_ASSIGN_OR_RETURN(const std::string text, named_text("hardware", kFolder, kEnding, name));
  HardwareSpec spec{.name = name};
  ConfigFields fields("hardware", "");
  declare(fields, spec);
  MOESAIC_RETURN_IF_ERROR(fields.parse_text(text, name));
  for (const char* key : {"family", "bf16-tflops", "num-sms", "hbm-gb", "hbm-gb-per-s", "nvlink-gb-per-s",
                          "nic-gb-per-s", "gpus-per-node", "nvlink-domain"}) {
    if (!fields.is_given(key)) return absl::InvalidArgumentError(str_cat(name, ": the key ", key, " is missing"));
  }
  return spec;
}

std::vector<std::string> hardware_names() {
  return embedded_names(kFolder, kEnding);
}

}  // namespace moesaic
