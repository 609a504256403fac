// StopMatcher: finds stop strings in text that arrives in pieces. Text that may still become a stop string is held; it
// is released as soon as it cannot, and by flush() at the end. The first stop string to be complete wins (of several
// that end at one byte, the longest), so neither the pieces nor the order of the strings change the result. Works on
// bytes; given whole characters and valid stop strings it releases whole characters. One per sequence; not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace moesaic {

class StopMatcher {
 public:
  StopMatcher() = default;
  // Empty strings are a bug of the caller: CHECK.
  explicit StopMatcher(const std::vector<std::string>& stops);

  // Appends to `out` what can no longer be part of a stop string. True once a stop string is complete: it and all later
  // text are dropped, and every later call changes nothing. Cost: bytes times number of stop strings.
  bool push(std::string_view text, std::string* out);
  // Appends what is held; used when the text ends without a stop string.
  void flush(std::string* out);

  bool matched() const { return matched_ >= 0; }
  // The stop string that was found.
  const std::string& match() const { return patterns_[matched_].text; }
  size_t num_held_bytes() const { return held_.size(); }

 private:
  struct Pattern {
    std::string text;
    std::vector<uint32_t> fallback;  // of each prefix: length of its longest border (Knuth, Morris, Pratt)
    uint32_t state = 0;              // how much of `text` the held bytes end with
  };

  bool advance(char byte);

  std::vector<Pattern> patterns_;
  std::string held_;  // as long as the largest state
  int matched_ = -1;
};

}  // namespace moesaic
