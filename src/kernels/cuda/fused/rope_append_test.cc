// Rotation and the cache row, byte for byte what the CPU's rope and append_latent write.
#include "kernels/cuda/fused/rope_append.h"

#include <limits>

#include "kernels/cuda/fused/fused_shapes.h"
#include "kernels/cuda/fused/fused_test_util.h"

namespace moesaic::cuda {
namespace {

using test::DeviceTensor;

struct AppendCase {
  DType dtype;
  int64_t lora, rope, heads, head_dim, out_dim;  // out_dim 0: in place
  bool norm;
  int64_t tokens = 9;
};

constexpr int64_t kMaxPositions = 100;

class RopeAppend : public test::CudaTest, public testing::WithParamInterface<AppendCase> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    const AppendCase c = GetParam();
    Rng rng(21);
    tokens_ = c.tokens, num_slots_ = c.tokens + 31;  // prime to 11
    stride_ = c.lora + c.rope + 8;
    kv_ = test::bf16_values(rng, tokens_ * stride_, 2.0f);
    q_ = test::bf16_values(rng, tokens_ * c.heads * c.head_dim);
    weight_ = test::bf16_values(rng, c.lora);
    table_.resize(kMaxPositions * c.rope);
    rope_table({.dim = c.rope, .theta = 10000.0, .factor = 40.0, .original_max_position_embeddings = 4096},
               test::f32_view(table_, {kMaxPositions, c.rope}));
    for (int64_t t = 0; t < tokens_; ++t) {
      positions_.push_back(static_cast<int32_t>(rng.below(kMaxPositions)));
      slots_.push_back(static_cast<int32_t>((t * 11 + 5) % num_slots_));
    }
    for (int64_t t = 3; t < tokens_; t += 4) pad(t);
  }
  // A padding token: no slot or no position, NaN where it would be read.
  void pad(int64_t t) {
    const int32_t least = std::numeric_limits<int32_t>::min(), most = std::numeric_limits<int32_t>::max();
    const int32_t slots[] = {-1, static_cast<int32_t>(num_slots_), least, most},
                  positions[] = {-1, kMaxPositions, most};
    if (t % 8 == 3) slots_[t] = slots[t / 8 % 4];
    if (t % 8 == 7) positions_[t] = positions[t / 8 % 3];
    std::fill_n(kv_.begin() + t * stride_, stride_, test::kNan);
  }
  static bool is_padding(int64_t t) { return t % 4 == 3; }

  // What the CPU appends for token t, from f32.
  std::vector<float> latent_row(int64_t t) {
    const AppendCase c = GetParam();
    std::vector<float> row(kv_.begin() + t * stride_, kv_.begin() + t * stride_ + c.lora + c.rope);
    if (c.norm) {
      double squares = 0.0;
      for (int64_t i = 0; i < c.lora; ++i) squares += double{row[i]} * row[i];
      const double factor = 1.0 / std::sqrt(squares / static_cast<double>(c.lora) + 1e-6);
      for (int64_t i = 0; i < c.lora; ++i) row[i] = static_cast<float>(row[i] * factor * weight_[i]);
    }
    rope(row, t, 1, c.lora + c.rope);
    return row;
  }
  void rope(std::vector<float>& x, int64_t t, int64_t heads, int64_t dim) {
    test::CpuStream cpu;
    const Tensor row = test::f32_view(x, {1, heads * dim});
    moesaic::rope(cpu.stream, {.x = row,
                               .num_heads = heads,
                               .table = test::f32_view(table_, {kMaxPositions, GetParam().rope}),
                               .positions = {&positions_[t], 1},
                               .y = row});
  }

  // The norm's sum of squares differs in its last bits: so may a scale, and a latent between two values. Keys, and what
  // no token wrote, are the CPU's.
  void expect_rounded_rows(const std::vector<uint8_t>& got, const std::vector<uint8_t>& want, int64_t row_bytes) {
    const AppendCase c = GetParam();
    const bool fp8 = c.dtype == DType::kE4M3;
    const int64_t latent_bytes = fp8 ? c.lora : 2 * c.lora, key_bytes = 2 * c.rope;
    int64_t different = 0;
    for (int64_t slot = 0; slot < num_slots_; ++slot) {
      const uint8_t *a = got.data() + slot * row_bytes, *b = want.data() + slot * row_bytes;
      for (int64_t i = 0; i < c.lora; ++i) {
        int off = fp8 ? a[i] - b[i] : 0;
        if (!fp8) off = reinterpret_cast<const uint16_t*>(a)[i] - reinterpret_cast<const uint16_t*>(b)[i];
        ASSERT_LE(std::abs(off), 1) << "slot " << slot << " latent " << i;
        different += off != 0;
      }
      for (int64_t at = latent_bytes; at < row_bytes - key_bytes; at += 4) {
        const auto scale = [at](const uint8_t* row) { return *reinterpret_cast<const float*>(row + at); };
        ASSERT_EQ(std::isnan(scale(a)), std::isnan(scale(b))) << "slot " << slot;  // of nobody's
        if (!std::isnan(scale(b))) {
          ASSERT_NEAR(scale(a), scale(b), scale(b) * 1e-6f) << "slot " << slot;
        }
      }
      ASSERT_TRUE(std::equal(a + row_bytes - key_bytes, a + row_bytes, b + row_bytes - key_bytes)) << "slot " << slot;
    }
    EXPECT_LE(different, tokens_ * c.lora / 100);
  }

