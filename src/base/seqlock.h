// SeqLock: a value that one thread writes and any thread reads, without locks. store() never waits; load() returns a
// value that was stored whole and begins again where a store() came between, so it suits values of some hundred bytes
// that are written much less often than they can be copied.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace moesaic {

template <typename Value>
class SeqLock {
  static_assert(std::is_trivially_copyable_v<Value> && std::is_default_constructible_v<Value>);

 public:
  SeqLock() { store(Value()); }

  // One thread.
  void store(const Value& value) {
    std::array<uint64_t, kWords> words{};
    std::memcpy(words.data(), &value, sizeof(Value));
    const uint64_t before = sequence_.load(std::memory_order_relaxed);
    sequence_.store(before + 1, std::memory_order_relaxed);
    // Who meets a new word also meets the odd number before it: release here, acquire in load().
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
    sequence_.store(before + 2, std::memory_order_release);
  }

  // Any thread.
  Value load() const {
    std::array<uint64_t, kWords> words;
    for (;;) {
      const uint64_t before = sequence_.load(std::memory_order_acquire);
      for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
      if (before % 2 == 0 && sequence_.load(std::memory_order_relaxed) == before) break;
    }
    Value value;
    std::memcpy(static_cast<void*>(&value), words.data(), sizeof(Value));
    return value;
  }

 private:
  static constexpr size_t kWords = (sizeof(Value) + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  std::atomic<uint64_t> sequence_{0};  // odd while the words change
  std::array<std::atomic<uint64_t>, kWords> words_{};
};

}  // namespace moesaic
