// prefetch: asks for cache lines that will be read soon. With tens of thousands of sequences a step's time is that of
// its cache misses, and those of the next sequences can be waited for together.
#pragma once

#include <cstddef>

namespace moesaic {

// How many elements ahead a loop over sequences asks.
inline constexpr size_t kPrefetchDistance = 6;

inline void prefetch(const void* address, size_t num_bytes = 1) {
  constexpr size_t kLine = 64;
  const char* line = static_cast<const char*>(address);
  for (size_t at = 0; at < num_bytes; at += kLine) __builtin_prefetch(line + at);
}

}  // namespace moesaic
