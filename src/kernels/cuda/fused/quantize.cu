// Half a warp a scale group, two vectors of 16 bytes a thread in flight, a block a row (long rows: several blocks).
#include <algorithm>

#include "kernels/cuda/fused/args_check.h"
#include "kernels/cuda/fused/quantize.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kVecs = 2;

__global__ void __launch_bounds__(kMaxThreads)
    quantize_kernel(const Bf16* x, int64_t x_stride, int k, uint8_t* q, float* scales, int64_t scale_stride) {
  const int64_t row = blockIdx.x;
  const int begin = blockIdx.y * blockDim.x * kVec * kVecs + threadIdx.x * kVec;
  const int step = blockDim.x * kVec;
  uint4 packed[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = begin + i * step;
    packed[i] = at < k ? load_vec(x + row * x_stride + at) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = begin + i * step;
    float a[kVec];
    unpack(packed[i], a);
    const float scale = scale_of(group_max(max_abs(a)));
    const uint2 codes = quantize_vec(a, scale);
    if (at >= k) continue;
    *reinterpret_cast<uint2*>(q + row * k + at) = codes;
    if (threadIdx.x % kLanesPerGroup == 0) scales[at / kScaleGroup * scale_stride + row] = scale;
  }
}

}  // namespace

absl::Status quantize_fp8(cudaStream_t stream, const QuantizeArgs& args) {
  const int64_t m = args.x.dim(0), k = args.x.dim(1);
  ArgsCheck check("quantize_fp8");
  check.require(k > 0 && k % kScaleGroup == 0 && k <= (int64_t{1} << 28), "rows of channels divisible by 128");
  check.matrix("x", args.x, DType::kBF16, m, k).tensor("q", args.q, DType::kE4M3, {m, k});
  check.tensor("scales", args.scales, DType::kF32, {k / kScaleGroup, scale_row_stride(m)});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (m == 0) return absl::OkStatus();
  const int64_t vecs = k / kVec;
  const int64_t threads = std::min<int64_t>(kMaxThreads, (vecs + kVecs * 32 - 1) / (kVecs * 32) * 32);
  const dim3 grid(static_cast<unsigned>(m), static_cast<unsigned>((vecs + threads * kVecs - 1) / (threads * kVecs)));
  quantize_kernel<<<grid, static_cast<unsigned>(threads), 0, stream>>>(args.x.data<Bf16>(), args.x.row_stride(),
                                                                       static_cast<int>(k), args.q.data<uint8_t>(),
                                                                       args.scales.data<float>(), scale_row_stride(m));
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
