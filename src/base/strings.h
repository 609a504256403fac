// Small string helpers. str_cat joins strings, characters and numbers (shortest round-trip form) into one string.
#pragma once

#include <charconv>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace moesaic {

namespace internal {
template <typename T>
void append_piece(std::string& out, const T& piece) {
  if constexpr (std::is_same_v<T, bool>) {
    out += piece ? "true" : "false";
  } else if constexpr (std::is_same_v<T, char>) {
    out += piece;
  } else if constexpr (std::is_arithmetic_v<T>) {
    char digits[32];
    out.append(digits, std::to_chars(digits, digits + sizeof digits, piece).ptr);
  } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    out += static_cast<std::string_view>(piece);
  } else {
    out.append(piece.data(), piece.size());  // absl::string_view
  }
}
}  // namespace internal

template <typename... Pieces>
std::string str_cat(const Pieces&... pieces) {
  std::string out;
  (internal::append_piece(out, pieces), ...);
  return out;
}

// "a, b, c"
std::string str_join(const std::vector<std::string>& parts, std::string_view separator);

// The candidate nearest to `word` by edit distance, or "" if none is within a third of its length: "did you mean".
std::string closest_match(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace moesaic
