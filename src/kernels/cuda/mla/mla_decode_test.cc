// mla_decode against the CPU's definition, on the same bits: hostile block tables, NaN wherever nothing may be read,
// every head count and query length, sequences of no keys, plans for few and many multiprocessors.
#include "kernels/cuda/mla/mla_decode.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "kernels/cuda/test_util.h"
#include "kernels/ops.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

constexpr int64_t kWidth = kMlaLatentDim + kMlaRopeDim;

struct Sequence {
  int32_t q_len, kv_len;
};

// A batch on host and device. Blocks lie in random order, unused blocks and rows past a sequence's end are NaN, unused
// entries of the table point nowhere. Latents of a key have the factor latent_scale * 2^-u, u in [0, latent_spread).
class Batch {
 public:
  Batch(uint64_t seed, int64_t num_heads, std::vector<Sequence> seqs, DType cache_dtype, float latent_scale = 1.0f,
        float latent_spread = 0.0f)
      : rng_(seed), num_heads_(num_heads), seqs_(std::move(seqs)), cache_dtype_(cache_dtype) {
    for (const Sequence& seq : seqs_) {
      q_begin_.push_back(q_begin_.back() + seq.q_len);
      kv_lens_.push_back(seq.kv_len);
      max_q_len_ = std::max<int64_t>(max_q_len_, seq.q_len);
      max_blocks_ = std::max<int64_t>(max_blocks_, (seq.kv_len + 63) / 64);
    }
    fill_table();
    fill_cache(latent_scale, latent_spread);
    q_ = test::to_bf16(test::gaussians(rng_, num_tokens() * num_heads_ * kWidth));
  }

  int64_t num_tokens() const { return q_begin_.back(); }

  MlaDecodeShape shape(int num_sms) const {
    return {.num_seqs = static_cast<int64_t>(seqs_.size()),
            .num_heads = num_heads_,
            .max_q_len = max_q_len_,
            .cache_dtype = cache_dtype_,
            .num_sms = num_sms};
  }

  // [num_tokens, num_heads, 512], by the CPU operation.
  std::vector<float> expected() {
    std::vector<AttentionSpan> spans;
    for (size_t s = 0; s < seqs_.size(); ++s) {
      spans.push_back({q_begin_[s], seqs_[s].q_len, seqs_[s].kv_len, table_.data() + s * table_width()});
    }
    std::vector<float> q = test::widen_bf16(q_), out(num_tokens() * num_heads_ * kMlaLatentDim);
    const LatentCache cache = host_cache();
    const int64_t max_kv = *std::max_element(kv_lens_.begin(), kv_lens_.end());
    Arena arena(mla_decode_arena_bytes(num_tokens(), num_heads_, max_kv, cache) + (1 << 20));
    ThreadPool pool(8);
    Stream stream(pool);
    moesaic::mla_decode(stream, {.q = Tensor(q.data(), DType::kF32, {num_tokens(), num_heads_, kWidth}),
                                 .cache = cache,
                                 .spans = spans,
                                 .softmax_scale = kScale,
                                 .out = Tensor(out.data(), DType::kF32, {num_tokens(), num_heads_, kMlaLatentDim}),
                                 .arena = &arena});
    return out;
  }

