// mla_prefill against a plain double loop: ragged sequences, cached prefixes, strided rows, NaN in all rows and columns
// that are not the sequence's own.
#include "kernels/cuda/mla/mla_prefill.h"

#include <algorithm>

#include "kernels/cuda/test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

struct Sequence {
  int32_t q_len, kv_len;
};

constexpr float kScale = 0.09f;
constexpr int64_t kPadding = 8;  // NaN columns after each row

class Batch {
 public:
  Batch(uint64_t seed, int64_t num_heads, std::vector<Sequence> seqs) : num_heads_(num_heads), seqs_(std::move(seqs)) {
    for (const Sequence& seq : seqs_) {
      q_begin_.push_back(q_begin_.back() + seq.q_len);
      kv_begin_.push_back(kv_begin_.back() + seq.kv_len);
    }
    Rng rng(seed);
    q_ = random_rows(rng, q_begin_, kMlaKeyDim);
    k_ = random_rows(rng, kv_begin_, kMlaKeyDim);
    v_ = random_rows(rng, kv_begin_, kMlaValueDim);
  }

  int64_t num_tokens() const { return q_begin_.back(); }

  std::vector<float> expected() const {
    const std::vector<float> q = test::widen_bf16(q_), k = test::widen_bf16(k_), v = test::widen_bf16(v_);
    const int64_t key_stride = num_heads_ * kMlaKeyDim + kPadding, value_stride = num_heads_ * kMlaValueDim + kPadding;
    std::vector<float> out(num_tokens() * num_heads_ * kMlaValueDim);
    for (size_t s = 0; s < seqs_.size(); ++s) {
      for (int64_t i = 0; i < seqs_[s].q_len; ++i) {
        const int64_t seen = seqs_[s].kv_len - seqs_[s].q_len + i + 1;
        for (int64_t h = 0; h < num_heads_; ++h) {
          attend(q.data() + (q_begin_[s] + i) * key_stride + h * kMlaKeyDim,
                 k.data() + kv_begin_[s] * key_stride + h * kMlaKeyDim, key_stride,
                 v.data() + kv_begin_[s] * value_stride + h * kMlaValueDim, value_stride, seen,
                 out.data() + ((q_begin_[s] + i) * num_heads_ + h) * kMlaValueDim);
        }
      }
    }
    return out;
  }

  std::vector<uint16_t> computed(cudaStream_t stream, int num_sms) const {
    const auto rows = [&](const std::vector<uint16_t>& values, int64_t head_dim, DeviceTensor& owner) {
      const int64_t width = num_heads_ * head_dim, stride = width + kPadding;
      owner = test::upload(DType::kBF16, {static_cast<int64_t>(values.size())}, values);
      return Tensor::strided(owner.buffer.data(), DType::kBF16, values.size() / stride, width, stride);
    };
    DeviceTensor q, k, v;
    const MlaPrefillArgs args{.num_heads = num_heads_,
                              .q = rows(q_, kMlaKeyDim, q).rows(0, num_tokens()),
                              .k = rows(k_, kMlaKeyDim, k),
                              .v = rows(v_, kMlaValueDim, v)};
    const DeviceTensor q_begin = test::upload(DType::kI32, {static_cast<int64_t>(q_begin_.size())}, q_begin_);
    const DeviceTensor kv_begin = test::upload(DType::kI32, {static_cast<int64_t>(kv_begin_.size())}, kv_begin_);
    const DeviceTensor out = test::poisoned(DType::kBF16, {num_tokens(), num_heads_ * kMlaValueDim});
    const DeviceTensor workspace = test::poisoned(DType::kU8, {kMlaPrefillWorkspaceBytes});
    MlaPrefillArgs all = args;
    all.q_begin = q_begin;
    all.kv_begin = kv_begin;
    all.softmax_scale = kScale;
    all.workspace = workspace;
    all.out = out;
    all.num_sms = num_sms;
    EXPECT_EQ(mla_prefill(stream, all), absl::OkStatus());
    return test::download<uint16_t>(out);
  }

