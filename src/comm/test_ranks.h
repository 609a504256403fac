// For tests: one named thread per rank, and sleeps of random length.
#pragma once

#include <time.h>

#include <functional>
#include <string>
#include <vector>

#include "base/rng.h"
#include "base/thread.h"

namespace moesaic {

inline void run_ranks(int num_ranks, const std::function<void(int)>& body) {
  std::vector<Thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back("rank-" + std::to_string(rank), [rank, &body] { body(rank); });
  }
}

inline void sleep_us(int64_t us) {
  const timespec time{.tv_sec = us / 1'000'000, .tv_nsec = us % 1'000'000 * 1000};
  nanosleep(&time, nullptr);
}

// Sleeps in one of `odds` calls, up to max_us.
inline void sleep_sometimes(Rng& rng, uint64_t odds, uint64_t max_us) {
  if (rng.below(odds) == 0) sleep_us(static_cast<int64_t>(rng.below(max_us)));
}

}  // namespace moesaic