  int64_t stride_ = 0, tokens_ = 0, num_slots_ = 0;
  std::vector<float> kv_, q_, weight_, table_;
  std::vector<int32_t> positions_, slots_;
};

TEST_P(RopeAppend, WritesTheCpusBytes) {
  if (IsSkipped()) return;
  const AppendCase c = GetParam();
  const int64_t columns = latent_row_elements(c.dtype, c.lora, c.rope), row_bytes = columns * dtype_bytes(c.dtype);
  const DeviceTensor kv = test::upload(DType::kBF16, {tokens_, stride_}, test::to_bf16(kv_));
  const DeviceTensor weight = test::upload(DType::kBF16, {c.lora}, test::to_bf16(weight_));
  const DeviceTensor q = test::upload(DType::kBF16, {tokens_, c.heads, c.head_dim}, test::to_bf16(q_));
  const DeviceTensor q_out = test::poisoned(DType::kBF16, {tokens_, c.heads, std::max<int64_t>(1, c.out_dim)});
  const DeviceTensor table = test::upload(DType::kF32, {kMaxPositions, c.rope}, table_);
  const DeviceTensor positions = test::upload(DType::kI32, {tokens_}, positions_);
  const DeviceTensor slots = test::upload(DType::kI32, {tokens_}, slots_);
  const DeviceTensor rows = test::poisoned(c.dtype, {num_slots_, columns});
  const absl::Status status =
      rope_append(stream(), {.kv = Tensor::strided(kv.tensor.raw(), DType::kBF16, tokens_, c.lora + c.rope, stride_),
                             .norm_weight = c.norm ? weight.tensor : Tensor(),
                             .eps = 1e-6f,
                             .q = q,
                             .q_out = c.out_dim > 0 ? q_out.tensor : Tensor(),
                             .table = table,
                             .positions = positions,
                             .slots = slots,
                             .rows = rows});
  ASSERT_TRUE(status.ok()) << status.message();

  std::vector<uint8_t> want(num_slots_ * row_bytes, 0xff);
  test::CpuStream cpu;
  for (int64_t t = 0; t < tokens_; ++t) {
    if (is_padding(t)) continue;
    std::vector<float> row = latent_row(t);
    const LatentCache cache{.rows = {want.data(), c.dtype, {num_slots_, columns}},
                            .block_tokens = 8,
                            .kv_lora_rank = c.lora,
                            .rope_dim = c.rope};
    append_latent(cpu.stream, cache, test::f32_view(row, {1, c.lora + c.rope}), {&slots_[t], 1});
  }
  const Tensor bytes(rows.tensor.raw(), DType::kU8, {num_slots_ * row_bytes});
  const std::vector<uint8_t> got = test::download<uint8_t>(bytes);
  if (!c.norm) {
    EXPECT_EQ(got, want);
  } else {
    expect_rounded_rows(got, want, row_bytes);
  }

  const std::vector<uint16_t> before = test::to_bf16(q_);
  std::vector<uint16_t> want_q = c.out_dim > 0 ? std::vector<uint16_t>(tokens_ * c.heads * c.out_dim, 0xffff) : before;
  const int64_t width = c.out_dim > 0 ? c.out_dim : c.head_dim;
  for (int64_t t = 0; t < tokens_; ++t) {
    if (is_padding(t)) continue;
    std::vector<float> turned(q_.begin() + t * c.heads * c.head_dim, q_.begin() + (t + 1) * c.heads * c.head_dim);
    rope(turned, t, c.heads, c.head_dim);
    for (int64_t h = 0; h < c.heads; ++h) {
      for (int64_t i = 1; i <= c.rope; ++i) {
        want_q[(t * c.heads + h + 1) * width - i] = f32_to_bf16(turned[(h + 1) * c.head_dim - i]);
      }
    }
  }
  EXPECT_EQ(test::download<uint16_t>(c.out_dim > 0 ? q_out.tensor : q.tensor), want_q);
}

INSTANTIATE_TEST_SUITE_P(Shapes, RopeAppend,
                         testing::Values(AppendCase{DType::kBF16, 512, 64, 128, 192, 0, false},
                                         AppendCase{DType::kE4M3, 512, 64, 128, 192, 576, false},
                                         AppendCase{DType::kE4M3, 512, 64, 16, 192, 576, true},
                                         AppendCase{DType::kBF16, 512, 64, 3, 192, 0, true},
                                         AppendCase{DType::kBF16, 128, 8, 5, 24, 40, false},
                                         AppendCase{DType::kE4M3, 1024, 128, 1, 128, 0, false}));

std::vector<AppendCase> bench_cases() {
  std::vector<AppendCase> cases;
  for (const int64_t m : token_counts(kRopeTokens)) {
    for (const DType dtype : {DType::kBF16, DType::kE4M3}) {
      cases.push_back({dtype, kLora, kRope, kHeads, kQueryDim, kLora + kRope, true, m});
    }
  }
  return cases;
}
INSTANTIATE_TEST_SUITE_P(FullSize, RopeAppend, testing::ValuesIn(bench_cases()));

}  // namespace
}  // namespace moesaic::cuda
