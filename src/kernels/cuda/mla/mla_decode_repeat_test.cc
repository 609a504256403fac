// mla_decode launched hundreds of times on one ragged batch: the same bits each time. L2 is flushed in between and the
// blocks lie all over 200 MB and more, so that loads arrive in every order.
#include <cstring>
#include <numeric>

#include "kernels/cuda/mla/mla_decode.h"
#include "kernels/cuda/test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

constexpr int64_t kSeqs = 32, kBlocks = 5000, kWidth = kMlaLatentDim + kMlaRopeDim;
constexpr int64_t kFlushBytes = int64_t{256} << 20;

// bf16 of either sign, [2^-7, 2^-3).
void fill_bf16(Rng& rng, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<uint16_t>(rng.next_u64() & 0x81ff) | 0x3c00;
}

std::vector<uint8_t> random_rows(Rng& rng, DType dtype) {
  const int64_t row_bytes = dtype == DType::kBF16 ? 2 * kWidth : kMlaFp8RowBytes;
  std::vector<uint8_t> rows(kBlocks * kMlaBlockTokens * row_bytes);
  for (int64_t row = 0; row < kBlocks * kMlaBlockTokens; ++row) {
    uint8_t* to = rows.data() + row * row_bytes;
    if (dtype == DType::kBF16) {
      fill_bf16(rng, reinterpret_cast<uint16_t*>(to), kWidth);
      continue;
    }
    for (int64_t i = 0; i < kMlaLatentDim; ++i) to[i] = static_cast<uint8_t>(rng.next_u64()) & 0xbf;  // below 2
    for (int64_t g = 0; g < 4; ++g) {
      const float scale = 0.05f * (1.0f + static_cast<float>(rng.below(8)));
      std::memcpy(to + kMlaLatentDim + 4 * g, &scale, sizeof scale);
    }
    fill_bf16(rng, reinterpret_cast<uint16_t*>(to + kMlaLatentDim + 16), kMlaRopeDim);
  }
  return rows;
}

class MlaDecodeRepeat : public test::CudaTest, public testing::WithParamInterface<DType> {
 public:
  void SetUp() override {
    test::CudaTest::SetUp();
    if (IsSkipped()) return;
    rows_ = test::upload(DType::kU8, {row_bytes() * kBlocks * kMlaBlockTokens}, random_rows(rng_, GetParam()));
    flush_ = test::poisoned(DType::kU8, {kFlushBytes});
  }

  void check(int64_t num_heads, int64_t q_len, int launches) {
    SCOPED_TRACE(str_cat("heads ", num_heads, ", queries ", q_len));
    std::vector<int32_t> lens, begins = {0}, order(kBlocks), table;
    std::iota(order.begin(), order.end(), 0);
    for (int64_t s = 0; s < kSeqs; ++s) {
      lens.push_back(4096 + static_cast<int32_t>(rng_.below(8192)));
      begins.push_back(begins.back() + static_cast<int32_t>(q_len));
      for (int64_t b = 0; b < kTableWidth; ++b) table.push_back(order[rng_.below(kBlocks)]);
    }
    const MlaDecodeShape shape{
        .num_seqs = kSeqs, .num_heads = num_heads, .max_q_len = q_len, .cache_dtype = GetParam(), .num_sms = 132};
    std::vector<uint16_t> q(kSeqs * q_len * num_heads * kWidth);
    fill_bf16(rng_, q.data(), static_cast<int64_t>(q.size()));
    const DeviceTensor q_tensor = test::upload(DType::kBF16, {kSeqs * q_len, num_heads, kWidth}, q);
    const DeviceTensor kv_lens = test::upload(DType::kI32, {kSeqs}, lens);
    const DeviceTensor q_begin = test::upload(DType::kI32, {kSeqs + 1}, begins);
    const DeviceTensor block_table = test::upload(DType::kI32, {kSeqs, kTableWidth}, table);
    const DeviceTensor plan = test::poisoned(DType::kU8, {mla_decode_plan_bytes(shape)});
    const DeviceTensor workspace = test::poisoned(DType::kU8, {mla_decode_workspace_bytes(shape)});
    const DeviceTensor out = test::poisoned(DType::kBF16, {kSeqs * q_len, num_heads, kMlaLatentDim});
    ASSERT_EQ(mla_decode_plan(stream(), shape, kv_lens, q_begin, plan), absl::OkStatus());
    std::vector<uint16_t> first;
    for (int i = 0; i < launches; ++i) {
      MOESAIC_CUDA_CHECK(cudaMemsetAsync(flush_.buffer.data(), i & 0xff, kFlushBytes, stream()));
      ASSERT_EQ(
          mla_decode(stream(), {.shape = shape,
                                .q = q_tensor,
                                .rows = rows_.buffer.tensor(GetParam(), {kBlocks * kMlaBlockTokens, row_elements()}),
                                .block_table = block_table,
                                .softmax_scale = 0.06f,
                                .plan = plan,
                                .workspace = workspace,
                                .out = out}),
          absl::OkStatus());
      const std::vector<uint16_t> bits = test::download<uint16_t>(out);
      if (i == 0) first = bits;
      ASSERT_EQ(bits, first) << "launch " << i;
    }
  }

 private:
  static constexpr int64_t kTableWidth = (4096 + 8192) / kMlaBlockTokens;

  int64_t row_elements() const { return GetParam() == DType::kBF16 ? kWidth : kMlaFp8RowBytes; }
  int64_t row_bytes() const { return row_elements() * dtype_bytes(GetParam()); }

  Rng rng_{20251130};
  DeviceTensor rows_, flush_;
};

TEST_P(MlaDecodeRepeat, SameBits) {
  check(16, 1, 400);
  check(16, 2, 400);
  check(128, 1, 100);
}

INSTANTIATE_TEST_SUITE_P(Rows, MlaDecodeRepeat, testing::Values(DType::kBF16, DType::kE4M3),
                         [](const auto& info) { return std::string(dtype_name(info.param)); });

}  // namespace
}  // namespace moesaic::cuda
