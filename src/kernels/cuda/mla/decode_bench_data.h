// The batches that the decode benchmark times, in one place so that they can be tested, and a peer be timed, on the
// same ones.
#pragma once

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "kernels/cuda/bench_util.h"
#include "kernels/cuda/mla/mla_decode.h"
#include "tensor/cuda/cuda_error.h"

namespace moesaic::cuda {

inline constexpr float kBenchScale = 0.1147f;  // YaRN's 0.0721 * 1.5896 of DeepSeek-V3

struct DecodeBenchShape {
  int64_t batch, heads, q_len, kv_len;
  bool ragged;  // lengths of half to one and a half times kv_len
};

inline std::vector<DecodeBenchShape> decode_bench_shapes() {
  std::vector<DecodeBenchShape> shapes;
  for (const int64_t heads : {16, 128}) {
    for (const int64_t q_len : {1, 2}) {
      for (const int64_t batch : {1, 32, 64, 128}) {
        for (const int64_t kv_len : {1024, 4096, 8192, 32768}) {
          for (const bool ragged : {false, true}) {
            if (ragged && (batch == 1 || kv_len > 8192)) continue;
            shapes.push_back({batch, heads, q_len, kv_len, ragged});
          }
        }
      }
    }
  }
  return shapes;
}

// Device tensors of one batch, over a cache whose blocks it takes in random order.
struct DecodeBenchData {
  DecodeBenchShape shape;
  Tensor q, out, block_table, kv_lens, q_begin;
  int64_t total_keys = 0, max_kv_len = 0;

  double flops() const { return 2.0 * shape.heads * shape.q_len * total_keys * (2 * kMlaLatentDim + kMlaRopeDim); }
  double bytes(double row_bytes) const {
    const double q_rows = 1.0 * shape.batch * shape.q_len * shape.heads;
    return total_keys * row_bytes + q_rows * (2 * kMlaLatentDim + kMlaRopeDim) * 2;
  }
};

inline DecodeBenchData decode_bench_data(KernelBench& bench, const DecodeBenchShape& shape, int64_t num_blocks) {
  Rng rng(shape.batch * 7919 + shape.kv_len + (shape.ragged ? 1 : 0));
  DecodeBenchData data{.shape = shape};
  std::vector<int32_t> lens, begin = {0};
  for (int64_t s = 0; s < shape.batch; ++s) {
    lens.push_back(static_cast<int32_t>(shape.ragged ? shape.kv_len / 2 + rng.below(shape.kv_len) : shape.kv_len));
    begin.push_back(static_cast<int32_t>((s + 1) * shape.q_len));
    data.total_keys += lens.back();
    data.max_kv_len = std::max<int64_t>(data.max_kv_len, lens.back());
  }
  const int64_t width = (data.max_kv_len + kMlaBlockTokens - 1) / kMlaBlockTokens;
  std::vector<int32_t> order(num_blocks), table(shape.batch * width);
  for (int64_t i = 0; i < num_blocks; ++i) order[i] = static_cast<int32_t>(i);
  for (int64_t i = 0; i < shape.batch * width; ++i) {
    std::swap(order[i], order[i + rng.below(num_blocks - i)]);
    table[i] = order[i];
  }
  const int64_t num_tokens = shape.batch * shape.q_len;
  data.q = bench.alloc_random(DType::kBF16, {num_tokens, shape.heads, kMlaLatentDim + kMlaRopeDim});
  data.out = bench.alloc(DType::kBF16, {num_tokens, shape.heads, kMlaLatentDim});
  data.kv_lens = bench.alloc_i32(lens);
  data.q_begin = bench.alloc_i32(begin);
  data.block_table = Tensor(bench.alloc_i32(table).raw(), DType::kI32, {shape.batch, width});
  return data;
}

// Enough for every batch.
inline constexpr int64_t kDecodeBenchBlocks = int64_t{128} * 32768 / kMlaBlockTokens + 8;

// The cache of all batches: random values; scales of FP8 rows are of ordinary size, in [2^-9, 2^-8).
inline Tensor decode_bench_rows(KernelBench& bench, DType dtype) {
  const int64_t num_rows = kDecodeBenchBlocks * kMlaBlockTokens;
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

}  // namespace moesaic::cuda
