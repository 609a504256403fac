// Detokenizer: turns a growing list of ids into text piece by piece. Only whole UTF-8 characters come out; bytes that
// may still become a character are held back. One per sequence; not thread-safe; borrows the Tokenizer.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"

namespace moesaic {

class Detokenizer {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special_tokens = true)
      : tokenizer_(&tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // Text that became complete with this id; may be empty.
  std::string add(int32_t id);
  // What is still held back, broken bytes as U+FFFD. The detokenizer is then empty.
  std::string flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::string pending_;  // an incomplete UTF-8 sequence, at most 3 bytes
};

}  // namespace moesaic
