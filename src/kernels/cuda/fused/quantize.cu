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

struct Params {
  const Bf16* x;
  int64_t x_stride;
  int m, k;
  int head_channels, head_stride;  // of x
  uint8_t* q;
  float* scales;
  int64_t scale_stride;
};

template <bool kHeads>
__global__ void __launch_bounds__(kWarps * 32) quantize_kernel(const Params p) {
  begin_chained();
  const int lane = threadIdx.x % 32, k = p.k, per_row = (k + kChannels - 1) / kChannels;
  const int task = blockIdx.x * kWarps + threadIdx.x / 32, row = task / per_row;
  if (row >= p.m) return;
  const int begin = (task - row * per_row) * kChannels + lane * kVec;
  uint4 packed[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = begin + i * 32 * kVec;
    const int from = kHeads ? at / p.head_channels * p.head_stride + at % p.head_channels : at;
    packed[i] = at < k ? stream_vec(p.x + row * p.x_stride + from) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = begin + i * 32 * kVec;
    float a[kVec];
    unpack(packed[i], a);
    const float scale = scale_of(group_max(max_abs(a)));
    const uint2 codes = quantize_vec<true>(a, scale);
    if (at >= k) continue;
    *reinterpret_cast<uint2*>(p.q + int64_t{row} * k + at) = codes;
    if (lane % kLanesPerGroup == 0) p.scales[at / kScaleGroup * p.scale_stride + row] = scale;
  }
}

}  // namespace

absl::Status quantize_fp8(cudaStream_t stream, const QuantizeArgs& args) {
  const bool by_heads = args.x.rank() == 3;
  const int64_t m = args.x.dim(0), k = by_heads ? args.q.dim(1) : args.x.dim(1);
  const int64_t heads = by_heads ? args.x.dim(1) : 1, head_stride = by_heads ? args.x.dim(2) : k;
  ArgsCheck check("quantize_fp8");
  check.require(k > 0 && heads > 0 && k % (heads * kScaleGroup) == 0, "channels, of each head, divisible by 128");
  const int64_t tasks = m * ((k + kChannels - 1) / kChannels);
  check.require(tasks <= int64_t{1} << 30, "at most 2^30 times 512 channels");
  if (!by_heads) check.matrix("x", args.x, DType::kBF16, m, k);
  if (by_heads && check.ok()) {
    check.tensor("x", args.x, DType::kBF16, {m, heads, head_stride});
    check.require(head_stride >= k / heads && head_stride % kVec == 0, "heads that hold k / heads, divisible by 8");
  }
  check.tensor("q", args.q, DType::kE4M3, {m, k});
  check.tensor("scales", args.scales, DType::kF32, {k / kScaleGroup, scale_row_stride(m)});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (m == 0) return absl::OkStatus();
  const Params p{.x = args.x.data<Bf16>(),
                 .x_stride = args.x.row_stride(),
                 .m = static_cast<int>(m),
                 .k = static_cast<int>(k),
                 .head_channels = static_cast<int>(k / heads),
                 .head_stride = static_cast<int>(head_stride),
                 .q = args.q.data<uint8_t>(),
                 .scales = args.scales.data<float>(),
                 .scale_stride = scale_row_stride(m)};
  launch_chained(stream, by_heads ? quantize_kernel<true> : quantize_kernel<false>, (tasks + kWarps - 1) / kWarps,
                 kWarps * 32, 0, p);
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
