#include "text/json_exprs.h"

#include <algorithm>

#include "base/strings.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

constexpr int kMaxIndent = 40;
constexpr int kMaxFractionDigits = 16;
// Few, so that 9.99... is still below 10 when a reader has rounded it to a double.
constexpr int kMaxBoundedDigits = 6;
constexpr uint64_t kMaxWhole = 9'999'999'999'999'999'999u;  // 19 digits
constexpr int kUnbounded = GrammarBuilder::kUnbounded;

ByteSet byte_set(std::string_view bytes) {
  ByteSet set;
  for (const char c : bytes) set.set(static_cast<uint8_t>(c));
  return set;
}

ByteSet byte_range(char low, char high) {
  ByteSet set;
  for (int c = low; c <= high; ++c) set.set(c);
  return set;
}

// What a string holds as it is.
CodePointRanges plain_ranges() {
  return complement(normalized({{0, 0x1F}, {'"', '"'}, {'\\', '\\'}}));
}

uint64_t negated(int64_t value) {
  return uint64_t{0} - static_cast<uint64_t>(value);
}

}  // namespace

JsonExprs::Expr JsonExprs::space() {
  if (!space_) {
    space_ = builder_.new_rule("white space");
    const Expr indent = builder_.repeat(builder_.bytes(byte_set(" \t")), 0, kMaxIndent);
    builder_.define(*space_, builder_.alt({builder_.empty(), lit(" "), builder_.seq({lit("\n"), indent})}));
  }
  return builder_.call(*space_);
}

JsonExprs::Expr JsonExprs::value() {
  if (!value_) {
    value_ = builder_.new_rule("value", /*frame=*/true);
    builder_.define(*value_,
                    builder_.alt({string(), number({}), object(), array(), one_of({"true", "false", "null"})}));
  }
  return builder_.call(*value_);
}

JsonExprs::Expr JsonExprs::object() {
  if (!object_) {
    object_ = builder_.new_rule("object", /*frame=*/true);
    const Expr member = builder_.seq({string(), lit(":"), space(), value()});
    const Expr more = builder_.repeat(builder_.seq({lit(","), space(), member}), 0, kUnbounded);
    const Expr members = builder_.optional(builder_.seq({member, more, space()}));
    builder_.define(*object_, builder_.seq({lit("{"), space(), members, lit("}")}));
  }
  return builder_.call(*object_);
}

JsonExprs::Expr JsonExprs::array() {
  if (!array_) {
    array_ = builder_.new_rule("array", /*frame=*/true);
    const Expr more = builder_.repeat(builder_.seq({lit(","), space(), value()}), 0, kUnbounded);
    const Expr items = builder_.optional(builder_.seq({value(), more, space()}));
    builder_.define(*array_, builder_.seq({lit("["), space(), items, lit("]")}));
  }
  return builder_.call(*array_);
}

JsonExprs::Expr JsonExprs::character() {
  if (!character_) {
    character_ = builder_.new_rule("character");
    const auto hex = [&](std::string_view first, int rest) {
      const Expr digit = builder_.bytes(byte_set("0123456789abcdefABCDEF"));
      return builder_.seq({builder_.bytes(byte_set(first)), builder_.repeat(digit, rest, rest)});
    };
    // \u of a character, or of a pair of surrogates; a lone one is no text.
    const Expr single = builder_.alt({hex("0123456789abcefABCEF", 3), builder_.seq({lit("d"), hex("01234567", 2)}),
                                      builder_.seq({lit("D"), hex("01234567", 2)})});
    const Expr pair = builder_.seq({builder_.bytes(byte_set("dD")), hex("89abAB", 2), lit("\\u"),
                                    builder_.bytes(byte_set("dD")), hex("cdefCDEF", 2)});
    const Expr escape = builder_.alt(
        {builder_.bytes(byte_set("\"\\/bfnrt")), builder_.seq({lit("u"), single}), builder_.seq({lit("u"), pair})});
    builder_.define(*character_,
                    builder_.alt({builder_.code_points(plain_ranges()), builder_.seq({lit("\\"), escape})}));
  }
  return builder_.call(*character_);
}

