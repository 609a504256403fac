// DeviceBuffer: the owner of memory on the current device; the counterpart of Buffer. Uninitialised: whoever allocates
// fills. Allocated at start, from the plan; running out then is a Status that names both sizes.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "base/status.h"
#include "tensor/tensor.h"

namespace moesaic::cuda {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static absl::StatusOr<DeviceBuffer> make(int64_t num_bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = static_cast<DeviceBuffer&&>(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  void* data() const { return data_; }
  int64_t num_bytes() const { return num_bytes_; }
  Tensor tensor(DType dtype, Shape shape) const;  // contiguous, from the start; must fit

  // Copies of `num_bytes` from the start; they wait until done.
  void upload(const void* host, int64_t num_bytes);
  void download(void* host, int64_t num_bytes) const;
  // Every byte becomes `value`; 0xff makes NaNs of f32, bf16 and e4m3 alike.
  void fill(uint8_t value);

 private:
  void* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

}  // namespace moesaic::cuda
