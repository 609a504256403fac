// Rng: the only source of randomness. SplitMix64 counter stream: the n-th value depends on (seed, n) alone, so a
// sequence that is preempted and recomputed draws the same numbers. Not thread-safe; cheap to copy.
#pragma once

#include <cstdint>

namespace moesaic {

class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t position = 0) : state_(seed + position * kGamma) {}

  uint64_t next_u64() {
    uint64_t z = (state_ += kGamma);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  // [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next_u64() >> 11) * 0x1.0p-53; }
  // [0, bound), bound > 0. Bias under bound / 2^64.
  uint64_t below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(next_u64()) * bound) >> 64);
  }

 private:
  static constexpr uint64_t kGamma = 0x9e3779b97f4a7c15ull;
  uint64_t state_;
};

// A seed from the operating system, for requests that name none.
uint64_t entropy_seed();

}  // namespace moesaic