JsonExprs::Expr JsonExprs::quoted(Expr inner) {
  return builder_.seq({lit("\""), inner, lit("\"")});
}

JsonExprs::Expr JsonExprs::string(int min_length, int max_length) {
  const auto [found, is_new] = strings_.try_emplace({min_length, max_length}, -1);
  if (is_new) {
    found->second = builder_.new_rule("string", /*frame=*/true);
    builder_.define(found->second, quoted(builder_.repeat(character(), min_length, max_length)));
  }
  return builder_.call(found->second);
}

JsonExprs::Expr JsonExprs::characters(const CodePointRanges& ranges) {
  const auto [found, is_new] = characters_.try_emplace(ranges, -1);
  if (!is_new) return found->second;
  std::vector<Expr> choices;
  CodePointRanges plain;
  for (const auto& [low, high] : normalized(ranges)) {
    for (const auto& [plain_low, plain_high] : plain_ranges()) {
      const uint32_t begin = std::max(low, plain_low);
      const uint32_t end = std::min(high, plain_high);
      if (begin <= end) plain.emplace_back(begin, end);
    }
    for (uint32_t character = low; character <= std::min<uint32_t>(high, '\\'); ++character) {
      static constexpr std::string_view kNames = "\"\"\\\\\bb\ff\nn\rr\tt";
      if (character > 0x1F && character != '"' && character != '\\') continue;
      size_t name = 0;
      while (name < kNames.size() && static_cast<uint8_t>(kNames[name]) != character) name += 2;
      if (name < kNames.size()) {
        choices.push_back(lit(str_cat('\\', kNames[name + 1])));
      } else {
        choices.push_back(lit(str_cat("\\u00", character < 16 ? '0' : '1', "0123456789abcdef"[character % 16])));
      }
    }
  }
  if (!plain.empty()) choices.push_back(builder_.code_points(plain));
  return found->second = builder_.alt(std::move(choices));
}

JsonExprs::Expr JsonExprs::with_prefix(const std::vector<std::string>& sorted, size_t begin, size_t end, size_t depth) {
  const std::string& first = sorted[begin];
  const std::string& last = sorted[end - 1];
  size_t common = depth;
  while (common < first.size() && common < last.size() && first[common] == last[common]) ++common;
  std::vector<Expr> parts = {lit(std::string_view(first).substr(depth, common - depth))};
  std::vector<Expr> choices;
  if (first.size() == common) {
    choices.push_back(builder_.empty());
    ++begin;
  }
  while (begin < end) {
    size_t next = begin;
    while (next < end && sorted[next][common] == sorted[begin][common]) ++next;
    choices.push_back(with_prefix(sorted, begin, next, common));
    begin = next;
  }
  if (choices.size() > 1 || first.size() > common) parts.push_back(builder_.alt(std::move(choices)));
  return builder_.seq(std::move(parts));
}

JsonExprs::Expr JsonExprs::one_of(std::vector<std::string> texts) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return texts.empty() ? builder_.alt({}) : with_prefix(texts, 0, texts.size(), 0);
}

// A string whose first `depth` characters are those of the names in [begin, end), up to its closing quote.
JsonExprs::Expr JsonExprs::other_than(const std::vector<std::u32string>& sorted, size_t begin, size_t end,
                                      size_t depth) {
  CodePointRanges shared;
  std::vector<Expr> choices;
  bool is_name = false;
  while (begin < end) {
    if (sorted[begin].size() == depth) {
      is_name = true;
      ++begin;
      continue;
    }
    const char32_t character = sorted[begin][depth];
    size_t next = begin;
    while (next < end && sorted[next][depth] == character) ++next;
    shared.emplace_back(character, character);
    const CodePointRanges one = {{character, character}};
    choices.push_back(builder_.seq({builder_.code_points(one), other_than(sorted, begin, next, depth + 1)}));
    begin = next;
  }
  for (const auto& range : complement(plain_ranges())) shared.push_back(range);
  const Expr rest = builder_.repeat(builder_.code_points(plain_ranges()), 0, kUnbounded);
  choices.push_back(builder_.seq({builder_.code_points(complement(normalized(shared))), rest, lit("\"")}));
  if (!is_name) choices.push_back(lit("\""));
  return builder_.alt(std::move(choices));
}

