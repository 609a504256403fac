#include "text/regex_grammar.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "text/code_point_reader.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int kMaxDepth = 100;
constexpr CodePointRanges::value_type kAny = {0, 0x10FFFF};

// \d \w \s and their negations.
std::optional<CodePointRanges> shorthand(uint32_t letter) {
  CodePointRanges ranges;
  switch (letter | 0x20) {
    case 'd':
      ranges = {{'0', '9'}};
      break;
    case 'w':
      ranges = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
      break;
    case 's':
      ranges = {{'\t', '\r'}, {' ', ' '}};
      break;
    default:
      return std::nullopt;
  }
  return letter < 'a' ? complement(ranges) : ranges;
}

class RegexReader {
 public:
  RegexReader(std::string_view pattern, const RegexOptions& options, GrammarBuilder* builder)
      : in_(pattern), options_(options), builder_(*builder) {}

  absl::StatusOr<Expr> read() {
    MOESAIC_ASSIGN_OR_RETURN(const Expr expr, alternatives(0));
    if (!in_.at_end()) return in_.error("the ) has no (");
    return expr;
  }

 private:
  Expr characters(const CodePointRanges& ranges) {
    return options_.characters ? options_.characters(ranges) : builder_.code_points(ranges);
  }
  Expr anything() { return builder_.repeat(characters({kAny}), 0, GrammarBuilder::kUnbounded); }

  absl::StatusOr<Expr> alternatives(int depth) {
    if (depth > kMaxDepth) return in_.error("groups are nested deeper than ", kMaxDepth, " levels");
    std::vector<Expr> choices;
    do {
      MOESAIC_ASSIGN_OR_RETURN(const Expr choice, sequence(depth));
      choices.push_back(choice);
    } while (in_.take("|"));
    return builder_.alt(std::move(choices));
  }

  // ^ and $ are possible at the ends of the alternatives of the whole pattern, where they say what a full match means.
  absl::StatusOr<Expr> sequence(int depth) {
    std::vector<Expr> parts;
    bool anchored = false;
    if (depth == 0) anchored = in_.take("^") || in_.take("\\A");
    if (depth == 0 && options_.search && !anchored) parts.push_back(anything());
    anchored = false;
    while (!in_.at_end() && in_.peek() != '|' && in_.peek() != ')') {
      if (depth == 0 && (in_.take("$") || in_.take("\\z") || in_.take("\\Z"))) {
        if (!in_.at_end() && in_.peek() != '|') return in_.error("$ is only possible at the end");
        anchored = true;
        break;
      }
      MOESAIC_ASSIGN_OR_RETURN(Expr part, atom(depth));
      MOESAIC_ASSIGN_OR_RETURN(part, quantified(part));
      parts.push_back(part);
    }
    if (depth == 0 && options_.search && !anchored) parts.push_back(anything());
    return builder_.seq(std::move(parts));
  }

  absl::StatusOr<Expr> quantified(Expr part) {
    CodePointReader::Counts counts{0, GrammarBuilder::kUnbounded};
    if (in_.take("*")) {
    } else if (in_.take("+")) {
      counts.min = 1;
    } else if (in_.take("?")) {
      counts.max = 1;
    } else if (const auto found = in_.counts()) {
      counts = *found;
    } else if (in_.peek() == '{') {
      return in_.error("{ must start a count such as {2,5}; write \\{ for the character");
    } else {
      return part;
    }
    if (counts.max != GrammarBuilder::kUnbounded && counts.max < counts.min) {
      return in_.error("the count {", counts.min, ",", counts.max, "} is out of order");
    }
    if (std::max(counts.min, counts.max) > GrammarBuilder::kMaxRepeat) {
      return in_.error("at most ", GrammarBuilder::kMaxRepeat, " repetitions are possible");
    }
    in_.take("?");  // lazy: the same language
    if (in_.peek() == '+') return in_.error("possessive quantifiers are not supported");
    if (in_.peek() == '*' || in_.peek() == '?' || in_.counts()) return in_.error("nothing to repeat");
    return builder_.repeat(part, counts.min, counts.max);
  }

  absl::StatusOr<Expr> atom(int depth) {
    switch (in_.peek()) {
      case '(':
        return group(depth);
      case '[': {
        MOESAIC_ASSIGN_OR_RETURN(const CodePointRanges ranges, char_class());
        return characters(ranges);
      }
      case '.':
        in_.skip(1);
        return characters(complement({{'\n', '\n'}}));
      case '*':
      case '+':
      case '?':
        return in_.error("nothing to repeat");
      case '{':
        return in_.error("{ must start a count such as {2,5}; write \\{ for the character");
      case '^':
        return in_.error("^ is only possible at the start");
      case '$':
        return in_.error("$ is only possible at the end");
      case '\\': {
        MOESAIC_ASSIGN_OR_RETURN(const CodePointRanges ranges, escape(false));
        return characters(ranges);
      }
      default: {
        const uint32_t character = in_.next();
        return characters({{character, character}});
      }
    }
  }

