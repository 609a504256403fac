// FP8 rows of the latent cache: their size, what rounding may do to a value, the same bytes and bits from every
// instruction set, and attention on them equal to attention on an f32 cache that holds the same values.
#include <cmath>
#include <numeric>

#include "kernels/cpu/mla_cache.h"
#include "kernels/cpu/op_test_util.h"
#include "kernels/cpu/vector_ops.h"

namespace moesaic {
namespace {

using test::Owned;

constexpr int64_t kBlock = 16, kGroup = 128;

struct Dims {
  int64_t lora, rope;
  int64_t width() const { return lora + rope; }
};
constexpr Dims kDims[] = {{512, 64}, {40, 6}, {130, 2}, {33, 10}, {128, 16}};

struct Cache {
  Owned rows;
  LatentCache cache;

  Cache(DType dtype, Dims d, int64_t num_blocks)
      : rows(dtype, {num_blocks * kBlock, latent_row_elements(dtype, d.lora, d.rope)}),
        cache{rows, kBlock, d.lora, d.rope} {}
};

// [num_rows, width]; groups of very different sizes.
Owned random_rows(Rng& rng, int64_t num_rows, Dims d) {
  Owned x = test::random_f32(rng, {num_rows, d.width()});
  for (int64_t r = 0; r < num_rows; ++r) {
    for (int64_t i = 0; i < d.width(); ++i) {
      x.tensor.row<float>(r)[i] *= std::pow(10.0f, static_cast<float>((r + i / kGroup) % 7 - 3));
    }
  }
  return x;
}

void append(const Cache& to, const Tensor& x) {
  std::vector<int32_t> slots(x.dim(0));
  std::iota(slots.rbegin(), slots.rend(), 0);  // the last row first
  ThreadPool pool(2);
  Stream stream(pool);
  append_latent(stream, to.cache, x, slots);
}

Owned read_all(const Cache& from, int64_t num_rows, Dims d) {
  Owned y(DType::kF32, {num_rows, d.width()});
  for (int64_t r = 0; r < num_rows; ++r) {
    read_latent(from.cache, num_rows - 1 - r, y.tensor.row<float>(r), y.tensor.row<float>(r) + d.lora);
  }
  return y;
}

TEST(Fp8Rows, Sizes) {
  EXPECT_EQ(latent_row_elements(DType::kE4M3, 512, 64), 656) << "FlashMLA's row";
  EXPECT_EQ(latent_row_elements(DType::kE4M3, 130, 2), 132 + 8 + 4);
  EXPECT_EQ(latent_row_elements(DType::kE4M3, 33, 5), 36 + 4 + 12);
  EXPECT_EQ(latent_row_elements(DType::kBF16, 512, 64), 576);
}

TEST(Fp8Rows, RoundingStaysInBoundsAndDoesNotDependOnTheInstructionSet) {
  constexpr int64_t kRows = 50;
  for (const Dims d : kDims) {
    Rng rng(31);
    const Owned x = random_rows(rng, kRows, d);
    std::vector<Cache> caches;
    std::vector<Owned> reads;
    test::for_each_isa([&] {
      caches.emplace_back(DType::kE4M3, d, 4);
      append(caches.back(), x);
      reads.push_back(read_all(caches.back(), kRows, d));
      EXPECT_TRUE(test::same_bits(caches.back().rows, caches[0].rows));
      EXPECT_TRUE(test::same_bits(reads.back(), reads[0]));
    });
    for (int64_t r = 0; r < kRows; ++r) {
      const float* from = x.tensor.row<float>(r);
      const float* to = reads[0].tensor.row<float>(r);
      for (int64_t i = 0; i < d.width(); ++i) {
        float bound = std::fabs(from[i]) / 256;  // bf16
        if (i < d.lora) {
          float amax = 1e-4f;
          for (int64_t j = i / kGroup * kGroup; j < std::min(d.lora, (i / kGroup + 1) * kGroup); ++j) {
            amax = std::max(amax, std::fabs(from[j]));
          }
          bound = std::max(std::fabs(from[i]) / 16, amax / 448 * 0x1.0p-10f) * 1.0001f;
        }
        ASSERT_LE(std::fabs(to[i] - from[i]), bound) << "row " << r << ", column " << i << " of " << d.lora;
      }
    }
  }
}

TEST(Fp8Rows, NanStaysWhereItIs) {
  const Dims d = kDims[2];
  test::for_each_isa([&] {
    Rng rng(32);
    Owned x = random_rows(rng, 3, d);
    x.tensor.row<float>(1)[7] = x.tensor.row<float>(1)[d.lora + 1] = test::kNan;
    const Cache cache(DType::kE4M3, d, 1);
    append(cache, x);
    const Owned y = read_all(cache, 3, d);
    for (int64_t i = 0; i < 3 * d.width(); ++i) {
      EXPECT_EQ(std::isnan(y.f32()[i]), i == d.width() + 7 || i == d.width() + d.lora + 1) << i;
    }
  });
}

TEST(WidenE4m3, EveryCodeAtEveryLength) {
  std::vector<uint8_t> codes(256 + 40);
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i);
  test::for_each_isa([&] {
    for (const float scale : {1.0f, 0.037f, 3e-7f}) {
      for (int64_t n = 0; n <= 40; ++n) {
        for (int64_t begin = 0; begin < 256; begin += 8) {
          std::vector<float> y(n + 1, 7.0f);
          vector_ops().widen_e4m3(codes.data() + begin, scale, n, y.data());
          for (int64_t i = 0; i < n; ++i) {
            const float want = e4m3_to_f32(codes[begin + i]) * scale;
            if (std::isnan(want)) {
              ASSERT_TRUE(std::isnan(y[i]));
            } else {
              ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(want)) << int{codes[begin + i]};
            }
          }
          ASSERT_EQ(y[n], 7.0f);
        }
      }
    }
  });
}

