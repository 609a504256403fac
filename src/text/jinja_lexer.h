// Lexer of chat templates: text and tokens, with Jinja's whitespace rules as Hugging Face sets them (trim_blocks and
// lstrip_blocks on, the last newline of the file dropped). Internal to the template renderer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace moesaic::jinja {

enum class TokenKind : uint8_t {
  kText,       // outside of tags
  kPrintOpen,  // {{
  kPrintClose,
  kBlockOpen,  // {%
  kBlockClose,
  kName,
  kString,  // unescaped
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Place {
  int line = 1;
  int column = 1;
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  Place place;
};

// "line 3, column 7: ..."
absl::Status template_error(Place place, std::string_view message);

absl::StatusOr<std::vector<Token>> tokenize(std::string_view source);

}  // namespace moesaic::jinja
