#include "kernels/cuda/mla/mla_bench.h"

#include "kernels/cuda/mla/decode_bench_data.h"
#include "kernels/cuda/mla/mla_decode.h"
#include "kernels/cuda/mla/mla_prefill.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

constexpr float kScale = 0.1147f;  // YaRN's 0.0721 * 1.5896 of DeepSeek-V3

// FP8 rows of random values; their scales are of ordinary size, in [2^-9, 2^-8).
Tensor random_rows(KernelBench& bench, DType dtype, int64_t num_rows) {
  if (dtype == DType::kBF16) return bench.alloc_random(dtype, {num_rows, kMlaLatentDim + kMlaRopeDim});
  const Tensor rows = bench.alloc_random(dtype, {num_rows, kMlaFp8RowBytes}, 448.0f);
  Rng rng(448);
  std::vector<int32_t> scale_bits(num_rows * 4);
  for (int32_t& bits : scale_bits) bits = 0x3b000000 + static_cast<int32_t>(rng.next_u64() >> 41);
  const Tensor scales = bench.alloc_i32(scale_bits);
  const Tensor keys = bench.alloc_random(DType::kBF16, {num_rows, kMlaRopeDim});
  const auto place = [&](const Tensor& from, int64_t offset, int64_t width) {
    MOESAIC_CUDA_CHECK(cudaMemcpy2DAsync(rows.data<char>() + offset, kMlaFp8RowBytes, from.raw(), width, width,
                                         num_rows, cudaMemcpyDeviceToDevice, bench.stream()));
  };
  place(scales, kMlaLatentDim, 16);
  place(keys, kMlaLatentDim + 16, 2 * kMlaRopeDim);
  return rows;
}

absl::Status bench_decode(KernelBench& bench, const Tensor& rows, const DecodeBenchShape& bench_shape) {
  const DecodeBenchData data = decode_bench_data(bench, bench_shape, kDecodeBenchBlocks);
  const MlaDecodeShape shape{.num_seqs = bench_shape.batch,
                             .num_heads = bench_shape.heads,
                             .max_q_len = bench_shape.q_len,
                             .cache_dtype = rows.dtype(),
                             .num_sms = bench.device().num_sms};
  const MlaDecodeArgs args{.shape = shape,
                           .q = data.q,
                           .rows = rows,
                           .block_table = data.block_table,
                           .softmax_scale = kScale,
                           .plan = bench.alloc(DType::kU8, {mla_decode_plan_bytes(shape)}),
                           .workspace = bench.alloc(DType::kU8, {mla_decode_workspace_bytes(shape)}),
                           .out = data.out};
  MOESAIC_RETURN_IF_ERROR(mla_decode_plan(bench.stream(), shape, data.kv_lens, data.q_begin, args.plan));
  MOESAIC_RETURN_IF_ERROR(mla_decode(bench.stream(), args));
  if (!bench_shape.ragged && bench_shape.kv_len == 4096 && rows.dtype() == DType::kBF16) {
    bench.measure({.op = "mla_decode_plan",
                   .batch = bench_shape.batch,
                   .heads = bench_shape.heads,
                   .q_len = bench_shape.q_len,
                   .kv_len = bench_shape.kv_len,
                   .dtype = "i32"},
                  {.bytes = 1.0 * args.plan.num_bytes()}, [&](cudaStream_t stream) {
                    MOESAIC_CHECK(mla_decode_plan(stream, shape, data.kv_lens, data.q_begin, args.plan).ok());
                  });
  }
  const int64_t row_bytes = rows.dim(1) * dtype_bytes(rows.dtype());
  const KernelRow row{.op = "mla_decode",
                      .batch = bench_shape.batch,
                      .heads = bench_shape.heads,
                      .q_len = bench_shape.q_len,
                      .kv_len = bench_shape.kv_len,
                      .dtype = std::string(dtype_name(rows.dtype()))};
  const KernelWork work{
      .bytes = data.bytes(row_bytes), .flops = data.flops(), .variant = bench_shape.ragged ? "ragged" : ""};
  bench.measure(row, work, [&](cudaStream_t stream) { MOESAIC_CHECK(mla_decode(stream, args).ok()); });
  return absl::OkStatus();
}

struct PrefillShape {
  int64_t batch, heads, q_len, kv_len;
};

absl::Status bench_prefill(KernelBench& bench, const PrefillShape& shape) {
  std::vector<int32_t> q_begin, kv_begin;
  for (int64_t s = 0; s <= shape.batch; ++s) {
    q_begin.push_back(static_cast<int32_t>(s * shape.q_len));
    kv_begin.push_back(static_cast<int32_t>(s * shape.kv_len));
  }
  const int64_t num_tokens = shape.batch * shape.q_len, num_keys = shape.batch * shape.kv_len;
  const MlaPrefillArgs args{.num_heads = shape.heads,
                            .q = bench.alloc_random(DType::kBF16, {num_tokens, shape.heads * kMlaKeyDim}),
                            .k = bench.alloc_random(DType::kBF16, {num_keys, shape.heads * kMlaKeyDim}),
                            .v = bench.alloc_random(DType::kBF16, {num_keys, shape.heads * kMlaValueDim}),
                            .q_begin = bench.alloc_i32(q_begin),
                            .kv_begin = bench.alloc_i32(kv_begin),
                            .softmax_scale = kScale,
                            .workspace = bench.alloc(DType::kU8, {kMlaPrefillWorkspaceBytes}),
                            .out = bench.alloc(DType::kBF16, {num_tokens, shape.heads * kMlaValueDim}),
                            .num_sms = bench.device().num_sms};
  MOESAIC_RETURN_IF_ERROR(mla_prefill(bench.stream(), args));
  // The pairs of a query and a key that it sees.
  const double pairs =
      shape.batch * (shape.q_len * (shape.kv_len - shape.q_len) + shape.q_len * (shape.q_len + 1) / 2.0);
  const KernelWork work{.bytes = 2.0 * shape.heads * (num_tokens + num_keys) * (kMlaKeyDim + kMlaValueDim),
                        .flops = 2.0 * shape.heads * pairs * (kMlaKeyDim + kMlaValueDim)};
  bench.measure({.op = "mla_prefill",
                 .batch = shape.batch,
                 .heads = shape.heads,
                 .q_len = shape.q_len,
                 .kv_len = shape.kv_len,
                 .dtype = "bf16"},
                work, [&](cudaStream_t stream) { MOESAIC_CHECK(mla_prefill(stream, args).ok()); });
  return absl::OkStatus();
}

}  // namespace

absl::Status bench_mla(KernelBench& bench) {
  for (const PrefillShape& shape : {PrefillShape{1, 128, 4096, 4096},
                                    {1, 128, 8192, 8192},
                                    {1, 16, 16384, 16384},
                                    {16, 128, 512, 512},
                                    {4, 128, 2048, 2048},
                                    {1, 128, 2048, 8192}}) {
    MOESAIC_RETURN_IF_ERROR(bench_prefill(bench, shape));
  }
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    const Tensor rows = random_rows(bench, dtype, kDecodeBenchBlocks * kMlaBlockTokens);
    for (const DecodeBenchShape& shape : decode_bench_shapes()) {
      MOESAIC_RETURN_IF_ERROR(bench_decode(bench, rows, shape));
    }
  }
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
