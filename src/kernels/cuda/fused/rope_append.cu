// blockIdx.x is the token; blockIdx.y 0 makes the cache row, the others turn the heads of q. Products and sums are
// rounded apart, as the CPU's are.
#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/rope_append.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQueryVecs = 2;  // a thread

struct Params {
  const Bf16* kv;
  int64_t kv_stride;
  const Bf16* norm_weight;
  float eps;
  int lora, rope_dim, max_positions, num_heads;
  const Bf16* q;
  int64_t q_head_dim;
  Bf16* q_out;
  int64_t q_out_head_dim;
  const float* table;
  const int32_t* positions;
  const int32_t* slots;
  int64_t num_slots;
  uint8_t* rows;
  int64_t row_bytes;
  bool fp8;
};

__device__ void turn(const float* table, float (&x)[kVec]) {
  const float4 angles[2] = {reinterpret_cast<const float4*>(table)[0], reinterpret_cast<const float4*>(table)[1]};
  const float turns[kVec] = {angles[0].x, angles[0].y, angles[0].z, angles[0].w,
                             angles[1].x, angles[1].y, angles[1].z, angles[1].w};
#pragma unroll
  for (int i = 0; i < kVec; i += 2) {
    const float even = x[i], odd = x[i + 1];
    x[i] = __fsub_rn(__fmul_rn(even, turns[i]), __fmul_rn(odd, turns[i + 1]));
    x[i + 1] = __fadd_rn(__fmul_rn(even, turns[i + 1]), __fmul_rn(odd, turns[i]));
  }
}

// Threads hold 8 elements each: latents first, then the key.
__device__ void append_row(const Params& p, int64_t token, const float* table, int64_t slot) {
  __shared__ float scratch[kThreads / 32];
  const int at = threadIdx.x * kVec, width = p.lora + p.rope_dim;
  const bool is_latent = at < p.lora;
  float x[kVec];
  unpack(at < width ? load_vec(p.kv + token * p.kv_stride + at) : uint4{}, x);
  if (p.norm_weight != nullptr) {
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < kVec; ++i) squares = fmaf(x[i], x[i], squares);
    const float mean = block_sum(is_latent ? squares : 0.0f, scratch) / static_cast<float>(p.lora);
    float weight[kVec];
    unpack(is_latent ? load_vec(p.norm_weight + at) : uint4{}, weight);
    const float factor = rsqrtf(mean + p.eps);
#pragma unroll
    for (int i = 0; i < kVec; ++i) x[i] = is_latent ? x[i] * factor * weight[i] : x[i];
  }
  if (!is_latent && at < width) turn(table + at - p.lora, x);
  uint8_t* row = p.rows + slot * p.row_bytes;
  if (p.fp8) {
    const float scale = scale_of(group_max(max_abs(x)));
    if (is_latent) {
      *reinterpret_cast<uint2*>(row + at) = quantize_vec<true>(x, scale);
      if (at % kScaleGroup == 0) reinterpret_cast<float*>(row + p.lora)[at / kScaleGroup] = scale;
      return;
    }
    row += p.lora + p.lora / kScaleGroup * sizeof(float) - p.lora * sizeof(Bf16);  // where the latents' bf16 would be
  }
  if (at < width) store_vec(reinterpret_cast<Bf16*>(row) + at, pack(x));
}

__device__ void turn_queries(const Params& p, int64_t token, const float* table) {
  const int vecs_per_head = p.rope_dim / kVec, count = p.num_heads * vecs_per_head;
#pragma unroll
  for (int i = 0; i < kQueryVecs; ++i) {
    const int vec = ((blockIdx.y - 1) * kQueryVecs + i) * kThreads + threadIdx.x;
    if (vec >= count) return;
    const int64_t head = token * p.num_heads + vec / vecs_per_head;
    const int at = vec % vecs_per_head * kVec;
    float x[kVec];
    unpack(load_vec(p.q + (head + 1) * p.q_head_dim - p.rope_dim + at), x);
    turn(table + at, x);
    store_vec(p.q_out + (head + 1) * p.q_out_head_dim - p.rope_dim + at, pack(x));
  }
}