  absl::StatusOr<Expr> group(int depth) {
    in_.skip(1);
    if (in_.peek() == '*') return in_.error("(*VERB) is not supported");
    if (in_.take("?")) {
      const bool looks_behind = in_.rest().starts_with("<=") || in_.rest().starts_with("<!");
      const bool named = in_.take("P<") || (!looks_behind && in_.take("<"));
      if (named) {
        const size_t end = in_.rest().find('>');
        if (end == std::string_view::npos || end == 0) return in_.error("the group's name has no end");
        in_.skip(end + 1);
      } else if (!in_.take(":")) {
        return in_.error("(?", in_.rest().substr(0, 1), " is not supported (look-around, flags, conditions)");
      }
    }
    MOESAIC_ASSIGN_OR_RETURN(const Expr expr, alternatives(depth + 1));
    if (!in_.take(")")) return in_.error("a ) is missing");
    return expr;
  }

  // At a backslash.
  absl::StatusOr<CodePointRanges> escape(bool in_class) {
    in_.skip(1);
    if (in_.at_end()) return in_.error("nothing follows the backslash");
    const uint32_t letter = in_.next();
    const auto one = [](uint32_t character) { return CodePointRanges{{character, character}}; };
    if (auto ranges = shorthand(letter)) return *ranges;
    static constexpr std::pair<char, char> kControls[] = {{'n', '\n'}, {'t', '\t'}, {'r', '\r'},
                                                          {'f', '\f'}, {'v', '\v'}, {'0', '\0'}};
    for (const auto& [name, character] : kControls) {
      if (letter == static_cast<uint32_t>(name)) {
        if (name == '0' && in_.peek() >= '0' && in_.peek() <= '9') return in_.error("octal escapes are not supported");
        return one(static_cast<uint8_t>(character));
      }
    }
    if (letter == 'b' && in_class) return one('\b');
    if (letter == 'x' || letter == 'u') return hex_escape(letter);
    const bool is_word =
        letter == '_' || (letter >= '0' && letter <= '9') || ((letter | 0x20) >= 'a' && (letter | 0x20) <= 'z');
    if (!is_word) return one(letter);
    return in_.error("\\", static_cast<char>(letter), " is not supported");
  }

  absl::StatusOr<CodePointRanges> hex_escape(uint32_t letter) {
    std::optional<uint32_t> value;
    if (in_.take("{")) {
      const size_t digits = in_.rest().find('}');
      if (digits >= 1 && digits <= 6) value = in_.hex(static_cast<int>(digits));
      if (value && !in_.take("}")) value.reset();
    } else {
      value = in_.hex(letter == 'x' ? 2 : 4);
    }
    if (!value) return in_.error("\\", static_cast<char>(letter), " needs hexadecimal digits");
    if (*value > 0x10FFFF || (*value >= 0xD800 && *value <= 0xDFFF)) return in_.error("no character has this number");
    return CodePointRanges{{*value, *value}};
  }

  absl::StatusOr<CodePointRanges> class_item() {
    if (in_.peek() == '\\') return escape(true);
    if (in_.rest().starts_with("[:") || in_.rest().starts_with("[.") || in_.rest().starts_with("[=")) {
      return in_.error("POSIX classes are not supported");
    }
    const uint32_t character = in_.next();
    return CodePointRanges{{character, character}};
  }

  absl::StatusOr<CodePointRanges> char_class() {
    in_.skip(1);
    const bool negated = in_.take("^");
    CodePointRanges ranges;
    for (bool first = true; first || in_.peek() != ']'; first = false) {
      if (in_.at_end()) return in_.error("a ] is missing");
      MOESAIC_ASSIGN_OR_RETURN(CodePointRanges item, class_item());
      if (in_.peek() == '-' && in_.rest().size() > 1 && in_.rest()[1] != ']') {
        const bool is_one = item.size() == 1 && item[0].first == item[0].second;
        in_.skip(1);
        MOESAIC_ASSIGN_OR_RETURN(const CodePointRanges high, class_item());
        if (!is_one || high.size() != 1 || high[0].first != high[0].second || high[0].first < item[0].first) {
          return in_.error("a range in a class is out of order or has no single character at an end");
        }
        item[0].second = high[0].first;
      }
      ranges.insert(ranges.end(), item.begin(), item.end());
    }
    in_.skip(1);
    ranges = normalized(std::move(ranges));
    return negated ? complement(ranges) : ranges;
  }

  CodePointReader in_;
  const RegexOptions& options_;
  GrammarBuilder& builder_;
};

}  // namespace

absl::StatusOr<Expr> regex_expr(std::string_view pattern, const RegexOptions& options, GrammarBuilder* builder) {
  if (pattern.size() > kMaxRegexBytes) {
    return absl::InvalidArgumentError(str_cat("has ", pattern.size(), " bytes, the limit is ", kMaxRegexBytes));
  }
  if (!is_valid_utf8(pattern)) return absl::InvalidArgumentError("is not valid UTF-8");
  return RegexReader(pattern, options, builder).read();
}

}  // namespace moesaic
