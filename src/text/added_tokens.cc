#include "text/added_tokens.h"

#include <algorithm>

namespace moesaic {

namespace {

constexpr auto kByByte = [](const std::pair<uint8_t, int32_t>& child, uint8_t byte) { return child.first < byte; };

}  // namespace

int32_t AddedTokens::child(int32_t node, uint8_t byte) const {
  const auto& children = nodes_[node].children;
  const auto it = std::lower_bound(children.begin(), children.end(), byte, kByByte);
  return it != children.end() && it->first == byte ? it->second : -1;
}

void AddedTokens::add(std::string_view text, int32_t id) {
  starts_[static_cast<uint8_t>(text[0])] = true;
  int32_t node = 0;
  for (const char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    int32_t next = child(node, byte);
    if (next < 0) {
      next = static_cast<int32_t>(nodes_.size());
      auto& children = nodes_[node].children;
      children.insert(std::lower_bound(children.begin(), children.end(), byte, kByByte), {byte, next});
      nodes_.emplace_back();
    }
    node = next;
  }
  nodes_[node].id = id;
}

AddedTokens::Hit AddedTokens::find(std::string_view text, size_t from) const {
  if (empty()) return {};
  for (size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    Hit hit;
    int32_t node = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node < 0) break;
      if (nodes_[node].id >= 0) hit = {begin, i + 1, nodes_[node].id};
    }
    if (hit.id >= 0) return hit;
  }
  return {};
}

int32_t AddedTokens::find_exact(std::string_view text) const {
  int32_t node = 0;
  for (const char c : text) {
    node = child(node, static_cast<uint8_t>(c));
    if (node < 0) return -1;
  }
  return nodes_[node].id;
}

}  // namespace moesaic
