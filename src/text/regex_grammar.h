// Regular expressions as grammar expressions. The whole text must match. Known: literals, `.` (any character but \n),
// classes, \d \w \s (ASCII) and their negations, \n \t \r \f \v \0 \xHH \x{H..} \uHHHH, groups (their captures mean
// nothing), alternatives, * + ? {m} {m,} {m,n} (a lazy form is the same language), ^ and $ at the ends. Everything else
// (look-around, back-references, \b, flags, Unicode classes) is an INVALID_ARGUMENT that names it and its place.
#pragma once

#include <functional>
#include <string_view>

#include "base/status.h"
#include "text/grammar_builder.h"

namespace moesaic {

inline constexpr size_t kMaxRegexBytes = 1 << 16;

struct RegexOptions {
  // How a character of the ranges is written in the text; its UTF-8 where this is empty.
  std::function<GrammarBuilder::Expr(const CodePointRanges&)> characters;
  bool search = false;  // without ^ or $ anything may stand before or behind, as a JSON schema's pattern says
};

absl::StatusOr<GrammarBuilder::Expr> regex_expr(std::string_view pattern, const RegexOptions& options,
                                                GrammarBuilder* builder);

}  // namespace moesaic
