#include "kernels/cuda/bench_util.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>
#include <utility>

#include "kernels/cuda/bench_kernels.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kWarmUp = 10;
constexpr int kRuns = 30;
constexpr std::chrono::milliseconds kRest(100);
constexpr int kChain = 20;
constexpr int kChainRuns = 9;
constexpr int64_t kFlushBytes = int64_t{256} << 20;
constexpr int64_t kCopyBytes = int64_t{1} << 30;
constexpr int64_t kSpinCycles = 4'000'000;

// Nominal dense rates of H100 and H200 (NVIDIA's data sheets), TFLOP/s.
double nominal_tflops(const std::string& dtype) {
  if (dtype == "e4m3") return 1979.0;
  if (dtype == "bf16") return 989.0;
  return 67.0;
}

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string shape_fields(const KernelRow& row) {
  std::string out;
  const auto add = [&](const char* name, int64_t value) {
    if (value != 0) out += str_cat(", \"", name, "\": ", value);
  };
  add("m", row.m), add("n", row.n), add("k", row.k), add("groups", row.groups);
  add("batch", row.batch), add("heads", row.heads), add("q_len", row.q_len), add("kv_len", row.kv_len);
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<KernelBench>> KernelBench::open(int device_index, Print print) {
  MOESAIC_ASSIGN_OR_RETURN(DeviceInfo device, open_device(device_index));
  MOESAIC_ASSIGN_OR_RETURN(DeviceBuffer flush, DeviceBuffer::make(kFlushBytes));
  MOESAIC_ASSIGN_OR_RETURN(DeviceBuffer clock, DeviceBuffer::make(4 * sizeof(int64_t)));
  std::unique_ptr<KernelBench> bench(new KernelBench(std::move(device), std::move(print)));
  bench->flush_ = std::move(flush);
  bench->clock_ = std::move(clock);
  bench->measure_device();
  return bench;
}

KernelBench::KernelBench(DeviceInfo device, Print print) : device_(std::move(device)), print_(std::move(print)) {
  MOESAIC_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  MOESAIC_CUDA_CHECK(cudaEventCreate(&begin_));
  MOESAIC_CUDA_CHECK(cudaEventCreate(&end_));
}

KernelBench::~KernelBench() {
  static_cast<void>(cudaEventDestroy(begin_));
  static_cast<void>(cudaEventDestroy(end_));
  static_cast<void>(cudaStreamDestroy(stream_));
}

void KernelBench::measure_device() {
  const double spin_us = time_us([](cudaStream_t stream) { spin(stream, kSpinCycles); });
  sm_mhz_ = kSpinCycles / spin_us;
  launch_us_ = time_us([](cudaStream_t stream) { spin(stream, 0); }) -
               chain_us([](cudaStream_t stream, int) { spin(stream, 0); });
  copy_gb_s_ = measure_copy_gb_s();
  print_(str_cat("{\"device\": \"", device_.name, "\", \"clocks\": \"", clocks(),
                 "\", \"driver\": ", device_.driver_version, ", \"copy_gb_s\": ", fixed(copy_gb_s_, 0),
                 ", \"launch_us\": ", fixed(launch_us_, 2), "}"));
}

// Not from a graph, in which a copy of this size is 3 % slower.
double KernelBench::measure_copy_gb_s() {
  absl::StatusOr<DeviceBuffer> from = DeviceBuffer::make(kCopyBytes / 2), to = DeviceBuffer::make(kCopyBytes / 2);
  MOESAIC_CHECK(from.ok() && to.ok());
  from->fill(1);
  const auto copy_us = [&](const auto& copy) {
    return time_runs([&] {
             MOESAIC_CUDA_CHECK(cudaMemsetAsync(flush_.data(), 1, kFlushBytes, stream_));
             MOESAIC_CUDA_CHECK(cudaEventRecord(begin_, stream_));
             copy();
             MOESAIC_CUDA_CHECK(cudaEventRecord(end_, stream_));
           })
        .us;
  };
  const double by_library = copy_us([&] {
    MOESAIC_CUDA_CHECK(cudaMemcpyAsync(to->data(), from->data(), kCopyBytes / 2, cudaMemcpyDeviceToDevice, stream_));
  });
  const double by_kernel = copy_us([&] { copy_by_kernel(stream_, to->data(), from->data(), kCopyBytes / 2); });
  return kCopyBytes / std::min(by_library, by_kernel) * 1e-3;
}

std::string KernelBench::clocks() const {
  return str_cat("sm ", fixed(sm_mhz_, 0), " MHz measured, memory ", device_.memory_clock_khz / 1000, " MHz at most");
}

cudaGraphExec_t KernelBench::capture(const std::function<void()>& enqueue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t runnable = nullptr;
  MOESAIC_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
  enqueue();
  MOESAIC_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  MOESAIC_CUDA_CHECK(cudaGraphInstantiate(&runnable, graph, 0));
  MOESAIC_CUDA_CHECK(cudaGraphDestroy(graph));
  return runnable;
}

double KernelBench::time_us(const Launch& launch) {
  return time(launch).us;
}

KernelBench::Timing KernelBench::time(const Launch& launch) {
  const cudaGraphExec_t flush_and_run = capture([&] {
    MOESAIC_CUDA_CHECK(cudaMemsetAsync(flush_.data(), 1, kFlushBytes, stream_));
    MOESAIC_CUDA_CHECK(cudaEventRecordWithFlags(begin_, stream_, cudaEventRecordExternal));
    launch(stream_);
    MOESAIC_CUDA_CHECK(cudaEventRecordWithFlags(end_, stream_, cudaEventRecordExternal));
  });
  const Timing timing = time_runs([&] { MOESAIC_CUDA_CHECK(cudaGraphLaunch(flush_and_run, stream_)); });
  MOESAIC_CUDA_CHECK(cudaGraphExecDestroy(flush_and_run));
  return timing;
}

KernelBench::Timing KernelBench::time_runs(const std::function<void()>& flush_and_run) {
  std::vector<double> times;
  int64_t* const clock = static_cast<int64_t*>(clock_.data());
  for (int run = 0; run < kWarmUp + kRuns; ++run) {
    if (run == kWarmUp) read_clock(stream_, clock);
    flush_and_run();
    MOESAIC_CUDA_CHECK(cudaStreamSynchronize(stream_));
    float ms = 0.0f;
    MOESAIC_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    if (run >= kWarmUp) times.push_back(ms * 1e3);
  }
  read_clock(stream_, clock + 2);
  MOESAIC_CUDA_CHECK(cudaStreamSynchronize(stream_));
  int64_t readings[4];
  clock_.download(readings, sizeof readings);
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return {
      .us = times[kRuns / 2],
      .sm_mhz = 1e3 * static_cast<double>(readings[2] - readings[0]) / static_cast<double>(readings[3] - readings[1])};
}

KernelBench::Timing KernelBench::time_rested(const Launch& launch) {
  MOESAIC_CUDA_CHECK(cudaStreamSynchronize(stream_));
  std::this_thread::sleep_for(kRest);
  return time(launch);
}

double KernelBench::copy_us(double bytes) {
  const int64_t half = (static_cast<int64_t>(bytes / 2) + 15) / 16 * 16;
  absl::StatusOr<DeviceBuffer> from = DeviceBuffer::make(half), to = DeviceBuffer::make(half);
  MOESAIC_CHECK(from.ok() && to.ok());
  from->fill(1);
  const double by_library = time_us([&](cudaStream_t stream) {
    MOESAIC_CUDA_CHECK(cudaMemcpyAsync(to->data(), from->data(), half, cudaMemcpyDeviceToDevice, stream));
  });
  const double by_kernel =
      time_us([&](cudaStream_t stream) { copy_by_kernel(stream, to->data(), from->data(), half); });
  return std::min(by_library, by_kernel);
}

double KernelBench::chain_us(const ChainLaunch& launch) {
  const cudaGraphExec_t chain = capture([&] {
    for (int i = 0; i < kChain; ++i) launch(stream_, i);
  });
  std::vector<float> times;
  for (int run = 0; run < 1 + kChainRuns; ++run) {  // the first warms up
    MOESAIC_CUDA_CHECK(cudaEventRecord(begin_, stream_));
    MOESAIC_CUDA_CHECK(cudaGraphLaunch(chain, stream_));
    MOESAIC_CUDA_CHECK(cudaEventRecord(end_, stream_));
    MOESAIC_CUDA_CHECK(cudaEventSynchronize(end_));
    float ms = 0.0f;
    MOESAIC_CUDA_CHECK(cudaEventElapsedTime(&ms, begin_, end_));
    if (run > 0) times.push_back(ms);
  }
  MOESAIC_CUDA_CHECK(cudaGraphExecDestroy(chain));
  std::nth_element(times.begin(), times.begin() + kChainRuns / 2, times.end());
  return times[kChainRuns / 2] * 1e3 / kChain;
}

double KernelBench::measure(KernelRow row, const KernelWork& work, const Launch& launch) {
  const Timing timing = time_rested(launch);
  report(std::move(row), work, timing, 0.0);
  return timing.us;
}

double KernelBench::measure_chain(KernelRow row, const KernelWork& work, const ChainLaunch& launch) {
  const Timing timing = time_rested([&](cudaStream_t stream) { launch(stream, 0); });
  report(std::move(row), work, timing, chain_us(launch));
  return timing.us;
}

void KernelBench::report(KernelRow row, const KernelWork& work, const Timing& timing, double chain_us) {
  const double us = timing.us;
  row.us = std::round((us - launch_us_) * 1000.0) / 1000.0;
  const double least_us = std::max(work.bytes / copy_gb_s_ * 1e-3, work.flops / nominal_tflops(row.dtype) * 1e-6);
  std::string line = str_cat("{\"op\": \"", row.op, "\"");
  if (!work.variant.empty()) line += str_cat(", \"variant\": \"", work.variant, "\"");
  line += str_cat(shape_fields(row), ", \"dtype\": \"", row.dtype, "\", \"us\": ", fixed(us, 2),
                  ", \"sm_mhz\": ", fixed(timing.sm_mhz, 0));
  if (work.bytes > 0) line += str_cat(", \"gb_s\": ", fixed(work.bytes / us * 1e-3, 0));
  if (work.flops > 0) line += str_cat(", \"tflops\": ", fixed(work.flops / us * 1e-6, 1));
  if (least_us > 0) line += str_cat(", \"percent_of_roofline\": ", fixed(100 * least_us / us, 1));
  if (work.flops == 0 && work.bytes > 0) {
    line += str_cat(", \"percent_of_copy\": ", fixed(100 * copy_us(work.bytes) / us, 1));
  }
  if (chain_us > 0) {
    line += str_cat(", \"chain_us\": ", fixed(chain_us, 2),
                    ", \"chain_percent_of_roofline\": ", fixed(100 * least_us / chain_us, 1));
  }
  print_(line + "}");
  if (work.variant.empty()) rows_.push_back(std::move(row));
}

Tensor KernelBench::alloc(DType dtype, Shape shape) {
  absl::StatusOr<DeviceBuffer> buffer = DeviceBuffer::make(shape.num_elements() * dtype_bytes(dtype));
  MOESAIC_CHECK(buffer.ok());
  buffers_.push_back(*std::move(buffer));
  return buffers_.back().tensor(dtype, shape);
}

Tensor KernelBench::alloc_random(DType dtype, Shape shape, float scale) {
  const Tensor tensor = alloc(dtype, shape);
  const int64_t count = tensor.num_elements();
  switch (dtype) {
    case DType::kF32:
      fill_random_f32(stream_, tensor.f32(), count, scale, seed_++);
      break;
    case DType::kBF16:
      fill_random_bf16(stream_, tensor.raw(), count, scale, seed_++);
      break;
    case DType::kE4M3:
      fill_random_e4m3(stream_, tensor.raw(), count, scale, seed_++);
      break;
    default:
      MOESAIC_CHECK(false && "random values of this type");
  }
  return tensor;
}

Tensor KernelBench::alloc_i32(const std::vector<int32_t>& values) {
  const Tensor tensor = alloc(DType::kI32, {static_cast<int64_t>(values.size())});
  buffers_.back().upload(values.data(), values.size() * sizeof(int32_t));
  return tensor;
}

}  // namespace moesaic::cuda
