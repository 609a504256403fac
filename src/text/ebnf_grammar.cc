#include "text/ebnf_grammar.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "text/code_point_reader.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

using Expr = GrammarBuilder::Expr;

constexpr int kMaxDepth = 100;

bool is_name_char(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

class EbnfReader {
 public:
  EbnfReader(std::string_view text, GrammarBuilder* builder) : in_(text), builder_(*builder) {}

  absl::StatusOr<GrammarBuilder::Rule> read() {
    for (skip_space(); !in_.at_end(); skip_space()) MOESAIC_RETURN_IF_ERROR(rule());
    for (const auto& [name, entry] : rules_) {
      if (!entry.defined) return absl::InvalidArgumentError(str_cat("the rule ", name, " is used and not defined"));
    }
    const auto root = rules_.find("root");
    if (root == rules_.end()) return absl::InvalidArgumentError("has no rule called root");
    return root->second.rule;
  }

 private:
  struct Entry {
    GrammarBuilder::Rule rule;
    bool defined = false;
  };

  void skip_space() {
    while (!in_.at_end()) {
      if (in_.peek() == '#') {
        in_.skip(std::min(in_.rest().find('\n'), in_.rest().size()));
      } else if (std::string_view(" \t\r\n").find(in_.peek()) != std::string_view::npos) {
        in_.skip(1);
      } else {
        return;
      }
    }
  }

  std::string name() {
    size_t size = 0;
    while (size < in_.rest().size() && is_name_char(in_.rest()[size])) ++size;
    std::string out(in_.rest().substr(0, size));
    in_.skip(size);
    return out;
  }

  Entry& entry(const std::string& name) {
    const auto found = rules_.find(name);
    if (found != rules_.end()) return found->second;
    return rules_.emplace(name, Entry{builder_.new_rule(name)}).first->second;
  }

  // Whether a rule begins here: a name and `::=`.
  bool at_rule() const {
    EbnfReader ahead(*this, in_);
    return !ahead.name().empty() && (ahead.skip_space(), ahead.in_.take("::="));
  }

  absl::Status rule() {
    const std::string rule_name = name();
    if (rule_name.empty()) return in_.error("expected the name of a rule");
    skip_space();
    if (!in_.take("::=")) return in_.error("expected ::= after the name ", rule_name.substr(0, 64));
    if (entry(rule_name).defined) return in_.error("the rule ", rule_name.substr(0, 64), " is defined twice");
    entry(rule_name).defined = true;
    MOESAIC_ASSIGN_OR_RETURN(const Expr expr, alternatives(0));
    if (!in_.at_end() && !at_rule()) return in_.error("expected a rule, found ", in_.rest().substr(0, 1));
    builder_.define(entry(rule_name).rule, expr);
    return absl::OkStatus();
  }

  absl::StatusOr<Expr> alternatives(int depth) {
    if (depth > kMaxDepth) return in_.error("groups are nested deeper than ", kMaxDepth, " levels");
    std::vector<Expr> choices;
    do {
      MOESAIC_ASSIGN_OR_RETURN(const Expr choice, sequence(depth));
      choices.push_back(choice);
    } while (in_.take("|"));
    return builder_.alt(std::move(choices));
  }

  absl::StatusOr<Expr> sequence(int depth) {
    std::vector<Expr> parts;
    for (skip_space(); !in_.at_end() && in_.peek() != '|' && in_.peek() != ')'; skip_space()) {
      if (is_name_char(in_.peek()) && at_rule()) break;
      MOESAIC_ASSIGN_OR_RETURN(Expr part, atom(depth));
      MOESAIC_ASSIGN_OR_RETURN(part, quantified(part));
      parts.push_back(part);
    }
    return builder_.seq(std::move(parts));
  }

  absl::StatusOr<Expr> atom(int depth) {
    if (is_name_char(in_.peek())) return builder_.call(entry(name()).rule);
    if (in_.take(".")) return builder_.code_points({{0, 0x10FFFF}});
    if (in_.take("\"")) return literal();
    if (in_.take("[")) return char_class();
    if (!in_.take("("))
      return in_.error("expected a literal, a class, a group or a rule, found ", in_.rest().substr(0, 1));
    MOESAIC_ASSIGN_OR_RETURN(const Expr expr, alternatives(depth + 1));
    if (!in_.take(")")) return in_.error("a ) is missing");
    return expr;
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
    } else {
      return part;
    }
    if (counts.max != GrammarBuilder::kUnbounded && counts.max < counts.min) {
      return in_.error("the count {", counts.min, ",", counts.max, "} is out of order");
    }
    if (std::max(counts.min, counts.max) > GrammarBuilder::kMaxRepeat) {
      return in_.error("at most ", GrammarBuilder::kMaxRepeat, " repetitions are possible");
    }
    return builder_.repeat(part, counts.min, counts.max);
  }

  // A character of a literal or class, escaped or not.
  absl::StatusOr<uint32_t> character() {
    if (in_.peek() == '\n') return in_.error("a line ends inside a literal or class; write \\n");
    if (!in_.take("\\")) return in_.next();
    if (in_.at_end()) return in_.error("nothing follows the backslash");
    const uint32_t letter = in_.next();
    static constexpr std::pair<char, int> kHexDigits[] = {{'x', 2}, {'u', 4}, {'U', 8}};
    for (const auto& [name, digits] : kHexDigits) {
      if (letter != static_cast<uint32_t>(name)) continue;
      const std::optional<uint32_t> value = in_.hex(digits);
      if (!value) return in_.error("\\", name, " needs ", digits, " hexadecimal digits");
      if (*value > 0x10FFFF || (*value >= 0xD800 && *value <= 0xDFFF)) return in_.error("no character has this number");
      return *value;
    }
    if (letter == 'n') return '\n';
    if (letter == 't') return '\t';
    if (letter == 'r') return '\r';
    if (letter < 0x80 && std::string_view("\"'\\[]-^/").find(static_cast<char>(letter)) != std::string_view::npos) {
      return letter;
    }
    return in_.error("unknown escape after the backslash");
  }

  absl::StatusOr<Expr> literal() {
    std::string bytes;
    while (!in_.take("\"")) {
      if (in_.at_end()) return in_.error("a closing \" is missing");
      MOESAIC_ASSIGN_OR_RETURN(const uint32_t code_point, character());
      append_code_point(code_point, bytes);
    }
    return builder_.literal(bytes);
  }

  absl::StatusOr<Expr> char_class() {
    const bool negated = in_.take("^");
    CodePointRanges ranges;
    while (!in_.take("]")) {
      if (in_.at_end()) return in_.error("a ] is missing");
      MOESAIC_ASSIGN_OR_RETURN(const uint32_t low, character());
      uint32_t high = low;
      if (in_.peek() == '-' && in_.rest().size() > 1 && in_.rest()[1] != ']') {
        in_.skip(1);
        MOESAIC_ASSIGN_OR_RETURN(high, character());
        if (high < low) return in_.error("a range in a class is out of order");
      }
      ranges.emplace_back(low, high);
    }
    ranges = normalized(std::move(ranges));
    return builder_.code_points(negated ? complement(ranges) : ranges);
  }

  EbnfReader(const EbnfReader& other, const CodePointReader& in) : in_(in), builder_(other.builder_) {}

  CodePointReader in_;
  GrammarBuilder& builder_;
  std::map<std::string, Entry, std::less<>> rules_;
};

}  // namespace

absl::StatusOr<GrammarBuilder::Rule> ebnf_rule(std::string_view text, GrammarBuilder* builder) {
  if (text.size() > kMaxEbnfBytes) {
    return absl::InvalidArgumentError(str_cat("has ", text.size(), " bytes, the limit is ", kMaxEbnfBytes));
  }
  if (!is_valid_utf8(text)) return absl::InvalidArgumentError("is not valid UTF-8");
  return EbnfReader(text, builder).read();
}

}  // namespace moesaic
