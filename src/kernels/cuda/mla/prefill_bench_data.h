// The batches that the prefill benchmark times, and that are tested at this size.
#pragma once

#include <vector>

#include "kernels/cuda/bench_util.h"
#include "kernels/cuda/mla/decode_bench_data.h"
#include "kernels/cuda/mla/mla_prefill.h"

namespace moesaic::cuda {

struct PrefillBenchShape {
  int64_t batch, heads, q_len, kv_len;
};

inline std::vector<PrefillBenchShape> prefill_bench_shapes() {
  return {{1, 128, 4096, 4096}, {1, 128, 8192, 8192}, {1, 16, 16384, 16384},
          {16, 128, 512, 512},  {4, 128, 2048, 2048}, {1, 128, 2048, 8192}};
}

// Device tensors of one batch, until bench.release().
inline MlaPrefillArgs prefill_bench_args(KernelBench& bench, const PrefillBenchShape& shape) {
  std::vector<int32_t> q_begin, kv_begin;
  for (int64_t s = 0; s <= shape.batch; ++s) {
    q_begin.push_back(static_cast<int32_t>(s * shape.q_len));
    kv_begin.push_back(static_cast<int32_t>(s * shape.kv_len));
  }
  const int64_t num_tokens = shape.batch * shape.q_len, num_keys = shape.batch * shape.kv_len;
  return {.num_heads = shape.heads,
          .q = bench.alloc_random(DType::kBF16, {num_tokens, shape.heads * kMlaKeyDim}),
          .k = bench.alloc_random(DType::kBF16, {num_keys, shape.heads * kMlaKeyDim}),
          .v = bench.alloc_random(DType::kBF16, {num_keys, shape.heads * kMlaValueDim}),
          .q_begin = bench.alloc_i32(q_begin),
          .kv_begin = bench.alloc_i32(kv_begin),
          .softmax_scale = kBenchScale,
          .workspace = bench.alloc(DType::kU8, {kMlaPrefillWorkspaceBytes}),
          .out = bench.alloc(DType::kBF16, {num_tokens, shape.heads * kMlaValueDim}),
          .num_sms = bench.device().num_sms};
}

}  // namespace moesaic::cuda
