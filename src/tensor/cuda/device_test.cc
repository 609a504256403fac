// Opening a device: refusals that name what was found. All but the last run without a GPU.
#include "tensor/cuda/device.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensor/cuda/cuda_error.h"
#include "tensor/cuda/device_buffer.h"

namespace moesaic::cuda {
namespace {

using testing::HasSubstr;

std::string message_of(const absl::Status& status) {
  return std::string(status.message());
}

TEST(OpenDevice, WithoutADriverSaysSo) {
  int driver_version = 0;
  ASSERT_EQ(cudaDriverGetVersion(&driver_version), cudaSuccess);
  if (driver_version != 0) GTEST_SKIP() << "this machine has a CUDA driver";
  const auto device = open_device(0);
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(message_of(device.status()), HasSubstr("no CUDA driver found; expected one for CUDA 13"));
}

TEST(OpenDevice, NoSuchDevice) {
  for (const int index : {-1, 4096}) {
    const auto device = open_device(index);
    ASSERT_FALSE(device.ok()) << index;
    EXPECT_EQ(device.status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(ToStatus, NamesTheError) {
  EXPECT_TRUE(to_status(cudaSuccess, "nothing").ok());
  const absl::Status memory = to_status(cudaErrorMemoryAllocation, "allocating weights");
  EXPECT_EQ(memory.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(message_of(memory), HasSubstr("allocating weights: cudaErrorMemoryAllocation"));
  const absl::Status fault = to_status(cudaErrorIllegalAddress, "gate");
  EXPECT_EQ(fault.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(message_of(fault), HasSubstr("gate: cudaErrorIllegalAddress"));
}

TEST(OpenDevice, FindsTheGpuAndItsMemory) {
  const auto device = open_device(0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  EXPECT_EQ(device->compute_major, 9);
  EXPECT_GT(device->num_sms, 0);
  EXPECT_GT(device->l2_bytes, 0);
  const auto too_much = DeviceBuffer::make(device->memory_bytes * 2);
  ASSERT_FALSE(too_much.ok());
  EXPECT_THAT(message_of(too_much.status()), HasSubstr("are free"));
  auto buffer = DeviceBuffer::make(1000);
  ASSERT_TRUE(buffer.ok());
  std::vector<uint8_t> bytes(1000, 7), back(1000);
  buffer->upload(bytes.data(), 1000);
  buffer->download(back.data(), 1000);
  EXPECT_EQ(back, bytes);
  buffer->fill(0xff);
  buffer->download(back.data(), 1000);
  EXPECT_EQ(back, std::vector<uint8_t>(1000, 0xff));
}

}  // namespace
}  // namespace moesaic::cuda
