// Sort keys of expert placement: weight and index in one integer, so that sorts and heaps are fast and ties go to the
// lower index. Weights are at least 0, and the bits of such floats grow with their value. Internal to expert_placement.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moesaic {

// Ascending: the lightest first, the lower index first of equals.
inline uint64_t light_key(float weight, int32_t index) {
  return static_cast<uint64_t>(std::bit_cast<uint32_t>(weight)) << 32 | static_cast<uint32_t>(index);
}
inline float light_weight(uint64_t key) {
  return std::bit_cast<float>(static_cast<uint32_t>(key >> 32));
}

// Ascending: the heaviest first, the lower index first of equals.
inline uint64_t heavy_key(float weight, int32_t index) {
  return static_cast<uint64_t>(~std::bit_cast<uint32_t>(weight)) << 32 | static_cast<uint32_t>(index);
}

inline int32_t key_index(uint64_t key) {
  return static_cast<int32_t>(key & 0xffffffffu);
}

// heap: the least key at [0], each at most its children at [2i + 1] and [2i + 2], as std::make_heap with std::greater.
// Puts `key` in the place of the least.
inline void replace_least(std::vector<uint64_t>& heap, uint64_t key) {
  size_t hole = 0;
  for (size_t child; (child = 2 * hole + 1) < heap.size(); hole = child) {
    child += child + 1 < heap.size() && heap[child + 1] < heap[child];
    if (heap[child] >= key) break;
    heap[hole] = heap[child];
  }
  heap[hole] = key;
}

inline void pop_least(std::vector<uint64_t>& heap) {
  const uint64_t last = heap.back();
  heap.pop_back();
  if (!heap.empty()) replace_least(heap, last);
}

}  // namespace moesaic
