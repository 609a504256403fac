#include "base/thread.h"

#include <gtest/gtest.h>

#include <numeric>

namespace moesaic {
namespace {

TEST(ThreadPool, EveryShareRunsOnceInEachRegion) {
  ThreadPool pool(4, /*spin_us=*/1);
  for (int region = 0; region < 2000; ++region) {
    std::vector<int> ran(4, 0);
    pool.run([&](int share) { ++ran[share]; });
    ASSERT_EQ(ran, std::vector<int>(4, 1)) << "region " << region;
  }
}

TEST(ThreadPool, ParallelForCoversTheRangeOnce) {
  ThreadPool pool(3);
  for (int64_t count : {0, 1, 31, 32, 33, 1000}) {
    std::vector<int> touched(count, 0);
    pool.parallel_for(count, 32, [&](int64_t begin, int64_t end) {
      ASSERT_EQ(begin % 32, 0);
      for (int64_t i = begin; i < end; ++i) ++touched[i];
    });
    EXPECT_EQ(std::accumulate(touched.begin(), touched.end(), int64_t{0}), count);
  }
}

TEST(ThreadPool, ParallelEachCoversTheRangeOnce) {
  ThreadPool pool(3);
  std::vector<std::atomic<int>> touched(1000);
  pool.parallel_each(1000, [&](int64_t i) { touched[i].fetch_add(1); });
  for (auto& t : touched) EXPECT_EQ(t.load(), 1);
}

TEST(ThreadPool, SharesMayWaitForEachOther) {
  ThreadPool pool(8, /*spin_us=*/0);
  for (int region = 0; region < 200; ++region) {
    std::atomic<int> begun{0};
    pool.run([&](int) {
      begun.fetch_add(1);
      while (begun.load() < 8) std::this_thread::yield();
    });
    ASSERT_EQ(begun.load(), 8);
  }
}

TEST(ThreadPool, WakesSleepingWorkers) {
  ThreadPool pool(2, /*spin_us=*/0);
  for (int region = 0; region < 20; ++region) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> ran{0};
    pool.run([&](int) { ran.fetch_add(1); });
    ASSERT_EQ(ran.load(), 2);
  }
}

}  // namespace
}  // namespace moesaic
