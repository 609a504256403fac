// Half a warp a scale group, a block a row, all loads of a thread in flight before the first is used.
#include "kernels/cuda/fused/args_check.h"
#include "kernels/cuda/fused/quantize.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

template <int kVecs>
__global__ void __launch_bounds__(RowSplit::kMaxThreads)
    quantize_kernel(const Bf16* x, int64_t x_stride, int k, uint8_t* q, float* scales, int64_t scale_stride) {
  const int64_t row = blockIdx.x;
  uint4 packed[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = (i * blockDim.x + threadIdx.x) * kVec;
    packed[i] = at < k ? stream_vec(x + row * x_stride + at) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = (i * blockDim.x + threadIdx.x) * kVec;
    float a[kVec];
    unpack(packed[i], a);
    const float scale = scale_of(group_max(max_abs(a)));
    const uint2 codes = quantize_vec<true>(a, scale);
    if (at >= k) continue;
    *reinterpret_cast<uint2*>(q + row * k + at) = codes;
    if (threadIdx.x % kLanesPerGroup == 0) scales[at / kScaleGroup * scale_stride + row] = scale;
  }
}

template <int kVecs>
void launch(cudaStream_t stream, const QuantizeArgs& args, unsigned threads) {
  quantize_kernel<kVecs><<<static_cast<unsigned>(args.x.dim(0)), threads, 0, stream>>>(
      args.x.data<Bf16>(), args.x.row_stride(), static_cast<int>(args.x.dim(1)), args.q.data<uint8_t>(),
      args.scales.data<float>(), scale_row_stride(args.x.dim(0)));
}

}  // namespace

absl::Status quantize_fp8(cudaStream_t stream, const QuantizeArgs& args) {
  const int64_t m = args.x.dim(0), k = args.x.dim(1);
  ArgsCheck check("quantize_fp8");
  check.require(k > 0 && k % kScaleGroup == 0 && k <= RowSplit::kMaxChannels,
                "rows of at most 16384 channels, divisible by 128");
  check.matrix("x", args.x, DType::kBF16, m, k).tensor("q", args.q, DType::kE4M3, {m, k});
  check.tensor("scales", args.scales, DType::kF32, {k / kScaleGroup, scale_row_stride(m)});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (m == 0) return absl::OkStatus();
  const RowSplit split(m, k);
  split.vecs == 1   ? launch<1>(stream, args, split.threads)
  : split.vecs == 2 ? launch<2>(stream, args, split.threads)
                    : launch<4>(stream, args, split.threads);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
