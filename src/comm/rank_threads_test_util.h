// Runs one body per rank, each on a thread of its own, and collects what they return. For tests.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/rng.h"
#include "base/status.h"
#include "base/thread.h"

namespace moesaic::testing {

inline std::vector<absl::Status> run_ranks(int num_ranks, const std::function<absl::Status(int)>& body) {
  std::vector<absl::Status> results(num_ranks);
  std::vector<Thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back("rank" + std::to_string(rank), [&, rank] { results[rank] = body(rank); });
  }
  for (Thread& thread : threads) thread.join();
  return results;
}

// One time in `rarity`, sleeps up to 300 us.
inline void random_delay(Rng& rng, uint64_t rarity) {
  if (rng.below(rarity) == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng.below(300)));
}

inline bool contains(const absl::Status& status, std::string_view text) {
  return std::string(status.message()).find(text) != std::string::npos;
}

}  // namespace moesaic::testing
