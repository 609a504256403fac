// CodePointReader: walks a pattern or a grammar by code points and reads what regexes and EBNF write alike: counts and
// hexadecimal escapes. A value over borrowed text, which must be valid UTF-8.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "base/status.h"

namespace moesaic {

class CodePointReader {
 public:
  explicit CodePointReader(std::string_view text) : text_(text) {}

  bool at_end() const { return at_ >= text_.size(); }
  size_t at() const { return at_; }
  std::string_view rest() const { return text_.substr(at_); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  void skip(size_t bytes) { at_ += bytes; }
  bool take(std::string_view expected);
  uint32_t next();  // not at the end
  // Exactly `digits` hexadecimal digits.
  std::optional<uint32_t> hex(int digits);
  // Decimal digits, nothing if there are none; stops growing at 1,000,000.
  std::optional<int> number();
  // {m} {m,} {m,n}, at the brace; nothing (and no move) if it is not one. max -1 = no bound.
  struct Counts {
    int min;
    int max;
  };
  std::optional<Counts> counts();
  // INVALID_ARGUMENT "byte N: message".
  template <typename... Pieces>
  absl::Status error(const Pieces&... pieces) const {
    return absl::InvalidArgumentError(str_cat("byte ", at_, ": ", pieces...));
  }

 private:
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace moesaic
