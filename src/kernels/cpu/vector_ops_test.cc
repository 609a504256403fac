// What VectorOps gives on every instruction set, against the scalar functions it stands for.
#include "kernels/cpu/vector_ops.h"

#include <bit>

#include "kernels/cpu/op_test_util.h"

namespace moesaic {
namespace {

TEST(VectorOps, NarrowingEqualsF32ToBf16) {
  test::for_each_isa([] {
    Rng rng(11);
    std::vector<float> x = {0.0f, -0.0f, INFINITY, -INFINITY, test::kNan, -test::kNan, 1e-45f, 3.4028235e38f};
    x.push_back(std::bit_cast<float>(0x7f800001u));  // a NaN all of whose payload is cut off
    for (const uint32_t half : {0x3f808000u, 0x3f818000u, 0x3f807fffu, 0x7f7f8000u, 0x007f8000u}) {
      x.push_back(std::bit_cast<float>(half));  // ties, and what rounds up into the next exponent
      x.push_back(std::bit_cast<float>(half | 0x80000000u));
    }
    while (x.size() < 1003) x.push_back(std::bit_cast<float>(static_cast<uint32_t>(rng.next_u64())));
    std::vector<uint16_t> y(x.size() + 1, 0xabcd);
    vector_ops().narrow_bf16(x.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], f32_to_bf16(x[i])) << std::bit_cast<uint32_t>(x[i]);
    EXPECT_EQ(y.back(), 0xabcd);
  });
}

TEST(VectorOps, FindGivesTheFirstEqual) {
  test::for_each_isa([] {
    for (const int64_t n : {0, 1, 15, 16, 17, 100}) {
      std::vector<float> x(n, 1.0f);
      EXPECT_EQ(vector_ops().find(x.data(), n, 2.0f), n);
      EXPECT_EQ(vector_ops().find(x.data(), n, test::kNan), n);
      for (int64_t at = n - 1; at >= 0; --at) {
        x[at] = -0.0f;
        EXPECT_EQ(vector_ops().find(x.data(), n, 0.0f), at);
      }
    }
  });
}

}  // namespace
}  // namespace moesaic
