#include "tensor/cuda/device_buffer.h"

#include <utility>

#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {

absl::StatusOr<DeviceBuffer> DeviceBuffer::make(int64_t num_bytes) {
  DeviceBuffer buffer;
  if (num_bytes == 0) return buffer;
  if (cudaMalloc(&buffer.data_, num_bytes) == cudaErrorMemoryAllocation) {
    buffer.data_ = nullptr;
    static_cast<void>(cudaGetLastError());
    size_t free_bytes = 0, total_bytes = 0;
    static_cast<void>(cudaMemGetInfo(&free_bytes, &total_bytes));
    return absl::ResourceExhaustedError(
        str_cat("device memory: asked for ", num_bytes, " bytes, ", free_bytes, " of ", total_bytes, " are free"));
  }
  MOESAIC_RETURN_IF_ERROR(to_status(cudaGetLastError(), "allocating device memory"));
  buffer.num_bytes_ = num_bytes;
  return buffer;
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

Tensor DeviceBuffer::tensor(DType dtype, Shape shape) const {
  Tensor tensor(data_, dtype, shape);
  MOESAIC_CHECK_LE(tensor.num_bytes(), num_bytes_);
  return tensor;
}

void DeviceBuffer::upload(const void* host, int64_t num_bytes) {
  MOESAIC_CHECK_LE(num_bytes, num_bytes_);
  MOESAIC_CUDA_CHECK(cudaMemcpy(data_, host, num_bytes, cudaMemcpyHostToDevice));
  // From pageable memory cudaMemcpy may return when the bytes are staged (CUDA runtime API, "API synchronization
  // behavior"): streams that do not wait for the default stream would read what was there before.
  MOESAIC_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void DeviceBuffer::download(void* host, int64_t num_bytes) const {
  MOESAIC_CHECK_LE(num_bytes, num_bytes_);
  MOESAIC_CUDA_CHECK(cudaMemcpy(host, data_, num_bytes, cudaMemcpyDeviceToHost));
}

void DeviceBuffer::fill(uint8_t value) {
  if (num_bytes_ == 0) return;
  MOESAIC_CUDA_CHECK(cudaMemset(data_, value, num_bytes_));
  MOESAIC_CUDA_CHECK(cudaDeviceSynchronize());
}

}  // namespace moesaic::cuda
