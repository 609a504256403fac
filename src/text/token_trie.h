// TokenTrie: the tokens of a vocabulary as a trie over their bytes, laid out in preorder so that a walk is a loop that
// skips subtrees. Special tokens stand behind kSpecialByte, where only grammars that name them go. Immutable, any
// thread. DeepSeek-V3's 129,280 tokens take about 0.1 s to sort and 5 MB.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace moesaic {

class TokenTrie {
 public:
  struct Node {
    uint8_t byte = 0;
    uint32_t depth = 0;        // 1 = the first byte
    uint32_t skip = 0;         // the node behind this one's subtree
    uint32_t first_token = 0;  // the tokens that end here: up to the next node's first_token
  };

  // Tokens below `vocab_size`, the width of a row of logits.
  TokenTrie(const Tokenizer& tokenizer, int64_t vocab_size);

  uint32_t num_nodes() const { return static_cast<uint32_t>(nodes_.size()) - 1; }
  const Node& node(uint32_t index) const { return nodes_[index]; }
  std::span<const int32_t> tokens(uint32_t index) const {
    return std::span(tokens_).subspan(nodes_[index].first_token,
                                      nodes_[index + 1].first_token - nodes_[index].first_token);
  }
  // All bytes on the way to the node, in order of depth.
  std::string_view path(uint32_t index) const {
    return bytes(tokens_[nodes_[index].first_token]).substr(0, nodes_[index].depth);
  }
  // What the token adds to the text, or kSpecialByte and its text; empty for a token that no output may have.
  std::string_view bytes(int32_t id) const {
    return id >= 0 && id < std::ssize(bytes_) ? bytes_[id] : std::string_view();
  }
  uint32_t max_depth() const { return max_depth_; }
  int64_t vocab_size() const { return vocab_size_; }
  size_t num_mask_words() const { return static_cast<size_t>(vocab_size_ + 63) / 64; }

 private:
  int64_t vocab_size_;
  std::vector<std::string_view> bytes_;  // by id; the tokenizer's or of special_
  std::deque<std::string> special_;
  std::vector<Node> nodes_;  // and one behind the last
  std::vector<int32_t> tokens_;
  uint32_t max_depth_ = 0;
};

}  // namespace moesaic