JsonExprs::Expr JsonExprs::string_other_than(const std::vector<std::string>& names) {
  std::vector<std::u32string> sorted;
  for (const std::string& name : names) {
    std::u32string& points = sorted.emplace_back();
    bool plain = true;  // a name that needs escapes cannot be met
    for (std::string_view rest = name; !rest.empty();) {
      const Utf8Step step = utf8_step(rest);
      rest.remove_prefix(step.length);
      plain = plain && step.valid && step.code_point > 0x1F && step.code_point != '"' && step.code_point != '\\';
      points.push_back(step.code_point);
    }
    if (!plain) sorted.pop_back();
  }
  std::sort(sorted.begin(), sorted.end());
  sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
  return builder_.seq({lit("\""), other_than(sorted, 0, sorted.size(), 0)});
}

JsonExprs::Expr JsonExprs::digits(int min, int max) {
  return builder_.repeat(builder_.bytes(byte_range('0', '9')), min, max);
}

JsonExprs::Expr JsonExprs::fraction(int max_digits) {
  return builder_.optional(builder_.seq({lit("."), digits(1, max_digits)}));
}

JsonExprs::Expr JsonExprs::same_length(std::string_view low, std::string_view high) {
  const auto size = static_cast<int>(low.size());
  if (low.find_first_not_of('0') == low.npos && high.find_first_not_of('9') == high.npos) return digits(size, size);
  if (low[0] == high[0]) return builder_.seq({lit(low.substr(0, 1)), same_length(low.substr(1), high.substr(1))});
  const std::string nines(size - 1, '9');
  const std::string zeros(size - 1, '0');
  if (low.substr(1) == zeros && high.substr(1) == nines) {
    return builder_.seq({builder_.bytes(byte_range(low[0], high[0])), digits(size - 1, size - 1)});
  }
  std::vector<Expr> choices = {builder_.seq({lit(low.substr(0, 1)), same_length(low.substr(1), nines)}),
                               builder_.seq({lit(high.substr(0, 1)), same_length(zeros, high.substr(1))})};
  if (high[0] - low[0] > 1) {
    const ByteSet between = byte_range(static_cast<char>(low[0] + 1), static_cast<char>(high[0] - 1));
    choices.push_back(builder_.seq({builder_.bytes(between), digits(size - 1, size - 1)}));
  }
  return builder_.alt(std::move(choices));
}

JsonExprs::Expr JsonExprs::whole(uint64_t low, uint64_t high) {
  high = std::min(high, kMaxWhole);
  std::vector<Expr> choices;
  uint64_t first = 0;  // of its length
  uint64_t last = 9;
  for (int size = 1; size <= 19; ++size) {
    const uint64_t begin = std::max(first, low);
    const uint64_t end = std::min(last, high);
    if (begin <= end) choices.push_back(same_length(std::to_string(begin), std::to_string(end)));
    first = last + 1;
    last = last * 10 + 9;
  }
  return builder_.alt(std::move(choices));
}

JsonExprs::Expr JsonExprs::integer(const Range& range) {
  const auto [found, is_new] = integers_.try_emplace(range, -1);
  if (is_new) {
    found->second = builder_.new_rule("integer", /*frame=*/true);
    builder_.define(found->second, integer_in(range));
  }
  return builder_.call(found->second);
}