  // Bits of the output; everything that a call may write is poisoned first. With `later`, plan and call are captured
  // with this batch's lengths and replayed with later's.
  std::vector<uint16_t> computed(cudaStream_t stream, int num_sms, const std::vector<int32_t>* later = nullptr) const {
    const MlaDecodeShape shape = this->shape(num_sms);
    const DeviceTensor plan = test::poisoned(DType::kU8, {mla_decode_plan_bytes(shape)});
    const DeviceTensor workspace = test::poisoned(DType::kU8, {mla_decode_workspace_bytes(shape)});
    const DeviceTensor out = test::poisoned(DType::kBF16, {num_tokens(), num_heads_, kMlaLatentDim});
    const DeviceTensor q = test::upload(DType::kBF16, {num_tokens(), num_heads_, kWidth}, q_);
    const DeviceTensor rows = test::upload(DType::kU8, {static_cast<int64_t>(rows_.size())}, rows_);
    const DeviceTensor table = test::upload(DType::kI32, {static_cast<int64_t>(seqs_.size()), table_width()}, table_);
    DeviceTensor kv_lens = test::upload(DType::kI32, {static_cast<int64_t>(seqs_.size())}, kv_lens_);
    const DeviceTensor q_begin = test::upload(DType::kI32, {static_cast<int64_t>(q_begin_.size())}, q_begin_);
    const auto call = [&] {
      EXPECT_EQ(mla_decode_plan(stream, shape, kv_lens, q_begin, plan), absl::OkStatus());
      EXPECT_EQ(mla_decode(stream, {.shape = shape,
                                    .q = q,
                                    .rows = rows.buffer.tensor(cache_dtype_, host_cache().rows.shape()),
                                    .block_table = table,
                                    .softmax_scale = kScale,
                                    .plan = plan,
                                    .workspace = workspace,
                                    .out = out}),
                absl::OkStatus());
    };
    if (later == nullptr) {
      call();
      return test::download<uint16_t>(out);
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    MOESAIC_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    call();
    MOESAIC_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
    MOESAIC_CUDA_CHECK(cudaGraphInstantiate(&executable, graph));
    kv_lens.buffer.upload(later->data(), later->size() * sizeof(int32_t));
    MOESAIC_CUDA_CHECK(cudaGraphLaunch(executable, stream));
    std::vector<uint16_t> bits = test::download<uint16_t>(out);
    MOESAIC_CUDA_CHECK(cudaGraphExecDestroy(executable));
    MOESAIC_CUDA_CHECK(cudaGraphDestroy(graph));
    return bits;
  }

  // `later` has the same queries and at most as many keys.
  void check_captured(cudaStream_t stream, const std::vector<Sequence>& later) {
    std::vector<int32_t> lens;
    for (const Sequence& seq : later) lens.push_back(seq.kv_len);
    const std::vector<float> got = test::widen_bf16(computed(stream, 132, &lens));
    seqs_ = later;
    kv_lens_ = lens;
    EXPECT_LT(test::rel_error(got, expected()), 4e-3);
  }

  // Of FP8 rows: every 7th key of a sequence gets this scale in one of its groups.
  void set_scales(int64_t seq, float scale) {
    for (int64_t key = seq % 7; key < seqs_[seq].kv_len; key += 7) {
      const int64_t row = table_[seq * table_width() + key / 64] * 64 + key % 64;
      std::memcpy(&rows_[row * kMlaFp8RowBytes + kMlaLatentDim + 4 * (key / 7 % 4)], &scale, sizeof scale);
    }
  }

  // Checks the whole and every row; a row that sees no key must be zero. A sequence whose `anything` is set may have
  // any result.
  void check(cudaStream_t stream, int num_sms, const std::vector<bool>& anything = {}) {
    std::vector<float> want = expected(), got = test::widen_bf16(computed(stream, num_sms));
    for (size_t s = 0; s < anything.size(); ++s) {
      for (std::vector<float>* result : {&want, &got}) {
        if (anything[s]) std::fill_n(result->begin() + row_begin(s), row_begin(s + 1) - row_begin(s), 0.0f);
      }
    }
    // Weights and results are bf16; FP8 rows and their weights become f16.
    const double row_error = cache_dtype_ == DType::kBF16 ? 6e-3 : 9e-3;
    EXPECT_LT(test::rel_error(got, want), 4e-3) << "heads " << num_heads_ << ", multiprocessors " << num_sms;
    for (size_t s = 0; s < seqs_.size(); ++s) {
      for (int64_t row = q_begin_[s] * num_heads_; row < q_begin_[s + 1] * num_heads_; ++row) {
        const auto at = [&](const std::vector<float>& v) {
          return std::vector<float>(v.begin() + row * kMlaLatentDim, v.begin() + (row + 1) * kMlaLatentDim);
        };
        ASSERT_LT(test::rel_error(at(got), at(want)), row_error)
            << "sequence " << s << " (" << seqs_[s].q_len << " queries, " << seqs_[s].kv_len << " keys), row "
            << row - q_begin_[s] * num_heads_ << ", heads " << num_heads_ << ", multiprocessors " << num_sms;
      }
    }
  }

 private:
  static constexpr float kScale = 0.06f;

  int64_t row_begin(size_t seq) const { return q_begin_[seq] * num_heads_ * kMlaLatentDim; }
  int64_t table_width() const { return max_blocks_ + 3; }
  LatentCache host_cache() {
    return {Tensor(rows_.data(), cache_dtype_, {num_blocks_ * 64, row_elements()}), 64, kMlaLatentDim, kMlaRopeDim};
  }
  LatentCache host_cache() const { return const_cast<Batch*>(this)->host_cache(); }
  int64_t row_elements() const { return latent_row_elements(cache_dtype_, kMlaLatentDim, kMlaRopeDim); }

  void fill_table() {
    int64_t used = 0;
    for (const Sequence& seq : seqs_) used += (seq.kv_len + 63) / 64;
    num_blocks_ = used + 5;
    std::vector<int32_t> order(num_blocks_);
    std::iota(order.begin(), order.end(), 0);
    for (int64_t i = num_blocks_ - 1; i > 0; --i) std::swap(order[i], order[rng_.below(i + 1)]);
    size_t next = 0;
    for (const Sequence& seq : seqs_) {
      for (int64_t b = 0; b < table_width(); ++b) {
        const int32_t nowhere = b % 2 == 0 ? 2147480000 : -1;
        table_.push_back(b < (seq.kv_len + 63) / 64 ? order[next++] : nowhere);
      }
    }
  }

  void fill_cache(float latent_scale, float latent_spread) {
    rows_.assign(num_blocks_ * 64 * row_elements() * dtype_bytes(cache_dtype_), 0xff);
    ThreadPool pool(4);
    Stream stream(pool);
    for (size_t s = 0; s < seqs_.size(); ++s) {
      const int64_t kv_len = seqs_[s].kv_len;
      std::vector<float> x = test::gaussians(rng_, kv_len * kWidth);
      std::vector<int32_t> slots(kv_len);
      for (int64_t p = 0; p < kv_len; ++p) {
        slots[p] = table_[s * table_width() + p / 64] * 64 + p % 64;
        const float factor = latent_scale * std::exp2(-latent_spread * static_cast<float>(rng_.below(1000)) / 1000);
        for (int64_t i = 0; i < kMlaLatentDim; ++i) x[p * kWidth + i] *= factor;
      }
      append_latent(stream, host_cache(), Tensor(x.data(), DType::kF32, {kv_len, kWidth}), slots);
    }
  }

  Rng rng_;
  int64_t num_heads_;
  std::vector<Sequence> seqs_;
  DType cache_dtype_;
  int64_t max_q_len_ = 1, max_blocks_ = 0, num_blocks_ = 0;
  std::vector<int32_t> q_begin_ = {0}, kv_lens_, table_;
  std::vector<uint8_t> rows_;
  std::vector<uint16_t> q_;
};

class MlaDecode : public test::CudaTest, public testing::WithParamInterface<DType> {
 public:
  // Short and long, on and off the borders of blocks.
  static std::vector<Sequence> ragged(int32_t q_len) {
    std::vector<Sequence> seqs;
    for (const int32_t kv_len : {0, 1, 2, 63, 64, 65, 127, 129, 200, 640, 1000}) {
      seqs.push_back({std::min(q_len, std::max(kv_len, 1)), kv_len});
    }
    return seqs;
  }
};

TEST_P(MlaDecode, EveryHeadCountAndQueryLength) {
  for (const int64_t num_heads : {1, 3, 16, 63, 64, 126, 128}) {
    for (int32_t q_len = 1; q_len <= kMlaMaxQueries; ++q_len) {
      Batch batch(17 * num_heads + q_len, num_heads, ragged(q_len), GetParam());
      for (const int num_sms : {1, 132}) batch.check(stream(), num_sms);
    }
  }
}

TEST_P(MlaDecode, RandomBatches) {
  const uint64_t seed = 20240518;
  Rng rng(seed);
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE(str_cat("seed ", seed, ", round ", round));
    std::vector<Sequence> seqs(1 + rng.below(9));
    for (Sequence& seq : seqs) {
      seq.q_len = static_cast<int32_t>(rng.below(kMlaMaxQueries + 1));  // 0 too: a sequence that rests
      seq.kv_len = rng.below(5) == 0 ? 0 : seq.q_len + static_cast<int32_t>(rng.below(900));
    }
    seqs[0].q_len = 1;
    Batch batch(rng.next_u64(), 1 + rng.below(128), seqs, GetParam());
    for (const int num_sms : {1, 7, 132}) batch.check(stream(), num_sms);
  }
}

