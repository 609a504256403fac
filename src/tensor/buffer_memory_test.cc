#include "tensor/buffer_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "base/strings.h"
#include "base/thread.h"
#include "tensor/tensor.h"

namespace moesaic {
namespace {

bool all_equal(const Buffer& buffer, unsigned char value) {
  const auto* bytes = static_cast<const unsigned char*>(buffer.data());
  return std::all_of(bytes, bytes + buffer.num_bytes(), [value](unsigned char byte) { return byte == value; });
}

// Buffers of random sizes around the limits come and go: each is zero when it comes, aligned, and keeps what was
// written.
void churn(uint64_t seed) {
  const std::vector<int64_t> sizes = {1, 63, 64, 65, 4096, 100'001, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, 9'000'000};
  Rng rng(seed);
  std::vector<std::pair<Buffer, unsigned char>> live;
  for (int i = 0; i < 400; ++i) {
    if (live.size() > 24 || (!live.empty() && rng.next_u64() % 3 == 0)) {
      const size_t victim = rng.next_u64() % 2 == 0 ? live.size() - 1 : rng.next_u64() % live.size();
      ASSERT_TRUE(all_equal(live[victim].first, live[victim].second)) << "seed " << seed << " step " << i;
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(victim));
      continue;
    }
    Buffer buffer(sizes[rng.next_u64() % sizes.size()]);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
    ASSERT_TRUE(all_equal(buffer, 0)) << "seed " << seed << " step " << i << " bytes " << buffer.num_bytes();
    const auto value = static_cast<unsigned char>(1 + i % 255);
    std::memset(buffer.data(), value, buffer.num_bytes());
    live.emplace_back(std::move(buffer), value);
  }
}

TEST(BufferMemory, ComesZeroAndKeepsWhatWasWritten) {
  const int64_t before = Buffer::live_bytes();
  churn(1);
  EXPECT_EQ(Buffer::live_bytes(), before);
}

TEST(BufferMemory, AnyThread) {
  std::vector<Thread> threads;
  for (uint64_t seed = 2; seed < 6; ++seed) threads.emplace_back(str_cat("churn", seed), [seed] { churn(seed); });
}

}  // namespace
}  // namespace moesaic
