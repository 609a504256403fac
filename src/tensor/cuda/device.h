// The GPU that this process computes on: what it is, and whether our kernels can run on it. Kernels are built for
// Hopper (sm_90a) alone.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace moesaic::cuda {

struct DeviceInfo {
  int index;
  std::string name;  // "NVIDIA H200"
  int compute_major;
  int compute_minor;
  int num_sms;
  int64_t memory_bytes;
  int64_t l2_bytes;
  int max_shared_bytes;  // dynamic shared memory that a block may ask for
  int sm_clock_khz;      // the highest; a running kernel may get less
  int memory_clock_khz;
  int driver_version;  // 13000 = 13.0
  int runtime_version;
};

// Makes device `index` current for the calling thread. Errors name what was found and what is needed: no driver, a
// driver older than the runtime, no such device, an architecture other than 9.0.
absl::StatusOr<DeviceInfo> open_device(int index);

// Multiprocessors of the calling thread's device.
absl::StatusOr<int> current_num_sms();

// The parts of open_device that only look at numbers. A driver serves every runtime of its own major version and older
// ones (CUDA compatibility guide, "minor version compatibility"); driver_version 0 = none.
absl::Status check_driver(int driver_version, int runtime_version);
// Needs index, name and compute capability.
absl::Status check_architecture(const DeviceInfo& info);

}  // namespace moesaic::cuda
