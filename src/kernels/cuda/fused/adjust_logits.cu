// A block a slice of a row: it penalises the seen tokens that lie in it, then writes what the mask rules out.
#include "kernels/cuda/fused/adjust_logits.h"

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSlice = 4096;

struct Params {
  float* logits;
  int64_t row_stride;
  int vocab;
  const int32_t *seen_begin, *seen_ids, *seen_counts;  // seen_begin nullptr: none
  int num_seen;
  const float *frequency, *presence, *repetition;
  const uint64_t* allowed;  // nullptr: all
  int64_t allowed_words;
};

// Products and sums are rounded apart, as the CPU's are.
__device__ float penalised(float logit, int count, float frequency, float presence, float repetition) {
  logit = logit > 0.0f ? __fdiv_rn(logit, repetition) : __fmul_rn(logit, repetition);
  if (count <= 0) return logit;
  return __fsub_rn(logit, __fadd_rn(__fmul_rn(frequency, static_cast<float>(count)), presence));
}

__global__ void __launch_bounds__(kThreads) adjust_logits_kernel(const Params p) {
  const int64_t row = blockIdx.y;
  const int begin = blockIdx.x * kSlice, end = min(begin + kSlice, p.vocab);
  float* logits = p.logits + row * p.row_stride;
  if (p.seen_begin != nullptr) {
    const float frequency = p.frequency[row], presence = p.presence[row], repetition = p.repetition[row];
    const int seen_end = min(p.seen_begin[row + 1], p.num_seen);
    for (int i = max(p.seen_begin[row], 0) + threadIdx.x; i < seen_end; i += kThreads) {
      const int id = p.seen_ids[i];
      if (id < begin || id >= end) continue;
      logits[id] = penalised(logits[id], p.seen_counts[i], frequency, presence, repetition);
    }
    __syncthreads();
  }
  if (p.allowed == nullptr) return;
  const uint64_t* allowed = p.allowed + row * p.allowed_words;
#pragma unroll 4
  for (int id = begin + threadIdx.x; id < end; id += kThreads) {
    if ((allowed[id / 64] >> (id % 64) & 1) == 0) logits[id] = -INFINITY;
  }
}

}  // namespace

absl::Status adjust_logits(cudaStream_t stream, const AdjustLogitsArgs& args) {
  const int64_t num_rows = args.logits.dim(0), vocab = args.logits.dim(1), num_seen = args.seen_ids.dim(0);
  const bool penalises = args.seen_begin.defined() && num_seen > 0, masks = args.allowed.defined();
  ArgsCheck check("adjust_logits");
  check.divisible("vocab", vocab, 4).size("vocab", vocab, 4, 1 << 30).size("num_rows", num_rows, 0, 65535);
  check.size("num_seen", num_seen, 0, 1 << 30).matrix("logits", args.logits, DType::kF32, num_rows, vocab);
  if (args.seen_begin.defined()) {
    check.tensor("seen_begin", args.seen_begin, DType::kI32, {num_rows + 1});
    check.tensor("seen_ids", args.seen_ids, DType::kI32, {num_seen});
    check.tensor("seen_counts", args.seen_counts, DType::kI32, {num_seen});
    check.tensor("frequency_penalties", args.frequency_penalties, DType::kF32, {num_rows});
    check.tensor("presence_penalties", args.presence_penalties, DType::kF32, {num_rows});
    check.tensor("repetition_penalties", args.repetition_penalties, DType::kF32, {num_rows});
  }
  const int64_t words = (vocab + 63) / 64;
  if (masks) check.tensor("allowed", args.allowed, DType::kI64, {num_rows, words});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (num_rows == 0 || (!penalises && !masks)) return absl::OkStatus();
  const Params p{.logits = args.logits.data<float>(),
                 .row_stride = args.logits.row_stride(),
                 .vocab = static_cast<int>(vocab),
                 .seen_begin = penalises ? args.seen_begin.data<int32_t>() : nullptr,
                 .seen_ids = args.seen_ids.data<int32_t>(),
                 .seen_counts = args.seen_counts.data<int32_t>(),
                 .num_seen = static_cast<int>(num_seen),
                 .frequency = args.frequency_penalties.data<float>(),
                 .presence = args.presence_penalties.data<float>(),
                 .repetition = args.repetition_penalties.data<float>(),
                 .allowed = args.allowed.data<uint64_t>(),
                 .allowed_words = words};
  const dim3 grid(static_cast<unsigned>((vocab + kSlice - 1) / kSlice), static_cast<unsigned>(num_rows));
  adjust_logits_kernel<<<grid, kThreads, 0, stream>>>(p);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
