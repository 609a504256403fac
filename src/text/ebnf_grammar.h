// Grammars as llama.cpp (GBNF) and xgrammar users write them: `name ::= ...` a rule, "..." literals, [...] classes, `.`
// any character, ( ), |, * + ? {m} {m,} {m,n}, # comments; escapes \n \t \r \" \\ \] \- \xHH \uHHHH \UHHHHHHHH. A rule
// ends where the next one begins. The text is a text of the rule `root`. Left recursion is refused by name.
#pragma once

#include <string_view>

#include "base/status.h"
#include "text/grammar_builder.h"

namespace moesaic {

inline constexpr size_t kMaxEbnfBytes = 1 << 18;

// The rule `root`.
absl::StatusOr<GrammarBuilder::Rule> ebnf_rule(std::string_view text, GrammarBuilder* builder);

}  // namespace moesaic
