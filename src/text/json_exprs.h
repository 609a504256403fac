// JsonExprs: the pieces of JSON text as grammar expressions of one builder. White space is bounded: between tokens
// where pretty printers put it (behind `{ [ , :` and before `} ]`) there may be one space, or one newline and up to 40
// spaces or tabs. Numbers are bounded too: 19 digits, 16 behind the point (6 where bounds are set), 2 of the exponent.
// So no constrained output can go on for ever without saying anything. One thread; lives as long as its builder's
// construction.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar_builder.h"

namespace moesaic {

class JsonExprs {
 public:
  using Expr = GrammarBuilder::Expr;
  // Of integers, or of numbers with whole bounds; nothing = no bound.
  struct Range {
    std::optional<int64_t> low;
    std::optional<int64_t> high;
    bool low_exclusive = false;
    bool high_exclusive = false;
    auto operator<=>(const Range&) const = default;
  };

  explicit JsonExprs(GrammarBuilder* builder) : builder_(*builder) {}

  Expr space();
  Expr value();   // any
  Expr object();  // any
  Expr array();   // any
  Expr string() { return string(0, GrammarBuilder::kUnbounded); }
  Expr string(int min_length, int max_length);  // in characters
  Expr integer(const Range& range);
  Expr number(const Range& range);
  // One of the ranges' characters as it stands in a string; escaped only where JSON wants it.
  Expr characters(const CodePointRanges& ranges);
  // `inner` (made of characters()) in quotes.
  Expr quoted(Expr inner);
  // A string, without escapes, that is none of `names` (of at most 512 bytes each: it recurses by character).
  Expr string_other_than(const std::vector<std::string>& names);
  // One of the texts, byte for byte.
  Expr one_of(std::vector<std::string> texts);

 private:
  using Rule = GrammarBuilder::Rule;
  Expr lit(std::string_view text) { return builder_.literal(text); }
  Expr character();  // in any spelling
  Expr digits(int min, int max);
  Expr fraction(int max_digits);
  // Whole numbers without sign, low .. high.
  Expr whole(uint64_t low, uint64_t high);
  Expr same_length(std::string_view low, std::string_view high);
  Expr integer_in(const Range& range);
  Expr number_in(const Range& range);
  Expr magnitude(uint64_t low, bool low_exclusive, uint64_t high, bool high_exclusive);
  Expr with_prefix(const std::vector<std::string>& sorted, size_t begin, size_t end, size_t depth);
  Expr other_than(const std::vector<std::u32string>& sorted, size_t begin, size_t end, size_t depth);

  GrammarBuilder& builder_;
  std::optional<Rule> space_;
  std::optional<Rule> value_;
  std::optional<Rule> object_;
  std::optional<Rule> array_;
  std::optional<Rule> character_;
  std::map<Range, Rule> integers_;
  std::map<Range, Rule> numbers_;
  std::map<std::pair<int, int>, Rule> strings_;
  std::map<CodePointRanges, Expr> characters_;
};

}  // namespace moesaic
