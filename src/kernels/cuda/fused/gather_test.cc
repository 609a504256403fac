// Gathers, byte for byte: quantised rows by expert, cached rows for prefill.
#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/cuda/fused/expert_rows.h"
#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"
#include "kernels/cuda/fused/gather_latents.h"
#include "kernels/cuda/fused/gather_rows.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

constexpr int32_t kLeast = std::numeric_limits<int32_t>::min(), kMost = std::numeric_limits<int32_t>::max();

class GatherRows : public test::CudaTest {
 protected:
  void check(int64_t tokens, int64_t k, const std::vector<int32_t>& row_tokens) {
    SCOPED_TRACE(testing::Message() << tokens << " tokens, " << row_tokens.size() << " rows of " << k);
    Rng rng(tokens + k);
    const int64_t rows = static_cast<int64_t>(row_tokens.size()), groups = k / kScaleGroup;
    const int64_t stride = scale_row_stride(tokens), stride_out = scale_row_stride(rows);
    std::vector<uint8_t> q(tokens * k);
    for (uint8_t& code : q) code = static_cast<uint8_t>(rng.below(255));
    const std::vector<float> scales = test::gaussians(rng, groups * stride);
    const test::Quantized out(rows, k);
    const absl::Status status = gather_rows(stream(), {.q = test::upload(DType::kE4M3, {tokens, k}, q),
                                                       .scales = test::upload(DType::kF32, {groups, stride}, scales),
                                                       .row_tokens = test::upload(DType::kI32, {rows}, row_tokens),
                                                       .q_out = out.q,
                                                       .scales_out = out.scales});
    ASSERT_TRUE(status.ok()) << status.message();
    const std::vector<uint8_t> got = test::download<uint8_t>(out.q);
    const std::vector<uint32_t> got_scales = test::download<uint32_t>(out.scales);
    for (int64_t r = 0; r < stride_out; ++r) {
      const int64_t token = r < rows ? row_tokens[r] : -1;
      const bool named = token >= 0 && token < tokens;
      for (int64_t i = 0; i < k && r < rows; ++i) {
        ASSERT_EQ(got[r * k + i], named ? q[token * k + i] : 0xff) << "row " << r << " channel " << i;
      }
      for (int64_t g = 0; g < groups; ++g) {
        const uint32_t want = named ? std::bit_cast<uint32_t>(scales[g * stride + token]) : 0xffffffffu;
        ASSERT_EQ(got_scales[g * stride_out + r], want) << "row " << r << " group " << g;
      }
    }
  }
};

TEST_F(GatherRows, CopiesRowsAndLeavesPaddingAlone) {
  Rng rng(1);
  for (const auto& [tokens, rows, k] :
       std::vector<std::array<int64_t, 3>>{{1, 1, 128}, {5, 300, 256}, {70, 1000, 4608}, {9, 0, 128}, {0, 130, 128}}) {
    const int32_t nobodys[] = {-1, static_cast<int32_t>(tokens), kLeast, kMost};
    std::vector<int32_t> row_tokens(rows);
    for (int32_t& token : row_tokens) {
      token = tokens == 0 || rng.below(4) == 0 ? nobodys[rng.below(4)] : static_cast<int32_t>(rng.below(tokens));
    }
    check(tokens, k, row_tokens);
  }
}

// Rows as expert_rows orders them.
TEST_F(GatherRows, FullSize) {
  Rng rng(2);
  for (const int64_t tokens : token_counts(kExpertRowsTokens)) {
    std::vector<std::vector<int32_t>> of_expert(kExperts);
    for (int64_t i = 0; i < tokens * kTopk; ++i) {
      of_expert[rng.below(kExperts)].push_back(static_cast<int32_t>(i / kTopk));
    }
    std::vector<int32_t> row_tokens;
    for (const std::vector<int32_t>& chosen : of_expert) {
      row_tokens.insert(row_tokens.end(), chosen.begin(), chosen.end());
      row_tokens.resize((row_tokens.size() + 127) / 128 * 128, -1);
    }
    row_tokens.resize(most_expert_rows(tokens * kTopk, kExperts), -1);
    check(tokens, kHidden, row_tokens);
  }
}

struct LatentsCase {
  DType dtype;
  int64_t lora, rope, heads, key_dim;
  std::vector<int32_t> kv_lens;
};

class GatherLatents : public test::CudaTest, public testing::WithParamInterface<LatentsCase> {};

