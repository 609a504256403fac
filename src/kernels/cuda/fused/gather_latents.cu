// A block a key.
#include "kernels/cuda/fused/gather_latents.h"

#include <algorithm>

#include "kernels/cuda/args_check.h"
#include "kernels/cuda/fused/vec.cuh"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kBlockTokens = 64;

struct Params {
  const uint8_t* rows;
  int64_t row_bytes, num_rows;
  bool fp8;
  const int32_t* block_table;
  int64_t table_stride, table_width;
  const int32_t* kv_begin;
  int num_seqs, lora, rope_dim;
  uint8_t* q;
  float* scales;
  int64_t scale_stride;
  Bf16* keys;
  int num_heads, key_dim;
};

// The cache row of a key, or -1.
__device__ int64_t find_row(const Params& p, int key) {
  if (key < p.kv_begin[0] || key >= p.kv_begin[p.num_seqs]) return -1;
  int low = 0, high = p.num_seqs;  // kv_begin[low] <= key < kv_begin[high]
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (p.kv_begin[middle] <= key ? low : high) = middle;
  }
  const int position = key - p.kv_begin[low];
  if (position / kBlockTokens >= p.table_width) return -1;
  const int64_t block = p.block_table[low * p.table_stride + position / kBlockTokens];
  const int64_t row = block * kBlockTokens + position % kBlockTokens;
  return row >= 0 && row < p.num_rows ? row : -1;
}

__global__ void __launch_bounds__(kThreads) gather_latents_kernel(const Params p) {
  const int64_t key = blockIdx.x, row = find_row(p, static_cast<int>(key));
  if (row < 0) return;
  const uint8_t* from = p.rows + row * p.row_bytes;
  const int at = threadIdx.x * kVec;  // of this thread's latents
  if (p.fp8) {
    const auto* scales = reinterpret_cast<const float*>(from + p.lora);
    if (at < p.lora) *reinterpret_cast<uint2*>(p.q + key * p.lora + at) = *reinterpret_cast<const uint2*>(from + at);
    if (at < p.lora && at % kScaleGroup == 0) {
      p.scales[at / kScaleGroup * p.scale_stride + key] = scales[at / kScaleGroup];
    }
    from += p.lora + p.lora / kScaleGroup * sizeof(float);
  } else {
    float x[kVec];
    unpack(at < p.lora ? load_vec(reinterpret_cast<const Bf16*>(from) + at) : uint4{}, x);
    const float scale = scale_of(group_max(max_abs(x)));
    if (at < p.lora) {
      *reinterpret_cast<uint2*>(p.q + key * p.lora + at) = quantize_vec<true>(x, scale);
      if (at % kScaleGroup == 0) p.scales[at / kScaleGroup * p.scale_stride + key] = scale;
    }
    from += p.lora * sizeof(Bf16);
  }
  const auto* rope = reinterpret_cast<const Bf16*>(from);
  const int vecs = p.rope_dim / kVec;
  for (int i = threadIdx.x; i < p.num_heads * vecs; i += kThreads) {
    Bf16* to = p.keys + (key * p.num_heads + i / vecs + 1) * p.key_dim - p.rope_dim;
    store_vec(to + i % vecs * kVec, load_vec(rope + i % vecs * kVec));
  }
}

}  // namespace

absl::Status gather_latents(cudaStream_t stream, const GatherLatentsArgs& args) {
  const int64_t num_keys = args.q.dim(0), lora = args.q.dim(1), rope_dim = args.rope_dim;
  const int64_t num_seqs = args.block_table.dim(0), num_heads = args.keys.dim(1), key_dim = args.keys.dim(2);
  const bool fp8 = args.rows.dtype() == DType::kE4M3;
  ArgsCheck check("gather_latents");
  check.divisible("lora", lora, fp8 ? 4 * kScaleGroup : kScaleGroup).size("lora", lora, 0, kThreads * kVec);
  check.divisible("rope_dim", rope_dim, kVec).divisible("key_dim", key_dim, kVec);
  check.size("num_seqs", num_seqs, 1, 1 << 20).size("num_keys", num_keys, 0, 1 << 30);
  check.size("num_heads", num_heads, 1, 1024).size("rope_dim", rope_dim, kVec, key_dim);
  if (!check.ok()) return check.status();
  const int64_t columns = fp8 ? lora + lora / kScaleGroup * 4 + 2 * rope_dim : lora + rope_dim;
  check.tensor("rows", args.rows, fp8 ? DType::kE4M3 : DType::kBF16, {args.rows.dim(0), columns});
  check.table("block_table", args.block_table, num_seqs);
  check.tensor("kv_begin", args.kv_begin, DType::kI32, {num_seqs + 1});
  check.tensor("q", args.q, DType::kE4M3, {num_keys, lora});
  check.tensor("scales", args.scales, DType::kF32, {lora / kScaleGroup, scale_row_stride(num_keys)});
  check.tensor("keys", args.keys, DType::kBF16, {num_keys, num_heads, key_dim});
  MOESAIC_RETURN_IF_ERROR(check.status());
  if (num_keys == 0) return absl::OkStatus();
  const Params p{.rows = args.rows.data<uint8_t>(),
                 .row_bytes = columns * dtype_bytes(args.rows.dtype()),
                 .num_rows = args.rows.dim(0),
                 .fp8 = fp8,
                 .block_table = args.block_table.data<int32_t>(),
                 .table_stride = args.block_table.row_stride(),
                 .table_width = args.block_table.dim(1),
                 .kv_begin = args.kv_begin.data<int32_t>(),
                 .num_seqs = static_cast<int>(num_seqs),
                 .lora = static_cast<int>(lora),
                 .rope_dim = static_cast<int>(rope_dim),
                 .q = args.q.data<uint8_t>(),
                 .scales = args.scales.data<float>(),
                 .scale_stride = scale_row_stride(num_keys),
                 .keys = args.keys.data<Bf16>(),
                 .num_heads = static_cast<int>(num_heads),
                 .key_dim = static_cast<int>(key_dim)};
  gather_latents_kernel<<<static_cast<unsigned>(num_keys), kThreads, 0, stream>>>(p);
  MOESAIC_CUDA_CHECK(cudaGetLastError());
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
