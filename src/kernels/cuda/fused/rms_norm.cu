// A block a row, held in registers between the sum of squares and the output.
#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/chained_launch.cuh"
#include "kernels/cuda/fused/rms_norm.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

struct Params {
  const Bf16* x;
  int64_t x_stride;
  Bf16* residual;
  const Bf16* weight;
  float eps;
  int n;
  Bf16* y;
  int64_t y_stride;
  uint8_t* q;
  float* scales;
  int64_t scale_stride;
};

template <int kVecs, bool kResidual, bool kBf16Out, bool kQuantize>
__global__ void __launch_bounds__(RowSplit::kMaxThreads) rms_norm_kernel(const Params p) {
  begin_chained();
  __shared__ float scratch[RowSplit::kMaxThreads / 32];
  const int64_t row = blockIdx.x;
  const Bf16* x = p.x + row * p.x_stride;
  uint4 h[kVecs], weight[kVecs];
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = (i * blockDim.x + threadIdx.x) * kVec;
    h[i] = at < p.n ? stream_vec(x + at) : uint4{};
    weight[i] = at < p.n ? load_vec(p.weight + at) : uint4{};
  }
  if constexpr (kResidual) {
    Bf16* residual = p.residual + row * p.n;
    uint4 r[kVecs];
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int at = (i * blockDim.x + threadIdx.x) * kVec;
      r[i] = at < p.n ? load_vec(residual + at) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kVecs; ++i) {
      const int at = (i * blockDim.x + threadIdx.x) * kVec;
      float a[kVec], b[kVec];
      unpack(h[i], a), unpack(r[i], b);
#pragma unroll
      for (int j = 0; j < kVec; ++j) a[j] += b[j];
      h[i] = pack(a);
      if (at < p.n) store_vec(residual + at, h[i]);
    }
  }
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    float a[kVec];
    unpack(h[i], a);
#pragma unroll
    for (int j = 0; j < kVec; ++j) squares = fmaf(a[j], a[j], squares);
  }
  const float factor = rsqrtf(block_sum(squares, scratch) / static_cast<float>(p.n) + p.eps);
#pragma unroll
  for (int i = 0; i < kVecs; ++i) {
    const int at = (i * blockDim.x + threadIdx.x) * kVec;
    float a[kVec], w[kVec];
    unpack(h[i], a), unpack(weight[i], w);
#pragma unroll
    for (int j = 0; j < kVec; ++j) a[j] = a[j] * factor * w[j];
    if (kBf16Out && at < p.n) store_vec(p.y + row * p.y_stride + at, pack(a));
    if constexpr (kQuantize) {
      const float scale = scale_of(group_max(max_abs(a)));
      const uint2 codes = quantize_vec<false>(a, scale);
      if (at < p.n) {
        *reinterpret_cast<uint2*>(p.q + row * p.n + at) = codes;
        if (threadIdx.x % kLanesPerGroup == 0) p.scales[at / kScaleGroup * p.scale_stride + row] = scale;
      }
    }
  }
}

// Many rows that are only quantised, with fewer instructions to a byte: 16 channels side by side a thread, so that a
// scale group is eight lanes; the weights are multiplied before the row's factor is known, which goes into scale and
// reciprocal.
constexpr int kPairs = 3;  // of vectors, a thread
constexpr int kGroupLanes = kLanesPerGroup / 2;

__global__ void __launch_bounds__(1024) norm_quantize_kernel(const Params p) {
  begin_chained();
  __shared__ float scratch[32];
  const int64_t row = blockIdx.x;
  uint4 h[kPairs][2], weight[kPairs][2];
#pragma unroll
  for (int i = 0; i < kPairs * 2; ++i) {
    const int at = ((i / 2 * blockDim.x + threadIdx.x) * 2 + i % 2) * kVec;
    h[i / 2][i % 2] = at < p.n ? stream_vec(p.x + row * p.x_stride + at) : uint4{};
  }
#pragma unroll
  for (int i = 0; i < kPairs * 2; ++i) {
    const int at = ((i / 2 * blockDim.x + threadIdx.x) * 2 + i % 2) * kVec;
    weight[i / 2][i % 2] = at < p.n ? load_vec(p.weight + at) : uint4{};
  }
  float v[kPairs][2][kVec], amax[kPairs], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs * 2; ++i) {
    float w[kVec];
    float(&a)[kVec] = v[i / 2][i % 2];
    unpack(h[i / 2][i % 2], a), unpack(weight[i / 2][i % 2], w);
#pragma unroll
    for (int j = 0; j < kVec; ++j) squares = fmaf(a[j], a[j], squares), a[j] *= w[j];
  }