__global__ void __launch_bounds__(kThreads) rope_append_kernel(const Params p) {
  const int64_t token = blockIdx.x;
  const int32_t position = p.positions[token], slot = p.slots[token];
  if (position < 0 || position >= p.max_positions || slot < 0 || slot >= p.num_slots) return;
  const float* table = p.table + int64_t{position} * p.rope_dim;
  if (blockIdx.y == 0) return append_row(p, token, table, slot);
  turn_queries(p, token, table);
}

absl::Status check_args(const RopeAppendArgs& args, int64_t lora, int64_t rope_dim) {
  const int64_t num_tokens = args.kv.dim(0);
  const bool fp8 = args.rows.dtype() == DType::kE4M3;
  ArgsCheck check("rope_append");
  check.require(rope_dim > 0 && rope_dim % kVec == 0 && lora > 0 && lora % (fp8 ? 4 * kScaleGroup : kScaleGroup) == 0,
                "rope_dim divisible by 8, kv_lora_rank by 128 (FP8 rows: by 512)");
  check.require(lora + rope_dim <= kThreads * kVec, "cache rows of at most 2048 elements");
  if (!check.ok()) return check.status();
  check.matrix("kv", args.kv, DType::kBF16, num_tokens, lora + rope_dim);
  check.tensor("table", args.table, DType::kF32, {args.table.dim(0), rope_dim});
  check.tensor("positions", args.positions, DType::kI32, {num_tokens});
  check.tensor("slots", args.slots, DType::kI32, {num_tokens});
  if (args.norm_weight.defined()) check.tensor("norm_weight", args.norm_weight, DType::kBF16, {lora});
  const int64_t columns = fp8 ? lora + lora / kScaleGroup * 4 + 2 * rope_dim : lora + rope_dim;
  check.tensor("rows", args.rows, fp8 ? DType::kE4M3 : DType::kBF16, {args.rows.dim(0), columns});
  if (!args.q.defined()) return check.status();
  const Tensor& out = args.q_out.defined() ? args.q_out : args.q;
  check.require(args.q.rank() == 3 && out.rank() == 3, "queries [num_tokens, num_heads, head_dim]");
  for (const Tensor* q : {&args.q, &out}) {
    check.tensor(q == &args.q ? "q" : "q_out", *q, DType::kBF16, {num_tokens, args.q.dim(1), q->dim(2)});
    check.require(q->dim(2) % kVec == 0 && q->dim(2) >= rope_dim, "heads of a width divisible by 8");
  }
  return check.status();
}

}  // namespace

absl::Status rope_append(cudaStream_t stream, const RopeAppendArgs& args) {
  const int64_t num_tokens = args.kv.dim(0), rope_dim = args.table.dim(1), lora = args.kv.dim(1) - rope_dim;
  MOESAIC_RETURN_IF_ERROR(check_args(args, lora, rope_dim));
  if (num_tokens == 0) return absl::OkStatus();
  const Tensor& out = args.q_out.defined() ? args.q_out : args.q;
  const int64_t num_heads = args.q.defined() ? args.q.dim(1) : 0;
  const Params p{.kv = args.kv.data<Bf16>(),
                 .kv_stride = args.kv.row_stride(),
                 .norm_weight = args.norm_weight.data<Bf16>(),
                 .eps = args.eps,
                 .lora = static_cast<int>(lora),
                 .rope_dim = static_cast<int>(rope_dim),
                 .max_positions = static_cast<int>(args.table.dim(0)),
                 .num_heads = static_cast<int>(num_heads),
                 .q = args.q.data<Bf16>(),
                 .q_head_dim = args.q.dim(2),
                 .q_out = out.data<Bf16>(),
                 .q_out_head_dim = out.dim(2),
                 .table = args.table.data<float>(),
                 .positions = args.positions.data<int32_t>(),
                 .slots = args.slots.data<int32_t>(),
                 .num_slots = args.rows.dim(0),
                 .rows = args.rows.data<uint8_t>(),
                 .row_bytes = args.rows.row_stride() * dtype_bytes(args.rows.dtype()),
                 .fp8 = args.rows.dtype() == DType::kE4M3};
  constexpr int64_t kPerBlock = kThreads * kQueryVecs;
  const int64_t query_blocks = (num_heads * rope_dim / kVec + kPerBlock - 1) / kPerBlock;
  const dim3 grid(static_cast<unsigned>(num_tokens), static_cast<unsigned>(1 + query_blocks));
  rope_append_kernel<<<grid, kThreads, 0, stream>>>(p);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
