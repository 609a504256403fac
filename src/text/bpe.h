// Bpe: merges the bytes of one word into tokens, always the pair with the lowest rank first, the leftmost of equals.
// Words of up to kShortWord bytes are scanned, longer ones use a heap (n log n), so no input is quadratic.
// Filled once by the loader; then immutable, any thread (the scratch is the caller's).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace moesaic {

class Bpe {
 public:
  static constexpr size_t kShortWord = 48;

  // Memory that long words need; one per thread.
  struct Scratch {
    struct Symbol {
      int32_t id;
      int32_t prev;
      int32_t next;  // -1 at the end
    };
    struct Candidate {
      uint32_t rank;
      int32_t left;  // index of the left symbol
      int32_t right;
      int32_t left_id;  // as they were when pushed: stale candidates are dropped
      int32_t right_id;
      int32_t merged;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  Bpe() { byte_ids_.fill(-1); }
  void reserve(size_t num_merges);
  void set_byte(uint8_t byte, int32_t id) { byte_ids_[byte] = id; }
  // Later merges of the same pair replace earlier ones, as in Hugging Face's loader.
  void add_merge(int32_t left, int32_t right, uint32_t rank, int32_t merged);

  // Appends the ids of `word`. Bytes without a token are dropped, as the reference does without unk_token.
  void encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;

 private:
  struct Pair {
    uint64_t key = kNoKey;
    uint32_t rank = kNoRank;
    int32_t merged = -1;
  };
  static constexpr uint64_t kNoKey = ~0ull;
  static constexpr uint32_t kNoRank = ~0u;

  size_t slot_of(uint64_t key) const;
  const Pair& find(int32_t left, int32_t right) const;
  void encode_short(std::string_view word, std::vector<int32_t>& out) const;
  void encode_long(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const;
  void push(Scratch& scratch, int32_t left, int32_t right) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<Pair> pairs_ = std::vector<Pair>(16);  // open addressing, power of two, at most half full
  size_t num_pairs_ = 0;
};

}  // namespace moesaic
