#include "base/seqlock.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/thread.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

struct Wide {
  uint64_t numbers[23] = {};
  uint8_t last = 0;  // the size is no multiple of a word
};

TEST(SeqLock, HoldsWhatWasStored) {
  SeqLock<Wide> lock;
  EXPECT_EQ(lock.load().numbers[22], 0u);
  Wide value{.last = 7};
  value.numbers[22] = 5;
  lock.store(value);
  EXPECT_EQ(lock.load().numbers[22], 5u);
  EXPECT_EQ(lock.load().last, 7);
}

TEST(SeqLock, ReadersSeeWholeValuesInOrder) {
  constexpr int kReaders = 4;
  constexpr uint64_t kStores = 200'000;
  SeqLock<Wide> lock;
  std::atomic<int> num_torn{0};
  std::atomic<int64_t> num_seen{0};
  {
    std::vector<Thread> readers;
    for (int i = 0; i < kReaders; ++i) {
      readers.emplace_back("reader", [&] {
        for (uint64_t newest = 0; newest < kStores;) {
          const Wide value = lock.load();
          const uint64_t number = value.numbers[0];
          const bool whole = std::all_of(std::begin(value.numbers), std::end(value.numbers),
                                         [&](uint64_t other) { return other == number; });
          if (!whole || value.last != static_cast<uint8_t>(number) || number < newest) ++num_torn;
          if (number != newest) ++num_seen;
          newest = number;
        }
      });
    }
    for (uint64_t i = 1; i <= kStores; ++i) {
      Wide value{.last = static_cast<uint8_t>(i)};
      std::fill(std::begin(value.numbers), std::end(value.numbers), i);
      lock.store(value);
    }
  }
  EXPECT_EQ(num_torn.load(), 0);
  EXPECT_GE(num_seen.load(), kReaders);
}

}  // namespace
}  // namespace moesaic
