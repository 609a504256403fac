// Opening a device: refusals that name what was found. Those of tensor maps and memory need a GPU.
#include "tensor/cuda/device.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tensor/cuda/cuda_error.h"
#include "tensor/cuda/device_buffer.h"
#include "tensor/cuda/tensor_map.h"

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

TEST(CheckDriver, NeedsTheRuntimesMajorVersionOrNewer) {
  for (const int driver : {13000, 13020, 14000}) EXPECT_TRUE(check_driver(driver, 13000).ok()) << driver;
  EXPECT_TRUE(check_driver(13000, 13010).ok()) << "an older minor version";
  for (const int driver : {11040, 12090}) {
    const absl::Status old = check_driver(driver, 13010);
    EXPECT_EQ(old.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(message_of(old), HasSubstr("expected 13.0 or newer: update the driver"));
  }
  EXPECT_THAT(message_of(check_driver(12090, 13000)), HasSubstr("the CUDA driver is for CUDA 12.9"));
}

TEST(CheckArchitecture, HopperAlone) {
  const auto check = [](int major, int minor) {
    DeviceInfo info{};
    info.index = 3, info.name = "a GPU", info.compute_major = major, info.compute_minor = minor;
    return check_architecture(info);
  };
  EXPECT_TRUE(check(9, 0).ok());
  for (const auto& [major, minor] : {std::pair{8, 0}, {8, 9}, {9, 1}, {10, 0}, {12, 0}}) {
    const absl::Status other = check(major, minor);
    EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(message_of(other), str_cat("device 3 (a GPU) has compute capability ", major, ".", minor,
                                         "; the kernels are built for 9.0 (H100, H200, H800, H20)"));
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

TEST(TensorMap, NamesWhatTmaRefuses) {
  if (!open_device(0).ok()) GTEST_SKIP() << open_device(0).status().message();
  auto buffer = DeviceBuffer::make(1 << 16);
  ASSERT_TRUE(buffer.ok());
  const auto map = [&](int64_t offset, int64_t stride) {
    return make_tensor_map(buffer->tensor(DType::kU8, {1 << 16}).data<uint8_t>() + offset, DType::kE4M3, {128, 16},
                           {stride}, {128, 16}, /*swizzle=*/true);
  };
  EXPECT_TRUE(map(0, 128).ok());
  for (const auto& [offset, stride] : {std::pair<int64_t, int64_t>{8, 128}, {0, 136}}) {
    EXPECT_EQ(map(offset, stride).status().code(), absl::StatusCode::kInvalidArgument) << offset << " " << stride;
  }
  EXPECT_THAT(message_of(map(0, 136).status()), HasSubstr("dims 128 16, strides in bytes 136"));
}

}  // namespace
}  // namespace moesaic::cuda