TEST_P(MlaDecode, LongSequencesAreSplit) {
  for (const int64_t num_heads : {16, 32, 128}) {
    Batch batch(num_heads, num_heads, {{1, 9000}, {2, 31}, {1, 5121}}, GetParam());
    for (const int num_sms : {3, 132}) batch.check(stream(), num_sms);
  }
}

TEST_P(MlaDecode, SameBitsTwice) {
  for (const int64_t num_heads : {16, 32, 128}) {
    const Batch batch(num_heads, num_heads, ragged(2), GetParam());
    const std::vector<uint16_t> first = batch.computed(stream(), 132);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(batch.computed(stream(), 132), first);
  }
}

// Scales of FP8 rows of other sizes.
TEST_P(MlaDecode, SmallLatents) {
  for (const int64_t num_heads : {16, 32, 64}) {
    for (const float latent_scale : {1e-3f, 0.1f}) {
      Batch batch(num_heads, num_heads, ragged(1), GetParam(), latent_scale);
      batch.check(stream(), 132);
    }
  }
}

// Keys of one block whose scales differ: FP8 rows become f16 relative to the block's largest.
TEST_P(MlaDecode, LatentsOfManySizes) {
  for (const int64_t num_heads : {16, 32, 128}) {
    for (const float largest : {1e-2f, 1.0f}) {
      Batch batch(num_heads, num_heads, ragged(1), GetParam(), largest, /*latent_spread=*/16.0f);
      batch.check(stream(), 132);
    }
  }
}

