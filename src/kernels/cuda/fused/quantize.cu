// A warp takes 512 channels of a row, half a warp a scale group, its loads in flight before the first is used.
#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/chained_launch.cuh"
#include "kernels/cuda/fused/quantize.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kVecs = 2;  // of a thread
constexpr int kChannels = kVecs * 32 * kVec;

__global__ void __launch_bounds__(kWarps * 32)
    quantize_kernel(const Bf16* x, int64_t x_stride, int m, int k, uint8_t* q, float* scales, int64_t scale_stride) {
  begin_chained();
  const int lane = threadIdx.x % 32, per_row = (k + kChannels - 1) / kChannels;
  const int task = blockIdx.x * kWarps + threadIdx.x / 32, row = task / per_row;
  if (row >= m) return;
  const int begin = (task - row * per_row) * kChannels + lane * kVec;
  uint4 packed[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = begin + i * 32 * kVec;
    packed[i] = at < k ? stream_vec(x + row * x_stride + at) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = begin + i * 32 * kVec;
    float a[kVec];
    unpack(packed[i], a);
    const float scale = scale_of(group_max(max_abs(a)));
    const uint2 codes = quantize_vec<true>(a, scale);
    if (at >= k) continue;
    *reinterpret_cast<uint2*>(q + int64_t{row} * k + at) = codes;
    if (lane % kLanesPerGroup == 0) scales[at / kScaleGroup * scale_stride + row] = scale;
  }
}

}  // namespace

absl::Status quantize_fp8(cudaStream_t stream, const QuantizeArgs& args) {
  const int64_t m = args.x.dim(0), k = args.x.dim(1);
  ArgsCheck check("quantize_fp8");
  check.require(k > 0 && k % kScaleGroup == 0, "channels divisible by 128");
  const int64_t tasks = m * ((k + kChannels - 1) / kChannels);
  check.require(tasks <= int64_t{1} << 30, "at most 2^30 times 512 channels");
  check.matrix("x", args.x, DType::kBF16, m, k).tensor("q", args.q, DType::kE4M3, {m, k});
  check.tensor("scales", args.scales, DType::kF32, {k / kScaleGroup, scale_row_stride(m)});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (m == 0) return absl::OkStatus();
  launch_chained(stream, quantize_kernel, (tasks + kWarps - 1) / kWarps, kWarps * 32, 0, args.x.data<Bf16>(),
                 args.x.row_stride(), m, k, args.q.data<uint8_t>(), args.scales.data<float>(), scale_row_stride(m));
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