// Sequences of 150 and 70 rows in blocks that alternate, with fp8 rows and with f32 rows of the same values.
class Fp8Attention : public testing::TestWithParam<Dims> {
 protected:
  static constexpr int64_t kHeads = 3, kNope = 12, kV = 20, kTokens = 8 + 5;
  void SetUp() override {
    append(fp8_, random_rows(rng_, 16 * kBlock, GetParam()));
    for (int64_t row = 0; row < 16 * kBlock; ++row) {
      float* to = f32_.rows.tensor.row<float>(row);
      read_latent(fp8_.cache, row, to, to + GetParam().lora);
      // Scores stay moderate.
      for (int64_t i = 0; i < GetParam().width(); ++i) ASSERT_LT(std::fabs(to[i]), 1e4f);
    }
  }
  template <typename Run>
  void expect_same(Shape out_shape, const Run& run) {
    test::for_each_isa([&] {
      Owned outs[2] = {test::filled_f32(out_shape, test::kNan), test::filled_f32(out_shape, test::kNan)};
      ThreadPool pool(2);
      Stream stream(pool);
      run(stream, fp8_.cache, outs[0]);
      run(stream, f32_.cache, outs[1]);
      EXPECT_TRUE(test::same_bits(outs[0], outs[1]));
      EXPECT_FALSE(std::isnan(outs[0].f32()[0]));
    });
  }

  Rng rng_{33};
  const Cache fp8_{DType::kE4M3, GetParam(), 16};
  const Cache f32_{DType::kF32, GetParam(), 16};
  const std::vector<int32_t> first_{0, 2, 4, 6, 8, 10, 12, 14, 15, 13}, second_{1, 3, 5, 7, 9};
  const std::vector<AttentionSpan> spans_{{0, 8, 150, first_.data()}, {8, 5, 70, second_.data()}};
};

TEST_P(Fp8Attention, DecodeEqualsF32RowsOfTheSameValues) {
  const Owned q = test::random_f32(rng_, {kTokens, kHeads, GetParam().width()}, 0.01f);
  expect_same({kTokens, kHeads, GetParam().lora}, [&](Stream& stream, const LatentCache& cache, const Tensor& out) {
    Arena arena(mla_decode_arena_bytes(kTokens, kHeads, 150, cache));
    mla_decode(stream, {.q = q, .cache = cache, .spans = spans_, .softmax_scale = 0.1f, .out = out, .arena = &arena});
  });
}

TEST_P(Fp8Attention, PrefillEqualsF32RowsOfTheSameValues) {
  const Owned q = test::random_f32(rng_, {kTokens, kHeads, kNope + GetParam().rope}, 0.01f);
  const Owned weight = test::random_f32(rng_, {kHeads * (kNope + kV), GetParam().lora}, 0.02f);
  const PackedWeight kv_b = std::move(PackedWeight::pack({.weight = weight}).value());
  expect_same({kTokens, kHeads, kV}, [&](Stream& stream, const LatentCache& cache, const Tensor& out) {
    Arena arena(mla_prefill_arena_bytes(kTokens, kHeads, kNope, kV, cache));
    mla_prefill(stream, {.q = q,
                         .cache = cache,
                         .kv_b = &kv_b,
                         .nope_dim = kNope,
                         .v_dim = kV,
                         .spans = spans_,
                         .softmax_scale = 0.1f,
                         .out = out,
                         .arena = &arena});
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, Fp8Attention, testing::ValuesIn(kDims));

}  // namespace
}  // namespace moesaic
