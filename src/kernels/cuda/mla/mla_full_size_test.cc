// Every batch that the benchmarks time, at its size: all outputs written, sampled rows against a double loop.
#include <algorithm>

#include "kernels/cuda/mla/decode_bench_data.h"
#include "kernels/cuda/mla/prefill_bench_data.h"
#include "kernels/cuda/test_util.h"

namespace moesaic::cuda {
namespace {

constexpr int64_t kWidth = kMlaLatentDim + kMlaRopeDim;

// Rows [count, width] of bf16 that lie `stride` elements apart.
std::vector<float> rows_of(const uint16_t* from, int64_t stride, int64_t width, int64_t count) {
  std::vector<uint16_t> bits(count * width);
  MOESAIC_CUDA_CHECK(cudaMemcpy2D(bits.data(), width * 2, from, stride * 2, width * 2, count, cudaMemcpyDeviceToHost));
  return test::widen_bf16(bits);
}

// Softmax of scale * q k over the first `num_keys` keys, times v.
std::vector<float> attend(const std::vector<float>& q, const float* keys, int64_t key_stride, const float* values,
                          int64_t value_stride, int64_t value_dim, int64_t num_keys) {
  std::vector<double> weights(num_keys);
  double largest = -1e300, sum = 0.0;
  for (int64_t p = 0; p < num_keys; ++p) {
    double score = 0.0;
    for (size_t i = 0; i < q.size(); ++i) score += double{q[i]} * keys[p * key_stride + static_cast<int64_t>(i)];
    weights[p] = score * kBenchScale;
    largest = std::max(largest, weights[p]);
  }
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  std::vector<double> total(value_dim);
  for (int64_t p = 0; p < num_keys; ++p) {
    for (int64_t i = 0; i < value_dim; ++i) total[i] += weights[p] / sum * values[p * value_stride + i];
  }
  return {total.begin(), total.end()};
}

class MlaFullSize : public testing::Test {
 protected:
  void SetUp() override {
    auto bench = KernelBench::open(0, [](const std::string&) {});
    if (!bench.ok()) GTEST_SKIP() << bench.status().message();
    bench_ = *std::move(bench);
  }
  void poison(const Tensor& out) { MOESAIC_CUDA_CHECK(cudaMemset(out.raw(), 0xff, out.num_bytes())); }
  void expect_written(const Tensor& out) {
    const std::vector<uint16_t> bits = test::download<uint16_t>(out);
    EXPECT_EQ(std::count(bits.begin(), bits.end(), 0xffff), 0);
  }
  // bf16 weights and results: 2e-3 of a row on average.
  void expect_row(const uint16_t* out, const std::vector<float>& want) {
    const auto width = static_cast<int64_t>(want.size());
    EXPECT_LT(test::rel_error(rows_of(out, width, width, 1), want), 4e-3);
  }

  std::unique_ptr<KernelBench> bench_;
};

class MlaDecodeFullSize : public MlaFullSize, public testing::WithParamInterface<DType> {
 protected:
  // The cached rows of sequence s, as the kernel sees them.
  std::vector<float> cached(const Tensor& rows, const DecodeBenchData& data, int64_t s, int64_t kv_len) {
    const int64_t blocks = (kv_len + 63) / 64, elements = 64 * rows.dim(1),
                  bytes = elements * dtype_bytes(rows.dtype());
    std::vector<int32_t> table(blocks);
    MOESAIC_CUDA_CHECK(cudaMemcpy(table.data(), data.block_table.row<int32_t>(s), blocks * 4, cudaMemcpyDeviceToHost));
    std::vector<uint8_t> all(blocks * bytes);
    for (int64_t b = 0; b < blocks; ++b) {
      MOESAIC_CUDA_CHECK(
          cudaMemcpy(all.data() + b * bytes, rows.data<char>() + table[b] * bytes, bytes, cudaMemcpyDeviceToHost));
    }
    std::vector<float> values(blocks * 64 * kWidth);
    for (int64_t p = 0; p < blocks * 64; ++p) {
      const uint8_t* row = all.data() + p * (bytes / 64);
      const bool fp8 = rows.dtype() == DType::kE4M3;
      for (int64_t i = 0; i < kWidth; ++i) {
        if (fp8 && i < kMlaLatentDim) {
          values[p * kWidth + i] = e4m3_to_f32(row[i]) * reinterpret_cast<const float*>(row + kMlaLatentDim)[i / 128];
        } else {
          const auto* key = reinterpret_cast<const uint16_t*>(fp8 ? row + kMlaLatentDim + 16 : row);
          values[p * kWidth + i] = bf16_to_f32(key[fp8 ? i - kMlaLatentDim : i]);
        }
      }
    }
    return values;
  }

