#include "text/token_trie.h"

#include <algorithm>

#include "text/grammar.h"

namespace moesaic {

TokenTrie::TokenTrie(const Tokenizer& tokenizer, int64_t vocab_size) : vocab_size_(vocab_size) {
  bytes_.resize(std::min<int64_t>(tokenizer.size(), vocab_size));
  for (int32_t id = 0; id < std::ssize(bytes_); ++id) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes.empty() || bytes.find(static_cast<char>(kSpecialByte)) != std::string_view::npos) continue;
    bytes_[id] = bytes;
    if (tokenizer.is_special(id)) bytes_[id] = special_.emplace_back(str_cat(static_cast<char>(kSpecialByte), bytes));
    tokens_.push_back(id);
  }
  std::stable_sort(tokens_.begin(), tokens_.end(), [&](int32_t a, int32_t b) { return bytes_[a] < bytes_[b]; });
  std::vector<uint32_t> open;  // the nodes on the way to the last token
  std::string_view last;
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string_view bytes = bytes_[tokens_[i]];
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
