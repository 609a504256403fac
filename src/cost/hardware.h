// HardwareSpec: what one GPU and its links can do at most, by the datasheet. A TOML file each under data/hardware;
// users add their own by path. A value; host-only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace moesaic {

struct HardwareSpec {
  std::string name;        // "h200"; of a user's file, its path
  std::string about;       // what it is and where the figures come from
  std::string family;      // "hopper", "blackwell", "other": whose kernels' measured efficiencies hold
  double fp8_tflops = 0;   // dense
  double bf16_tflops = 0;  // dense
  int64_t num_sms = 0;
  double sustained_clock = 1;     // what matrix kernels reach under the power limit, of the clock of those peaks
  double hbm_gb = 0;              // 1e9 bytes
  double hbm_gb_per_s = 0;        // 1e9 bytes a second, as all bandwidths here
  double nvlink_gb_per_s = 0;     // one direction, of one GPU
  double nic_gb_per_s = 0;        // one direction, the share of one GPU: 50 for a 400 Gb/s NIC each
  int64_t gpus_per_node = 8;      // what throughput "per node" counts
  int64_t nvlink_domain = 8;      // GPUs that reach each other by NVLink
  double price_per_gpu_hour = 0;  // dollars
};

// "h100", or the path of a TOML file with the same keys. Errors: unknown names (the message lists the known ones),
// unknown or missing keys, numbers out of range.
absl::StatusOr<HardwareSpec> find_hardware(const std::string& name);
std::vector<std::string> hardware_names();

}  // namespace moesaic