  void check(const Tensor& rows, const DecodeBenchShape& c) {
    const DecodeBenchData data = decode_bench_data(*bench_, c, kDecodeBenchBlocks);
    const MlaDecodeShape shape{.num_seqs = c.batch,
                               .num_heads = c.heads,
                               .max_q_len = c.q_len,
                               .cache_dtype = rows.dtype(),
                               .num_sms = bench_->device().num_sms};
    const MlaDecodeArgs args{.shape = shape,
                             .q = data.q,
                             .rows = rows,
                             .block_table = data.block_table,
                             .softmax_scale = kBenchScale,
                             .plan = bench_->alloc(DType::kU8, {mla_decode_plan_bytes(shape)}),
                             .workspace = bench_->alloc(DType::kU8, {mla_decode_workspace_bytes(shape)}),
                             .out = data.out};
    for (const Tensor& tensor : {args.out, args.plan, args.workspace}) poison(tensor);
    MOESAIC_CUDA_CHECK(cudaDeviceSynchronize());
    ASSERT_TRUE(mla_decode_plan(bench_->stream(), shape, data.kv_lens, data.q_begin, args.plan).ok());
    ASSERT_TRUE(mla_decode(bench_->stream(), args).ok());
    expect_written(args.out);
    const std::vector<int32_t> lens = test::download<int32_t>(data.kv_lens);
    for (const int64_t s : {static_cast<int64_t>(rng_.below(c.batch)), c.batch - 1}) {
      const std::vector<float> keys = cached(rows, data, s, lens[s]);
      for (int64_t i = 0; i < c.q_len; ++i) {
        const int64_t row = (s * c.q_len + i) * c.heads + static_cast<int64_t>(rng_.below(c.heads));
        SCOPED_TRACE(testing::Message() << "sequence " << s << " query " << i << " head " << row % c.heads);
        const std::vector<float> q = rows_of(data.q.data<uint16_t>() + row * kWidth, kWidth, kWidth, 1);
        expect_row(args.out.data<uint16_t>() + row * kMlaLatentDim,
                   attend(q, keys.data(), kWidth, keys.data(), kWidth, kMlaLatentDim, lens[s] - c.q_len + i + 1));
      }
    }
  }

  Rng rng_{20261130};
};

TEST_P(MlaDecodeFullSize, TheBenchmarksBatches) {
  const Tensor rows = decode_bench_rows(*bench_, GetParam());
  for (const DecodeBenchShape& c : decode_bench_shapes()) {
    SCOPED_TRACE(testing::Message() << c.batch << " sequences, " << c.heads << " heads, " << c.q_len << " queries, "
                                    << c.kv_len << (c.ragged ? " keys, ragged" : " keys"));
    check(rows, c);
  }
}

INSTANTIATE_TEST_SUITE_P(Rows, MlaDecodeFullSize, testing::Values(DType::kBF16, DType::kE4M3),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

TEST_F(MlaFullSize, ThePrefillBenchmarksBatches) {
  Rng rng(7);
  for (const PrefillBenchShape& c : prefill_bench_shapes()) {
    SCOPED_TRACE(testing::Message() << c.batch << " sequences, " << c.heads << " heads, " << c.q_len << " queries, "
                                    << c.kv_len << " keys");
    const MlaPrefillArgs args = prefill_bench_args(*bench_, c);
    poison(args.out);
    MOESAIC_CUDA_CHECK(cudaDeviceSynchronize());
    ASSERT_TRUE(mla_prefill(bench_->stream(), args).ok());
    expect_written(args.out);
    for (int sample = 0; sample < 6; ++sample) {
      const auto s = static_cast<int64_t>(rng.below(c.batch)), head = static_cast<int64_t>(rng.below(c.heads));
      const int64_t i = sample == 0 ? c.q_len - 1 : static_cast<int64_t>(rng.below(c.q_len));
      SCOPED_TRACE(testing::Message() << "sequence " << s << " query " << i << " head " << head);
      const int64_t key_stride = c.heads * kMlaKeyDim, value_stride = c.heads * kMlaValueDim;
      const int64_t token = s * c.q_len + i;
      const std::vector<float> q =
          rows_of(args.q.data<uint16_t>() + token * key_stride + head * kMlaKeyDim, key_stride, kMlaKeyDim, 1);
      const std::vector<float> k = rows_of(args.k.data<uint16_t>() + s * c.kv_len * key_stride + head * kMlaKeyDim,
                                           key_stride, kMlaKeyDim, c.kv_len);
      const std::vector<float> v = rows_of(args.v.data<uint16_t>() + s * c.kv_len * value_stride + head * kMlaValueDim,
                                           value_stride, kMlaValueDim, c.kv_len);
      expect_row(args.out.data<uint16_t>() + token * value_stride + head * kMlaValueDim,
                 attend(q, k.data(), kMlaKeyDim, v.data(), kMlaValueDim, kMlaValueDim, c.kv_len - c.q_len + i + 1));
    }
    bench_->release();
  }
}

}  // namespace
}  // namespace moesaic::cuda
