#include "tensor/tensor.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace moesaic {
namespace {

TEST(DType, E4M3RoundTripsEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float value = e4m3_to_f32(code);
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(f32_to_e4m3(value), 0x7f);
    } else {
      EXPECT_EQ(f32_to_e4m3(value), code);
    }
  }
}

TEST(DType, E4M3RoundsToNearestEvenAndSaturates) {
  for (int code = 0; code < 0x7e; ++code) {
    const float low = e4m3_to_f32(code), high = e4m3_to_f32(code + 1), middle = (low + high) / 2;
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, low)), code);
    EXPECT_EQ(f32_to_e4m3(std::nextafter(middle, high)), code + 1);
    EXPECT_EQ(f32_to_e4m3(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(f32_to_e4m3(-middle), 0x80 | (code % 2 == 0 ? code : code + 1));
  }
  EXPECT_EQ(f32_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(f32_to_e4m3(-INFINITY), 0xfe);
}

TEST(DType, BF16RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.0f), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(NAN))));
}

TEST(Tensor, RowAndColumnViews) {
  Buffer buffer(6 * 4);
  Tensor t(buffer.data(), DType::kF32, {2, 3});
  for (int i = 0; i < 6; ++i) t.f32()[i] = i;
  EXPECT_EQ(t.rows(1, 2).f32()[0], 3);
  const Tensor right = t.cols(1, 3);
  EXPECT_EQ(right.row<float>(1)[0], 4);
  EXPECT_FALSE(right.is_contiguous());
  EXPECT_DEATH(t.rows(1, 3), "check failed");
}

TEST(Arena, ScopesReleaseInStackOrder) {
  Arena arena(4096);
  const Tensor a = arena.alloc(DType::kF32, {3});
  {
    Arena::Scope scope(arena);
    EXPECT_EQ(arena.alloc(DType::kF32, {5}).data<char>() - a.data<char>(), 64);
    EXPECT_EQ(arena.used_bytes(), 128);
  }
  EXPECT_EQ(arena.used_bytes(), 64);
  EXPECT_EQ(arena.peak_bytes(), 128);
  EXPECT_DEATH(arena.alloc(DType::kF32, {4096}), "check failed");
}

TEST(Arena, IsResidentBeforeTheFirstStep) {
  constexpr int64_t kBytes = int64_t{9} << 20, kPage = 4096;
  Arena arena(kBytes);
  std::vector<unsigned char> pages(kBytes / kPage);
  ASSERT_EQ(mincore(arena.alloc(DType::kU8, {kBytes}).raw(), kBytes, pages.data()), 0);
  EXPECT_TRUE(std::all_of(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

}  // namespace
}  // namespace moesaic