#pragma unroll
  for (int i = 0; i < kPairs; ++i) amax[i] = group_max<kGroupLanes>(fmaxf(max_abs(v[i][0]), max_abs(v[i][1])));
  const float factor = rsqrtf(block_sum(squares, scratch) / static_cast<float>(p.n) + p.eps);
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int at = (i * blockDim.x + threadIdx.x) * 2 * kVec;
    const float scale = scale_of(amax[i] * factor), multiplier = reciprocal(scale) * factor;
#pragma unroll
    for (int j = 0; j < kVec; ++j) v[i][0][j] *= multiplier, v[i][1][j] *= multiplier;
    const uint2 low = to_e4m3(v[i][0]), high = to_e4m3(v[i][1]);
    if (at >= p.n) continue;
    *reinterpret_cast<uint4*>(p.q + row * p.n + at) = {low.x, low.y, high.x, high.y};
    if (threadIdx.x % kGroupLanes == 0) p.scales[at / kScaleGroup * p.scale_stride + row] = scale;
  }
}

void launch_quantize(cudaStream_t stream, int64_t m, const Params& p) {
  constexpr int kWarpChannels = kPairs * 2 * kVec * 32;
  const unsigned threads = (p.n + kWarpChannels - 1) / kWarpChannels * 32;
  launch_chained(stream, norm_quantize_kernel, m, threads, 0, p);
}

// With a residual there are twice as many loads to each vector.
RowSplit split_of(int64_t m, const Params& p) {
  return RowSplit(m, p.n, p.residual != nullptr ? 2 : 4);
}

template <int kVecs, bool kResidual, bool kBf16Out, bool kQuantize>
void launch(cudaStream_t stream, int64_t m, const Params& p) {
  launch_chained(stream, rms_norm_kernel<kVecs, kResidual, kBf16Out, kQuantize>, m, split_of(m, p).threads, 0, p);
}

template <int kVecs, bool kResidual>
void launch(cudaStream_t stream, int64_t m, const Params& p) {
  if (p.q == nullptr) return launch<kVecs, kResidual, true, false>(stream, m, p);
  if (p.y == nullptr) return launch<kVecs, kResidual, false, true>(stream, m, p);
  launch<kVecs, kResidual, true, true>(stream, m, p);
}

template <int kVecs>
void launch(cudaStream_t stream, int64_t m, const Params& p) {
  p.residual == nullptr ? launch<kVecs, false>(stream, m, p) : launch<kVecs, true>(stream, m, p);
}

}  // namespace

absl::Status rms_norm(cudaStream_t stream, const RmsNormArgs& args) {
  const int64_t m = args.x.dim(0), n = args.x.dim(1);
  const bool quantizes = args.q.defined(), writes = args.y.defined();
  ArgsCheck check("rms_norm");
  check.require(n > 0 && n % (quantizes ? kScaleGroup : kVec) == 0 && n <= RowSplit::kMaxChannels,
                "rows of at most 16384 channels, divisible by 8, or by 128 to quantise");
  check.matrix("x", args.x, DType::kBF16, m, n).tensor("weight", args.weight, DType::kBF16, {n});
  if (args.residual.defined()) check.tensor("residual", args.residual, DType::kBF16, {m, n});
  if (writes) check.matrix("y", args.y, DType::kBF16, m, n);
  if (quantizes) {
    check.tensor("q", args.q, DType::kE4M3, {m, n});
    check.tensor("scales", args.scales, DType::kF32, {n / kScaleGroup, scale_row_stride(m)});
  }
  check.require(m == 0 || quantizes || writes, "an output: y, q or both");
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (m == 0) return absl::OkStatus();
  const Params p{.x = args.x.data<Bf16>(),
                 .x_stride = args.x.row_stride(),
                 .residual = args.residual.data<Bf16>(),
                 .weight = args.weight.data<Bf16>(),
                 .eps = args.eps,
                 .n = static_cast<int>(n),
                 .y = args.y.data<Bf16>(),
                 .y_stride = args.y.row_stride(),
                 .q = args.q.data<uint8_t>(),
                 .scales = args.scales.data<float>(),
                 .scale_stride = scale_row_stride(m)};
  const int vecs = split_of(m, p).vecs;
  quantizes && !writes && !args.residual.defined() && m >= RowSplit::kManyRows ? launch_quantize(stream, m, p)
  : vecs == 1                                                                  ? launch<1>(stream, m, p)
  : vecs == 2                                                                  ? launch<2>(stream, m, p)
                                                                               : launch<4>(stream, m, p);
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
