#include "text/token_trie.h"

#include <algorithm>

namespace moesaic {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, int64_t vocab_size) : tokenizer_(&tokenizer), vocab_size_(vocab_size) {
  const auto count = static_cast<int32_t>(std::min<int64_t>(tokenizer.size(), vocab_size));
  for (int32_t id = 0; id < count; ++id) {
    if (!tokenizer.is_special(id) && !tokenizer.token_bytes(id).empty()) tokens_.push_back(id);
  }
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [&](int32_t a, int32_t b) { return tokenizer.token_bytes(a) < tokenizer.token_bytes(b); });
  std::vector<uint32_t> open;  // the nodes on the way to the last token
  std::string_view last;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view bytes = tokenizer.token_bytes(tokens_[i]);
    const size_t common = std::mismatch(last.begin(), last.end(), bytes.begin(), bytes.end()).first - last.begin();
    for (; open.size() > common; open.pop_back()) nodes_[open.back()].skip = static_cast<uint32_t>(nodes_.size());
    for (size_t depth = common; depth < bytes.size(); ++depth) {
      open.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.byte = static_cast<uint8_t>(bytes[depth]),
                        .depth = static_cast<uint32_t>(depth) + 1,
                        .first_token = static_cast<uint32_t>(i)});
    }
    max_depth_ = std::max(max_depth_, static_cast<uint32_t>(bytes.size()));
    last = bytes;
  }
  for (; !open.empty(); open.pop_back()) nodes_[open.back()].skip = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({.first_token = static_cast<uint32_t>(tokens_.size())});
}

}  // namespace moesaic