// The cache holds what the CPU appended; blocks lie in random order, unused rows are NaN, unused entries point nowhere.
TEST_P(GatherLatents, QuantisesOrCopiesWhatTheCpuAppended) {
  const LatentsCase& c = GetParam();
  Rng rng(3);
  const int64_t num_seqs = static_cast<int64_t>(c.kv_lens.size()), width = c.lora + c.rope;
  const int64_t columns = latent_row_elements(c.dtype, c.lora, c.rope);
  std::vector<int32_t> kv_begin = {0};
  int64_t num_blocks = 3, table_width = 2;
  for (const int32_t kv_len : c.kv_lens) {
    kv_begin.push_back(kv_begin.back() + kv_len);
    num_blocks += (kv_len + 63) / 64, table_width = std::max<int64_t>(table_width, (kv_len + 63) / 64 + 1);
  }
  const int64_t num_keys = kv_begin.back();
  std::vector<int32_t> order(num_blocks), table(num_seqs * table_width);
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = num_blocks - 1; i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);
  std::vector<float> latents = test::bf16_values(rng, num_keys * c.lora, 2.0f);
  const std::vector<float> rope = test::bf16_values(rng, num_keys * c.rope);
  std::vector<float> rows(num_keys * width);
  std::vector<int32_t> slots(num_keys);
  for (int64_t s = 0, used = 0; s < num_seqs; ++s) {
    for (int64_t b = 0; b < table_width; ++b) {
      table[s * table_width + b] = b < (c.kv_lens[s] + 63) / 64 ? order[used++] : b % 2 == 0 ? kMost : -1;
    }
    for (int64_t i = 0; i < c.kv_lens[s]; ++i) {
      const int64_t key = kv_begin[s] + i;
      slots[key] = table[s * table_width + i / 64] * 64 + static_cast<int32_t>(i % 64);
      std::copy_n(latents.begin() + key * c.lora, c.lora, rows.begin() + key * width);
      std::copy_n(rope.begin() + key * c.rope, c.rope, rows.begin() + key * width + c.lora);
    }
  }
  std::vector<uint8_t> cache(num_blocks * 64 * columns * dtype_bytes(c.dtype), 0xff);
  const Shape cache_shape{num_blocks * 64, columns};
  test::CpuStream cpu;
  append_latent(
      cpu.stream,
      {.rows = {cache.data(), c.dtype, cache_shape}, .block_tokens = 64, .kv_lora_rank = c.lora, .rope_dim = c.rope},
      test::f32_view(rows, {num_keys, width}), slots);
  DeviceTensor cached = test::upload(DType::kU8, {static_cast<int64_t>(cache.size())}, cache);
  const test::Quantized got(num_keys, c.lora);
  const DeviceTensor keys = test::poisoned(DType::kBF16, {num_keys, c.heads, c.key_dim});
  const absl::Status status =
      gather_latents(stream(), {.rows = Tensor(cached.tensor.raw(), c.dtype, cache_shape),
                                .block_table = test::upload(DType::kI32, {num_seqs, table_width}, table),
                                .kv_begin = test::upload(DType::kI32, {num_seqs + 1}, kv_begin),
                                .rope_dim = c.rope,
                                .q = got.q,
                                .scales = got.scales,
                                .keys = keys});
  ASSERT_TRUE(status.ok()) << status.message();
  // FP8 rows hold the CPU's quantisation, which is that of quantize_fp8.
  const test::CpuQuantized want(latents, num_keys, c.lora);
  EXPECT_EQ(test::download<uint8_t>(got.q), want.q);
  const std::vector<float> scales = test::download<float>(got.scales);
  const int64_t groups = c.lora / kScaleGroup;
  for (int64_t i = 0; i < num_keys * groups; ++i) {
    ASSERT_EQ(scales[i % groups * scale_row_stride(num_keys) + i / groups], want.scales[i]) << i;
  }
  const std::vector<uint16_t> bits = test::download<uint16_t>(keys), want_rope = test::to_bf16(rope);
  for (int64_t i = 0; i < num_keys * c.heads * c.key_dim; ++i) {
    const int64_t key = i / (c.heads * c.key_dim), at = i % c.key_dim - (c.key_dim - c.rope);
    ASSERT_EQ(bits[i], at >= 0 ? want_rope[key * c.rope + at] : 0xffff) << "key " << key << " column " << i % c.key_dim;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GatherLatents,
                         testing::Values(LatentsCase{DType::kBF16, 512, 64, 3, 192, {1, 64, 0, 65, 200}},
                                         LatentsCase{DType::kE4M3, 512, 64, 3, 192, {130, 0, 63, 1}},
                                         LatentsCase{DType::kBF16, 128, 8, 1, 8, {5}},
                                         LatentsCase{DType::kBF16, 384, 16, 5, 40, {0, 70}},
                                         LatentsCase{DType::kE4M3, 1024, 128, 2, 256, {129}},
                                         LatentsCase{DType::kBF16, 512, 64, 128, 192, {0}}));
INSTANTIATE_TEST_SUITE_P(FullSize, GatherLatents,
                         testing::Values(LatentsCase{DType::kBF16, kLora, kRope, kHeads, kQueryDim, {4096}},
                                         LatentsCase{DType::kE4M3, kLora, kRope, kHeads, kQueryDim, {4096}}));

}  // namespace
}  // namespace moesaic::cuda