  void check(cudaStream_t stream, int num_sms) const {
    const std::vector<float> want = expected(), got = test::widen_bf16(computed(stream, num_sms));
    EXPECT_LT(test::rel_error(got, want), 5e-3) << "heads " << num_heads_;
    for (size_t s = 0; s < seqs_.size(); ++s) {
      for (int64_t row = q_begin_[s] * num_heads_; row < q_begin_[s + 1] * num_heads_; ++row) {
        const auto at = [&](const std::vector<float>& values) {
          return std::vector<float>(values.begin() + row * kMlaValueDim, values.begin() + (row + 1) * kMlaValueDim);
        };
        ASSERT_LT(test::rel_error(at(got), at(want)), 6e-3)
            << "sequence " << s << " (" << seqs_[s].q_len << " queries, " << seqs_[s].kv_len << " keys), query "
            << row / num_heads_ - q_begin_[s] << ", head " << row % num_heads_;
      }
    }
  }

 private:
  // Rows of a sequence without queries, the rows after the last sequence, and the padding are NaN.
  std::vector<uint16_t> random_rows(Rng& rng, const std::vector<int32_t>& begin, int64_t head_dim) const {
    const int64_t width = num_heads_ * head_dim, stride = width + kPadding, extra = 3;
    std::vector<uint16_t> rows((begin.back() + extra) * stride, 0xffff);
    for (size_t s = 0; s < seqs_.size(); ++s) {
      if (seqs_[s].q_len == 0) continue;
      for (int64_t r = begin[s]; r < begin[s + 1]; ++r) {
        const std::vector<uint16_t> row = test::to_bf16(test::gaussians(rng, width));
        std::copy(row.begin(), row.end(), rows.begin() + r * stride);
      }
    }
    return rows;
  }

  static void attend(const float* q, const float* k, int64_t k_stride, const float* v, int64_t v_stride, int64_t seen,
                     float* out) {
    std::vector<double> p(seen), sums(kMlaValueDim);
    double max = -1e300, sum = 0.0;
    for (int64_t j = 0; j < seen; ++j) {
      double dot = 0.0;
      for (int64_t c = 0; c < kMlaKeyDim; ++c) dot += double{q[c]} * k[j * k_stride + c];
      p[j] = dot * kScale;
      max = std::max(max, p[j]);
    }
    for (int64_t j = 0; j < seen; ++j) {
      p[j] = std::exp(p[j] - max);
      sum += p[j];
      for (int64_t c = 0; c < kMlaValueDim; ++c) sums[c] += p[j] * v[j * v_stride + c];
    }
    for (int64_t c = 0; c < kMlaValueDim; ++c) out[c] = static_cast<float>(sums[c] / sum);
  }

  int64_t num_heads_;
  std::vector<Sequence> seqs_;
  std::vector<int32_t> q_begin_ = {0}, kv_begin_ = {0};
  std::vector<uint16_t> q_, k_, v_;
};

class MlaPrefill : public test::CudaTest {};

TEST_F(MlaPrefill, RaggedSequences) {
  const std::vector<Sequence> seqs = {{1, 1},     {64, 64},   {127, 127}, {0, 40},
                                      {128, 128}, {129, 129}, {300, 300}, {2, 2}};
  for (const int64_t num_heads : {1, 3}) {
    for (const int num_sms : {1, 5, 132}) Batch(num_heads, num_heads, seqs).check(stream(), num_sms);
  }
}

TEST_F(MlaPrefill, CachedPrefixes) {
  const std::vector<Sequence> seqs = {{1, 400},   {5, 128},   {128, 256}, {128, 257},
                                      {100, 611}, {200, 201}, {0, 7},     {257, 300}};
  for (const int num_sms : {2, 132}) Batch(9, 2, seqs).check(stream(), num_sms);
}

TEST_F(MlaPrefill, RandomBatches) {
  const uint64_t seed = 991;
  Rng rng(seed);
  for (int round = 0; round < 8; ++round) {
    SCOPED_TRACE(str_cat("seed ", seed, ", round ", round));
    std::vector<Sequence> seqs(1 + rng.below(70));
    for (Sequence& seq : seqs) {
      seq.q_len = static_cast<int32_t>(rng.below(3) == 0 ? rng.below(200) : rng.below(20));
      seq.kv_len = seq.q_len + static_cast<int32_t>(rng.below(2) == 0 ? 0 : rng.below(200));
    }
    seqs.back() = {3, 5};
    Batch(rng.next_u64(), 1 + rng.below(4), seqs).check(stream(), 132);
  }
}

TEST_F(MlaPrefill, SameBitsTwice) {
  const Batch batch(4, 16, {{700, 700}, {90, 1500}, {1, 33}});
  const std::vector<uint16_t> first = batch.computed(stream(), 132);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(batch.computed(stream(), 132), first);
}

}  // namespace
}  // namespace moesaic::cuda
