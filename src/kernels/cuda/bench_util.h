// KernelBench: what the benchmark programs of the kernel families share: one device, one stream, timing with L2
// flushed, a measured roofline, one JSON line a shape. One owner thread.
//   cuda_gemm_bench:  int main() { return bench_main(bench_gemm); }
//   absl::Status bench_gemm(KernelBench& bench) {
//     bench.measure({.op = "gemm_dense", .m = 64, .n = 2112, .k = 7168, .dtype = "e4m3"},
//                   {.bytes = ..., .flops = 2.0 * 64 * 2112 * 7168}, [&](cudaStream_t stream) { gemm(stream, args); });
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/kernel_table.h"
#include "tensor/cuda/device.h"
#include "tensor/cuda/device_buffer.h"

namespace moesaic::cuda {

// The least that a call must do, by the count: each input read once, each output written once.
struct KernelWork {
  double bytes = 0.0;
  double flops = 0.0;
  std::string variant;  // names one of several ways to do the same; empty for the one that is used
};

class KernelBench {
 public:
  using Launch = std::function<void(cudaStream_t)>;
  using ChainLaunch = std::function<void(cudaStream_t, int i)>;  // the i-th of a chain, with its own operands
  using Print = std::function<void(const std::string& line)>;

  // Opens the device, measures copy bandwidth and clock, prints them as the first line.
  static absl::StatusOr<std::unique_ptr<KernelBench>> open(int device_index, Print print);
  ~KernelBench();
  KernelBench(const KernelBench&) = delete;
  KernelBench& operator=(const KernelBench&) = delete;

  // Median over 30 runs after 10 of warm-up; 256 MiB are written before each, so that L2 (50 MB) holds none of the
  // operands. By device events around the launch: about 2 us of launch latency are in every figure, and what the launch
  // reads and writes first drives the lines written before out to memory. Writes, events and launch are one CUDA graph:
  // with commands one by one every other launch, depending on their length, takes 0.8 us more.
  double time_us(const Launch& launch);

  // What a launch takes between its like: 20 of them in a CUDA graph, nothing flushed, median over runs of the graph.
  // With operands that are together larger than L2, memory's share is a step's, and launch latency is not paid.
  double chain_us(const ChainLaunch& launch);

  // A rest of 100 ms, so that the power limit, which lowers the clock under load, does not make a figure depend on what
  // was measured before; time_us, one printed line, one row of the table (rows with a variant stay out of it). The
  // table's time is a step's: it is without launch latency, measured on an empty kernel.
  //   {"op", shape fields that are not 0, "dtype", "us", "sm_mhz", "gb_s", "tflops", "percent_of_roofline",
  //    "percent_of_copy"}
  // sm_mhz is a multiprocessor's mean clock over the runs and the writes between them.
  // The roofline is the larger of bytes over measured copy bandwidth and flops over the data type's nominal rate; where
  // there are no flops, percent_of_copy sets a copy of the same bytes, launch latency included, against the time.
  double measure(KernelRow row, const KernelWork& work, const Launch& launch);
  // The same, and chain_us: {"chain_us", "chain_percent_of_roofline"} in the line.
  double measure_chain(KernelRow row, const KernelWork& work, const ChainLaunch& launch);

  // A device-to-device copy that reads and writes `bytes` in all, timed in the same way, the better of cudaMemcpyAsync
  // and a kernel: what a launch of this size can reach.
  double copy_us(double bytes);

  const DeviceInfo& device() const { return device_; }
  cudaStream_t stream() const { return stream_; }
  std::string clocks() const;
  const std::vector<KernelRow>& rows() const { return rows_; }

  // Uninitialised memory that lives until release(); CHECK on failure.
  Tensor alloc(DType dtype, Shape shape);
  // The same, filled: bf16, f32 and e4m3 with uniform values in [-scale, scale] (e4m3: scale <= 448).
  Tensor alloc_random(DType dtype, Shape shape, float scale = 1.0f);
  // Copies of host values.
  Tensor alloc_i32(const std::vector<int32_t>& values);
  // Frees all of it.
  void release() { buffers_.clear(); }

 private:
  KernelBench(DeviceInfo device, Print print);
  void measure_device();
  double measure_copy_gb_s();
  cudaGraphExec_t capture(const std::function<void()>& enqueue);  // on stream_; the caller destroys it
  struct Timing {
    double us;
    double sm_mhz;
  };
  Timing time(const Launch& launch);
  Timing time_runs(const std::function<void()>& flush_and_run);  // records begin_ and end_ on stream_
  Timing time_rested(const Launch& launch);
  void report(KernelRow row, const KernelWork& work, const Timing& timing, double chain_us);

  DeviceInfo device_;
  Print print_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  DeviceBuffer flush_;
  DeviceBuffer clock_;  // two readings
  std::vector<DeviceBuffer> buffers_;
  std::vector<KernelRow> rows_;
  double copy_gb_s_ = 0.0;
  double sm_mhz_ = 0.0;
  double launch_us_ = 0.0;  // of an empty kernel by events, beyond what it takes in a chain
  uint64_t seed_ = 1;
};

// The whole benchmark program of a family: opens device 0, runs it, prints JSON lines. Exit code 1 with the reason
// where it cannot.
int bench_main(absl::Status (*family)(KernelBench& bench));

}  // namespace moesaic::cuda
