#include "tensor/cuda/device.h"

#include <cuda_runtime_api.h>

#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

std::string version_text(int version) {
  return str_cat(version / 1000, ".", version % 1000 / 10);
}

absl::StatusOr<int> attribute(cudaDeviceAttr attr, int index) {
  int value = 0;
  MOESAIC_RETURN_IF_ERROR(to_status(cudaDeviceGetAttribute(&value, attr, index), "reading a device attribute"));
  return value;
}

}  // namespace

absl::Status to_status(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message = str_cat(what, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::Status check_driver(int driver_version, int runtime_version) {
  if (driver_version == 0) {
    return absl::FailedPreconditionError(
        str_cat("no CUDA driver found; expected one for CUDA ", version_text(runtime_version), " or newer"));
  }
  if (driver_version / 1000 < runtime_version / 1000) {
    return absl::FailedPreconditionError(str_cat("the CUDA driver is for CUDA ", version_text(driver_version),
                                                 ", expected ", version_text(runtime_version / 1000 * 1000),
                                                 " or newer: update the driver"));
  }
  return absl::OkStatus();
}

absl::Status check_architecture(const DeviceInfo& info) {
  if (info.compute_major == 9 && info.compute_minor == 0) return absl::OkStatus();
  return absl::FailedPreconditionError(str_cat("device ", info.index, " (", info.name, ") has compute capability ",
                                               info.compute_major, ".", info.compute_minor,
                                               "; the kernels are built for 9.0 (H100, H200, H800, H20)"));
}

absl::StatusOr<int> current_num_sms() {
  int device = 0;
  MOESAIC_RETURN_IF_ERROR(to_status(cudaGetDevice(&device), "the current device"));
  return attribute(cudaDevAttrMultiProcessorCount, device);
}

absl::StatusOr<DeviceInfo> open_device(int index) {
  DeviceInfo info{};
  info.index = index;
  MOESAIC_RETURN_IF_ERROR(to_status(cudaDriverGetVersion(&info.driver_version), "asking for the CUDA driver"));
  MOESAIC_RETURN_IF_ERROR(to_status(cudaRuntimeGetVersion(&info.runtime_version), "asking for the CUDA runtime"));
  MOESAIC_RETURN_IF_ERROR(check_driver(info.driver_version, info.runtime_version));
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice) count = 0;
  if (error != cudaSuccess && error != cudaErrorNoDevice) return to_status(error, "counting CUDA devices");
  if (index < 0 || index >= count) {
    return absl::FailedPreconditionError(str_cat("no CUDA device ", index, ": the driver shows ", count, " device(s)"));
  }
  cudaDeviceProp properties{};
  MOESAIC_RETURN_IF_ERROR(to_status(cudaGetDeviceProperties(&properties, index), "reading the device's properties"));
  info.name = properties.name;
  info.compute_major = properties.major;
  info.compute_minor = properties.minor;
  info.num_sms = properties.multiProcessorCount;
  info.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info.l2_bytes = properties.l2CacheSize;
  info.max_shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
  MOESAIC_ASSIGN_OR_RETURN(info.sm_clock_khz, attribute(cudaDevAttrClockRate, index));
  MOESAIC_ASSIGN_OR_RETURN(info.memory_clock_khz, attribute(cudaDevAttrMemoryClockRate, index));
  MOESAIC_RETURN_IF_ERROR(check_architecture(info));
  MOESAIC_RETURN_IF_ERROR(to_status(cudaSetDevice(index), str_cat("opening device ", index, " (", info.name, ")")));
  return info;
}

}  // namespace moesaic::cuda
