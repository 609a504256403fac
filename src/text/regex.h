// Regex: a tokenizer.json pattern on PCRE2 (UTF, Unicode properties, JIT where the machine allows it). The files are
// written for Oniguruma in Ruby syntax: constructs that the two read differently are refused at compile time by name.
// Matching is bounded: steps per position and time per search, so no pattern and no text can hang a thread.
// Immutable after compile; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace moesaic {

class Regex {
 public:
  struct Match {
    uint32_t begin;
    uint32_t end;
  };
  static constexpr size_t kMaxPatternBytes = 1 << 16;

  static absl::StatusOr<Regex> compile(std::string_view pattern, bool literal = false);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // Appends the matches in `subject` (valid UTF-8, below 4 GiB) from left to right; empty ones too. False if a bound
  // was hit: the rest of the subject then counts as not matching.
  bool find_all(std::string_view subject, std::vector<Match>& matches) const;

 private:
  struct Impl;
  explicit Regex(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
