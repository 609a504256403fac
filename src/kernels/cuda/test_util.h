// What the tests of the CUDA kernels share: a fixture that skips without a GPU, device tensors from host vectors,
// poisoned outputs, an error measure. For tests alone; one thread.
//   class Gemm : public CudaTest {};
//   TEST_F(Gemm, Matches) {
//     const DeviceTensor x = upload(DType::kBF16, {m, k}, to_bf16(values));
//     const DeviceTensor y = poisoned(DType::kBF16, {m, n});
//     ASSERT_TRUE(gemm(stream(), {.x = x, .y = y}).ok());
//     EXPECT_LT(rel_error(widen_bf16(download<uint16_t>(y)), want), 4e-3);
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "tensor/cuda/cuda_error.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/device_buffer.h"

namespace moesaic::cuda::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInf = std::numeric_limits<float>::infinity();

// A tensor in device memory with its memory.
struct DeviceTensor {
  DeviceBuffer buffer;
  Tensor tensor;
  operator const Tensor&() const { return tensor; }
};

// Every byte 0xff: NaN as f32, bf16 and e4m3, -1 as i32.
inline DeviceTensor poisoned(DType dtype, Shape shape) {
  auto buffer = DeviceBuffer::make(std::max<int64_t>(1, shape.num_elements()) * dtype_bytes(dtype));
  MOESAIC_CHECK(buffer.ok());
  buffer->fill(0xff);
  DeviceTensor result{*std::move(buffer), Tensor()};
  result.tensor = result.buffer.tensor(dtype, shape);
  return result;
}

template <typename T>
DeviceTensor upload(DType dtype, Shape shape, const std::vector<T>& values) {
  MOESAIC_CHECK_EQ(static_cast<int64_t>(values.size()), shape.num_elements());
  MOESAIC_CHECK_EQ(static_cast<int64_t>(sizeof(T)), dtype_bytes(dtype));
  DeviceTensor result = poisoned(dtype, shape);
  if (!values.empty()) result.buffer.upload(values.data(), values.size() * sizeof(T));
  return result;
}

// Waits for the device, then copies a contiguous tensor.
template <typename T>
std::vector<T> download(const Tensor& tensor) {
  MOESAIC_CHECK(tensor.is_contiguous());
  MOESAIC_CHECK_EQ(static_cast<int64_t>(sizeof(T)), dtype_bytes(tensor.dtype()));
  MOESAIC_CUDA_CHECK(cudaDeviceSynchronize());
  std::vector<T> values(tensor.num_elements());
  MOESAIC_CUDA_CHECK(cudaMemcpy(values.data(), tensor.raw(), tensor.num_bytes(), cudaMemcpyDeviceToHost));
  return values;
}

inline std::vector<uint16_t> to_bf16(const std::vector<float>& values) {
  std::vector<uint16_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) bits[i] = f32_to_bf16(values[i]);
  return bits;
}

inline std::vector<float> widen_bf16(const std::vector<uint16_t>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = bf16_to_f32(bits[i]);
  return values;
}

inline std::vector<float> widen_e4m3(const std::vector<uint8_t>& bits) {
  std::vector<float> values(bits.size());
  for (size_t i = 0; i < bits.size(); ++i) values[i] = e4m3_to_f32(bits[i]);
  return values;
}

inline constexpr int64_t kPeriod = 1'048'573;  // prime

// Standard normal, by Box and Muller. A million different ones; more repeat with a period that is prime to all sizes.
inline std::vector<float> gaussians(Rng& rng, int64_t count, float scale = 1.0f) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < std::min(count, kPeriod); ++i) {
    const double u = 1.0 - rng.uniform(), v = rng.uniform();
    values[i] = scale * static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  for (int64_t i = kPeriod; i < count; ++i) values[i] = values[i - kPeriod];
  return values;
}

// Random values repeated with a period that is prime to all sizes: element i is values[i % kPeriod], on the host too,
// which could not hold the whole tensors.
template <typename T>
class Periodic {
 public:
  explicit Periodic(std::vector<T> values) : values_(std::move(values)) {}
  T at(int64_t i) const { return values_[i % kPeriod]; }
  DeviceTensor on_device(DType dtype, Shape shape) const {
    DeviceTensor tensor = poisoned(dtype, shape);
    const int64_t all = shape.num_elements() * sizeof(T);
    int64_t filled = std::min<int64_t>(all, kPeriod * sizeof(T));
    tensor.buffer.upload(values_.data(), filled);
    for (char* data = tensor.tensor.data<char>(); filled < all;) {
      const int64_t more = std::min(filled, all - filled);
      MOESAIC_CUDA_CHECK(cudaMemcpy(data + filled, data, more, cudaMemcpyDeviceToDevice));
      filled += more;
    }
    return tensor;
  }

 private:
  std::vector<T> values_;
};

// ||got - want|| / ||want||; infinite where a value is not finite.
inline double rel_error(const std::vector<float>& got, const std::vector<float>& want) {
  MOESAIC_CHECK_EQ(got.size(), want.size());
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    difference += (double{got[i]} - want[i]) * (double{got[i]} - want[i]);
    norm += double{want[i]} * want[i];
  }
  if (difference == 0.0) return 0.0;
  return std::isfinite(difference) ? std::sqrt(difference / norm) : std::numeric_limits<double>::infinity();
}

// A device and a stream for each test, or a skip that says why not.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto device = open_device(0);
    if (!device.ok()) GTEST_SKIP() << device.status().message();
    device_ = *device;
    MOESAIC_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  void TearDown() override {
    if (stream_ == nullptr) return;
    MOESAIC_CUDA_CHECK(cudaDeviceSynchronize());
    MOESAIC_CUDA_CHECK(cudaStreamDestroy(stream_));
  }
  cudaStream_t stream() const { return stream_; }
  const DeviceInfo& device() const { return device_; }

 private:
  DeviceInfo device_{};
  cudaStream_t stream_ = nullptr;
};

}  // namespace moesaic::cuda::test
