#include "tensor/buffer_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "base/check.h"

namespace moesaic {
namespace {

constexpr int64_t kAlignment = 64;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
constexpr int64_t kRegionBytes = int64_t{32} << 20;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kShareRegions = false;  // every small buffer gets its own red zones
#else
constexpr bool kShareRegions = true;
#endif

int64_t round_up(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Starts at a huge page, which kernels before 6.7 do not do by themselves.
char* map_huge(int64_t num_bytes) {
  void* mapped = mmap(nullptr, num_bytes + kHugePageBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  MOESAIC_CHECK(mapped != MAP_FAILED);
  char* begin = static_cast<char*>(mapped);
  const int64_t skip = round_up(reinterpret_cast<int64_t>(begin), kHugePageBytes) - reinterpret_cast<int64_t>(begin);
  if (skip > 0) munmap(begin, skip);
  const int64_t end = round_up(num_bytes, 4096);
  if (skip + end < num_bytes + kHugePageBytes) munmap(begin + skip + end, num_bytes + kHugePageBytes - skip - end);
  madvise(begin + skip, num_bytes, MADV_HUGEPAGE);
  return begin + skip;
}

struct Region {
  int64_t used = 0;
  int64_t written = 0;  // bytes behind this were never handed out and are zero
  int64_t num_buffers = 0;
};

class RegionPool {
 public:
  void* allocate(int64_t num_bytes) {
    const std::lock_guard lock(mutex_);
    if (current_ == nullptr || regions_[current_].used + num_bytes > kRegionBytes) {
      current_ = map_huge(kRegionBytes);
    }
    Region& region = regions_[current_];
    char* data = current_ + region.used;
    std::memset(data, 0, std::clamp<int64_t>(region.written - region.used, 0, num_bytes));
    region.used += num_bytes;
    region.written = std::max(region.written, region.used);
    ++region.num_buffers;
    return data;
  }

  void release(char* data, int64_t num_bytes) {
    const std::lock_guard lock(mutex_);
    const auto entry = std::prev(regions_.upper_bound(data));
    auto& [begin, region] = *entry;
    if (data + num_bytes == begin + region.used) region.used -= num_bytes;
    if (--region.num_buffers > 0) return;
    region.used = 0;
    if (begin == current_) return;
    munmap(begin, kRegionBytes);
    regions_.erase(entry);
  }

 private:
  std::mutex mutex_;
  std::map<char*, Region> regions_;
  char* current_ = nullptr;
};

RegionPool& pool() {
  static auto* const pool = new RegionPool;  // outlives every Buffer
  return *pool;
}

}  // namespace

void* allocate_buffer(int64_t num_bytes) {
  if (num_bytes >= kHugePageBytes) return map_huge(num_bytes);
  if constexpr (kShareRegions) return pool().allocate(round_up(num_bytes, kAlignment));
  void* data = std::aligned_alloc(kAlignment, round_up(num_bytes, kAlignment));
  MOESAIC_CHECK(data != nullptr);
  return std::memset(data, 0, num_bytes);
}

void release_buffer(void* data, int64_t num_bytes) {
  if (num_bytes >= kHugePageBytes) {
    munmap(data, round_up(num_bytes, 4096));
  } else if constexpr (kShareRegions) {
    pool().release(static_cast<char*>(data), round_up(num_bytes, kAlignment));
  } else {
    std::free(data);
  }
}

}  // namespace moesaic
