// A block a stretch of a token's row, 8 channels a thread; the rows of eight experts are in flight at once.
#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/combine.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kMaxTopk = 32;
constexpr int kInFlight = 8;

struct CombineParams {
  const Bf16* x;
  int64_t x_stride;
  int64_t num_rows;
  const int32_t* row_ids;
  const float* weights;
  int topk;
  const Bf16* base;
  int64_t base_stride;
  Bf16* y;
  int64_t y_stride;
  int n;
};

__global__ void __launch_bounds__(kMaxThreads) combine_kernel(const CombineParams p) {
  const int64_t token = blockIdx.x;
  const int at = (blockIdx.y * blockDim.x + threadIdx.x) * kVec;
  if (at >= p.n) return;
  float sum[kVec] = {};
  for (int first = 0; first < p.topk; first += kInFlight) {
    uint4 rows[kInFlight];
    float weights[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const bool exists = first + i < p.topk;
      const int64_t id = exists ? p.row_ids[token * p.topk + first + i] : -1;
      const bool routed = id >= 0 && id < p.num_rows;
      weights[i] = routed ? p.weights[token * p.topk + first + i] : 0.0f;
      rows[i] = routed ? load_vec(p.x + id * p.x_stride + at) : uint4{};
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      float x[kVec];
      unpack(rows[i], x);
#pragma unroll
      for (int j = 0; j < kVec; ++j) sum[j] = __fadd_rn(sum[j], __fmul_rn(x[j], weights[i]));
    }
  }
  if (p.base != nullptr) {
    float base[kVec];
    unpack(load_vec(p.base + token * p.base_stride + at), base);
#pragma unroll
    for (int j = 0; j < kVec; ++j) sum[j] = __fadd_rn(base[j], sum[j]);
  }
  store_vec(p.y + token * p.y_stride + at, pack(sum));
}

__global__ void __launch_bounds__(kMaxThreads)
    embedding_kernel(const Bf16* table, int64_t vocab, const int32_t* ids, Bf16* y, int64_t y_stride, int n) {
  const int64_t token = blockIdx.x;
  const int at = (blockIdx.y * blockDim.x + threadIdx.x) * kVec;
  if (at >= n) return;
  const int64_t id = ids[token];
  store_vec(y + token * y_stride + at, id >= 0 && id < vocab ? load_vec(table + id * n + at) : uint4{});
}

// One vector a thread: blocks of equal width over a row.
struct RowGrid {
  RowGrid(int64_t num_rows, int64_t n) {
    const int64_t vecs = n / kVec, blocks = (vecs + kMaxThreads - 1) / kMaxThreads;
    threads = static_cast<unsigned>((vecs + blocks * 32 - 1) / (blocks * 32) * 32);
    grid = dim3(static_cast<unsigned>(num_rows), static_cast<unsigned>(blocks));
  }
  dim3 grid;
  unsigned threads;
};

}  // namespace

absl::Status combine(cudaStream_t stream, const CombineArgs& args) {
  const int64_t num_tokens = args.y.dim(0), n = args.y.dim(1), topk = args.row_ids.dim(1);
  ArgsCheck check("combine");
  check.require(n > 0 && n % kVec == 0 && n <= (int64_t{1} << 24), "rows of channels divisible by 8");
  check.require(topk >= 1 && topk <= kMaxTopk, "1 to 32 experts a token");
  check.matrix("x", args.x, DType::kBF16, args.x.dim(0), n).matrix("y", args.y, DType::kBF16, num_tokens, n);
  check.tensor("row_ids", args.row_ids, DType::kI32, {num_tokens, topk});
  check.tensor("weights", args.weights, DType::kF32, {num_tokens, topk});
  if (args.base.defined()) check.matrix("base", args.base, DType::kBF16, num_tokens, n);
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (num_tokens == 0) return absl::OkStatus();
  const CombineParams p{.x = args.x.data<Bf16>(),
                        .x_stride = args.x.row_stride(),
                        .num_rows = args.x.dim(0),
                        .row_ids = args.row_ids.data<int32_t>(),
                        .weights = args.weights.data<float>(),
                        .topk = static_cast<int>(topk),
                        .base = args.base.data<Bf16>(),
                        .base_stride = args.base.row_stride(),
                        .y = args.y.data<Bf16>(),
                        .y_stride = args.y.row_stride(),
                        .n = static_cast<int>(n)};
  const RowGrid launch(num_tokens, n);
  combine_kernel<<<launch.grid, launch.threads, 0, stream>>>(p);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

absl::Status embedding(cudaStream_t stream, const EmbeddingArgs& args) {
  const int64_t num_tokens = args.y.dim(0), n = args.y.dim(1), vocab = args.table.dim(0);
  ArgsCheck check("embedding");
  check.require(n > 0 && n % kVec == 0 && n <= (int64_t{1} << 24), "rows of channels divisible by 8");
  check.tensor("table", args.table, DType::kBF16, {vocab, n}).tensor("ids", args.ids, DType::kI32, {num_tokens});
  check.matrix("y", args.y, DType::kBF16, num_tokens, n);
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (num_tokens == 0) return absl::OkStatus();
  const RowGrid launch(num_tokens, n);
  embedding_kernel<<<launch.grid, launch.threads, 0, stream>>>(args.table.data<Bf16>(), vocab, args.ids.data<int32_t>(),
                                                               args.y.data<Bf16>(), args.y.row_stride(),
                                                               static_cast<int>(n));
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
