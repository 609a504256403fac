// A block a row, read once: each thread keeps its largest logit and the sum relative to it.
#include "kernels/cuda/fused/log_probs.h"

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kInFlight = 4;

// sum of exp(x - largest), with the largest x. Nothing yet: -infinity and 0.
struct Mass {
  float largest, sum;
};

__device__ Mass join(Mass a, Mass b) {
  // NaN is kept: fmaxf would drop it.
  const float largest = a.largest > b.largest || isnan(a.largest) ? a.largest : b.largest;
  if (largest == -INFINITY) return {largest, a.sum + b.sum};
  return {largest, a.sum * expf(a.largest - largest) + b.sum * expf(b.largest - largest)};
}

__device__ Mass join_lanes(Mass mass) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) {
    mass = join(mass, {__shfl_xor_sync(kAllLanes, mass.largest, lane), __shfl_xor_sync(kAllLanes, mass.sum, lane)});
  }
  return mass;
}

__global__ void __launch_bounds__(kThreads) log_probs_kernel(const float* logits, int64_t row_stride, int vocab,
                                                             const int32_t* ids, int num_ids, float* log_probs) {
  __shared__ Mass of_warps[kThreads / 32];
  const float* row = logits + blockIdx.x * row_stride;
  Mass mass{-INFINITY, 0.0f};
  for (int begin = threadIdx.x * 4; begin < vocab; begin += kThreads * 4 * kInFlight) {
    float4 vecs[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int at = begin + i * kThreads * 4;
      constexpr float kNone = -INFINITY;
      vecs[i] = at < vocab ? *reinterpret_cast<const float4*>(row + at) : float4{kNone, kNone, kNone, kNone};
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const float x[4] = {vecs[i].x, vecs[i].y, vecs[i].z, vecs[i].w};
      Mass four{fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), 0.0f};
      if (four.largest > -INFINITY) {
#pragma unroll
        for (int j = 0; j < 4; ++j) four.sum += expf(x[j] - four.largest);
      } else {
        four.sum = x[0] + x[1] + x[2] + x[3] == -INFINITY ? 0.0f : NAN;
      }
      mass = join(mass, four);
    }
  }
  mass = join_lanes(mass);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = mass;
  __syncthreads();
  mass = join_lanes(of_warps[threadIdx.x % 32]);
  if (static_cast<int>(threadIdx.x) >= num_ids) return;
  const int64_t at = int64_t{blockIdx.x} * num_ids + threadIdx.x;
  const int id = ids[at];
  log_probs[at] = id >= 0 && id < vocab ? row[id] - mass.largest - logf(mass.sum) : -INFINITY;
}

}  // namespace

absl::Status log_probs(cudaStream_t stream, const LogProbsArgs& args) {
  const int64_t num_rows = args.logits.dim(0), vocab = args.logits.dim(1), num_ids = args.ids.dim(1);
  ArgsCheck check("log_probs");
  check.divisible("vocab", vocab, 4).size("vocab", vocab, 4, 1 << 30).size("num_ids", num_ids, 1, kThreads);
  check.size("num_rows", num_rows, 0, 1 << 30).matrix("logits", args.logits, DType::kF32, num_rows, vocab);
  check.tensor("ids", args.ids, DType::kI32, {num_rows, num_ids});
  check.tensor("log_probs", args.log_probs, DType::kF32, {num_rows, num_ids});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (num_rows == 0) return absl::OkStatus();
  log_probs_kernel<<<static_cast<unsigned>(num_rows), kThreads, 0, stream>>>(
      args.logits.data<float>(), args.logits.row_stride(), static_cast<int>(vocab), args.ids.data<int32_t>(),
      static_cast<int>(num_ids), args.log_probs.data<float>());
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
