// AddedTokens: finds the added tokens of tokenizer.json in a text: leftmost first, the longest of those that start at
// the same place. Filled once by the loader; then immutable, any thread. Cost per byte: one table look-up, and a walk
// of a trie where a token may start.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace moesaic {

class AddedTokens {
 public:
  struct Hit {
    size_t begin = 0;
    size_t end = 0;
    int32_t id = -1;
  };

  // `text` is not empty and was not added before.
  void add(std::string_view text, int32_t id);
  bool empty() const { return nodes_.size() == 1; }
  // The first hit at or behind `from`; id -1 if there is none.
  Hit find(std::string_view text, size_t from) const;
  // Id of the token with exactly this text, or -1.
  int32_t find_exact(std::string_view text) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;  // sorted by byte
    int32_t id = -1;
  };
  int32_t child(int32_t node, uint8_t byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_{};
};

}  // namespace moesaic