JsonExprs::Expr JsonExprs::number(const Range& range) {
  const auto [found, is_new] = numbers_.try_emplace(range, -1);
  if (is_new) {
    found->second = builder_.new_rule("number", /*frame=*/true);
    builder_.define(found->second, number_in(range));
  }
  return builder_.call(found->second);
}

JsonExprs::Expr JsonExprs::integer_in(const Range& range) {
  if (!range.low && !range.high) {
    const Expr nonzero = builder_.seq({builder_.bytes(byte_range('1', '9')), digits(0, 18)});
    return builder_.alt({lit("0"), builder_.seq({builder_.optional(lit("-")), nonzero})});
  }
  int64_t low = range.low.value_or(0);
  int64_t high = range.high.value_or(0);
  if (range.low && range.low_exclusive && low < INT64_MAX) ++low;
  if (range.high && range.high_exclusive && high > INT64_MIN) --high;
  std::vector<Expr> choices;
  if (!range.high || high >= 0) {
    choices.push_back(whole(range.low && low > 0 ? static_cast<uint64_t>(low) : 0,
                            range.high ? static_cast<uint64_t>(high) : kMaxWhole));
  }
  if (!range.low || low < 0) {
    const Expr magnitude = whole(range.high && high < 0 ? negated(high) : 1, range.low ? negated(low) : kMaxWhole);
    choices.push_back(builder_.seq({lit("-"), magnitude}));
  }
  return builder_.alt(std::move(choices));
}

// Numbers without sign and exponent between whole bounds.
JsonExprs::Expr JsonExprs::magnitude(uint64_t low, bool low_exclusive, uint64_t high, bool high_exclusive) {
  std::vector<Expr> choices;
  if (low < high) {
    const uint64_t first = low_exclusive ? low + 1 : low;
    if (first < high) choices.push_back(builder_.seq({whole(first, high - 1), fraction(kMaxBoundedDigits)}));
    if (low_exclusive) {
      const Expr zeros = builder_.repeat(lit("0"), 0, kMaxBoundedDigits - 1);
      const Expr nonzero = builder_.bytes(byte_range('1', '9'));
      choices.push_back(
          builder_.seq({lit(std::to_string(low)), lit("."), zeros, nonzero, digits(0, kMaxBoundedDigits)}));
    }
  }
  const bool has_high = !high_exclusive && (low < high || (low == high && !low_exclusive));
  if (has_high && high <= kMaxWhole) choices.push_back(lit(std::to_string(high)));
  return builder_.alt(std::move(choices));
}

JsonExprs::Expr JsonExprs::number_in(const Range& range) {
  if (!range.low && !range.high) {
    const Expr sign = builder_.optional(lit("-"));
    const Expr first = builder_.bytes(byte_range('1', '9'));
    const Expr integer = builder_.alt({lit("0"), builder_.seq({first, digits(0, 18)})});
    const Expr exponent =
        builder_.seq({builder_.bytes(byte_set("eE")), builder_.optional(builder_.bytes(byte_set("+-"))), digits(1, 2)});
    return builder_.seq({sign, integer, fraction(kMaxFractionDigits), builder_.optional(exponent)});
  }
  std::vector<Expr> choices;
  if (!range.high || *range.high >= 0) {
    const bool positive = range.low && *range.low >= 0;
    choices.push_back(magnitude(positive ? static_cast<uint64_t>(*range.low) : 0, positive && range.low_exclusive,
                                range.high ? static_cast<uint64_t>(*range.high) : kMaxWhole, range.high_exclusive));
  }
  if (!range.low || *range.low < 0) {
    const bool negative = range.high && *range.high < 0;  // else what is below zero begins behind zero
    choices.push_back(
        builder_.seq({lit("-"), magnitude(negative ? negated(*range.high) : 0, negative ? range.high_exclusive : true,
                                          range.low ? negated(*range.low) : kMaxWhole, range.low_exclusive)}));
  }
  return builder_.alt(std::move(choices));
}

}  // namespace moesaic
