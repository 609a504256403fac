// The 16-lane form of linear_simd.h on any machine with AVX2: registers are pairs of 8-lane ones. What it cannot check
// is the AVX-512 instructions themselves.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/rng.h"
#include "base/strings.h"
#include "kernels/cpu/linear_kernels.h"
#include "kernels/cpu/simd.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <algorithm>

#include "kernels/cpu/simd_target.h"

MOESAIC_TARGET_AVX2_BEGIN
#include "kernels/cpu/linear_simd.h"

namespace moesaic {
namespace {

struct Pair {
  struct Reg {
    __m256 low, high;
  };
  static constexpr int64_t kLanes = 16;
  static constexpr int kPanels = 2;
  static constexpr int kTileRows = 12;
  static constexpr int kDirectRows = 6;
  static constexpr int kMaxAccumulators = 24;
  static constexpr int64_t kMaxDirectRows = 12;

  static MOESAIC_INLINE Reg zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static MOESAIC_INLINE Reg broadcast(const float* p) { return {_mm256_broadcast_ss(p), _mm256_broadcast_ss(p)}; }
  static MOESAIC_INLINE Reg load(const float* p) { return {_mm256_load_ps(p), _mm256_load_ps(p + 8)}; }
  static MOESAIC_INLINE Reg loadu(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static MOESAIC_INLINE void store(float* p, Reg v) {
    _mm256_store_ps(p, v.low);
    _mm256_store_ps(p + 8, v.high);
  }
  static MOESAIC_INLINE Reg load_cols(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 32)}; }
  static MOESAIC_INLINE void store_cols(float* p, Reg v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + 32, v.high);
  }
  static MOESAIC_INLINE Reg fma(Reg a, Reg b, Reg c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static MOESAIC_INLINE Reg add(Reg a, Reg b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static MOESAIC_INLINE Reg mul(Reg a, Reg b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }

  template <DType kDType>
  static MOESAIC_INLINE void decode(const char* first, const char* second, int half, Reg* w) {
    for (int v = 0; v < 2; ++v) {
      alignas(32) float lanes[16];
      for (int lane = 0; lane < 16; ++lane) {
        const char* row = lane < 8 ? first : second;
        const int64_t slot = PackedWeight::slot(kDType, half * 16 + v * 8 + lane % 8);
        if constexpr (kDType == DType::kE4M3) {
          lanes[lane] = e4m3_to_f32(static_cast<uint8_t>(row[slot])) * 0x1.0p-120f;
        } else if constexpr (kDType == DType::kBF16) {
          lanes[lane] = bf16_to_f32(reinterpret_cast<const uint16_t*>(row)[slot]);
        } else {
          lanes[lane] = reinterpret_cast<const float*>(row)[slot];
        }
      }
      w[v] = load(lanes);
    }
  }
};

void linear_panels_pair(const LinearPanels& args, int64_t panel_begin, int64_t panel_end) {
  linear_panels_simd<Pair>(args, panel_begin, panel_end);
}

}  // namespace
}  // namespace moesaic
MOESAIC_TARGET_END

namespace moesaic {
namespace {

TEST(LinearPair, EqualsTheDefinitionBitForBit) {
  if (!isa_supported(Isa::kAvx2)) GTEST_SKIP() << "this CPU has no avx2";
  constexpr uint64_t kSeed = 99;
  Rng rng(kSeed);
  for (const DType dtype : {DType::kE4M3, DType::kBF16, DType::kF32}) {
    for (const auto& [n, k] :
         {std::pair<int64_t, int64_t>{1, 3}, {32, 130}, {33, 128}, {64, 300}, {97, 257}, {200, 200}}) {
      std::vector<uint8_t> data(n * k * dtype_bytes(dtype) + 4);
      std::vector<float> scales(100);
      for (float& s : scales) s = 0.01f + static_cast<float>(rng.uniform());
      for (int64_t i = 0; i < n * k; ++i) {
        const float v = static_cast<float>(rng.uniform() * 2 - 1);
        const uint16_t half = f32_to_bf16(v);
        const uint8_t code = static_cast<uint8_t>(rng.below(2) * 128 + rng.below(127));
        if (dtype == DType::kF32) std::memcpy(&data[i * 4], &v, 4);
        if (dtype == DType::kBF16) std::memcpy(&data[i * 2], &half, 2);
        if (dtype == DType::kE4M3) data[i] = code;
      }
      PackedWeight::Source source;
      source.weight = Tensor(data.data(), dtype, {n, k});
      if (dtype == DType::kE4M3) {
        source.scale_inv = Tensor(scales.data(), DType::kF32, {(n + 49 + 127) / 128, (k + 77 + 127) / 128});
        source.row_offset = 49;
        source.col_offset = 77;
      }
      const auto weight = PackedWeight::pack(source);
      ASSERT_TRUE(weight.ok()) << weight.status();
      std::vector<float> x(300 * k), bias(n), y(300 * n), expected(300 * n);
      for (float& v : x) v = static_cast<float>(rng.uniform() * 2 - 1);
      for (float& v : bias) v = static_cast<float>(rng.uniform() * 2 - 1);
      linear_panels_plain({&*weight, x.data(), k, 300, expected.data(), n, bias.data()}, 0, weight->num_panels());
      for (const int64_t m : {1, 2, 3, 4, 6, 7, 12, 13, 24, 25, 129, 300}) {
        std::fill(y.begin(), y.end(), -7.0f);
        linear_panels_pair({&*weight, x.data(), k, m, y.data(), n, bias.data()}, 0, weight->num_panels());
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), m * n * sizeof(float)), 0)
            << dtype_name(dtype) << " n " << n << " k " << k << " m " << m << " seed " << kSeed;
        for (size_t i = m * n; i < y.size(); ++i) ASSERT_EQ(y[i], -7.0f);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic

#endif