// Scales that no row should have: a sequence's result is its own affair.
using MlaDecodeFp8 = test::CudaTest;
TEST_F(MlaDecodeFp8, HostileScales) {
  constexpr float kDenormal = 1e-40f, kMax = std::numeric_limits<float>::max();
  const std::vector<float> scales = {0.0f,        -0.0f,      kDenormal,   0.01f, -0.01f, test::kInf,
                                     -test::kInf, test::kNan, -test::kNan, kMax,  -kMax};
  for (const int64_t num_heads : {16, 32, 128}) {
    std::vector<Sequence> seqs;
    std::vector<bool> anything;
    for (size_t s = 0; s < scales.size(); ++s) {
      seqs.push_back({1, 100 + 67 * static_cast<int32_t>(s)});
      anything.push_back(!(std::abs(scales[s]) < 1.0f));
    }
    Batch batch(num_heads, num_heads, seqs, DType::kE4M3);
    for (size_t s = 0; s < scales.size(); ++s) batch.set_scales(s, scales[s]);
    for (const int num_sms : {1, 5, 132}) batch.check(stream(), num_sms, anything);
  }
}

// Lengths live on the device: a captured plan and call serve other lengths than those of the capture.
TEST_P(MlaDecode, GraphsServeOtherLengths) {
  std::vector<Sequence> seqs = {{2, 700}, {2, 64}, {2, 129}};
  Batch batch(5, 16, seqs, GetParam());
  batch.check_captured(stream(), {{2, 640}, {2, 0}, {2, 100}});
}

INSTANTIATE_TEST_SUITE_P(Rows, MlaDecode, testing::Values(DType::kBF16, DType::kE4M3),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace moesaic::cuda
