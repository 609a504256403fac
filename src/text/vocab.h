// Vocab: token id <-> the token's own bytes. Byte-level vocabularies spell bytes as printable characters (GPT-2's
// table: the space is "Ġ"); this class stores the bytes themselves. Entries that are not in that spelling (special
// tokens with full-width bars) keep their text and never take part in BPE. Filled once by the loader; then immutable,
// any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moesaic {

// Bytes of a byte-level spelling; false if `spelled` has a character outside the table. `bytes` is overwritten.
bool bytes_of_spelling(std::string_view spelled, std::string& bytes);

class Vocab {
 public:
  static constexpr int32_t kMaxId = (1 << 22) - 1;  // 32 times DeepSeek-V3's; bounds the memory a file can ask for

  void reserve(size_t num_tokens, size_t num_bytes);
  // `spelled` as in tokenizer.json. False if the id (0..kMaxId) or the spelling is taken.
  bool add(int32_t id, std::string_view spelled);
  // Sets the text of an added token; it is not findable. The id may be new or hold the same text.
  bool add_text(int32_t id, std::string_view text);

  int32_t find_bytes(std::string_view bytes) const;  // -1 if there is none
  int32_t find_spelled(std::string_view spelled) const;
  bool has(int32_t id) const;
  std::string_view bytes(int32_t id) const;                               // "" if there is none
  int32_t size() const { return static_cast<int32_t>(entries_.size()); }  // highest id + 1

 private:
  struct Entry {
    uint32_t offset = 0;
    uint32_t length = 0;
    bool present = false;
  };
  struct Slot {
    uint32_t hash = 0;
    int32_t id = -1;
  };
  bool store(int32_t id, std::string_view bytes);
  size_t slot_of(std::string_view bytes, uint32_t hash) const;
  void grow(size_t num_slots);

  std::string arena_;
  std::vector<Entry> entries_;
  std::vector<Slot> slots_;  // open addressing, power of two
  size_t num_found_ = 0;
  std::unordered_map<std::string, int32_t> unspelled_;
};

}  // namespace moesaic
