#include "kernels/cuda/mla/mla_bench.h"

#include "kernels/cuda/mla/decode_bench_data.h"
#include "kernels/cuda/mla/mla_decode.h"
#include "kernels/cuda/mla/mla_prefill.h"
#include "kernels/cuda/mla/prefill_bench_data.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {
namespace {

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
                           .softmax_scale = kBenchScale,
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

absl::Status bench_prefill(KernelBench& bench, const PrefillBenchShape& shape) {
  const MlaPrefillArgs args = prefill_bench_args(bench, shape);
  const int64_t num_tokens = args.q.dim(0), num_keys = args.k.dim(0);
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
  for (const PrefillBenchShape& shape : prefill_bench_shapes()) {
    MOESAIC_RETURN_IF_ERROR(bench_prefill(bench, shape));
  }
  for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
    const Tensor rows = decode_bench_rows(bench, dtype);
    for (const DecodeBenchShape& shape : decode_bench_shapes()) {
      MOESAIC_RETURN_IF_ERROR(bench_decode(bench, rows, shape));
    }
  }
  return absl::OkStatus();
}

}  // namespace moesaic::cuda
