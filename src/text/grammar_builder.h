// GrammarBuilder: expressions and rules in, a Grammar out. Used by the readers of JSON schemas, regexes and EBNF.
// Expressions are handles into the builder and may be used more than once. One thread.
//
//   GrammarBuilder b;
//   const auto list = b.new_rule("list");
//   b.define(list, b.seq({b.literal("["), b.repeat(b.call(list), 0, GrammarBuilder::kUnbounded), b.literal("]")}));
//   absl::StatusOr<std::shared_ptr<const Grammar>> grammar = b.build(list);   // balanced brackets
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/grammar.h"

namespace moesaic {

// Closed ranges of code points.
using CodePointRanges = std::vector<std::pair<uint32_t, uint32_t>>;
// Sorted, disjoint, without surrogates and what is above U+10FFFF.
CodePointRanges normalized(CodePointRanges ranges);
// What is not in `ranges`, which are normalized.
CodePointRanges complement(const CodePointRanges& ranges);

class GrammarBuilder {
 public:
  using Expr = int32_t;
  using Rule = int32_t;
  static constexpr int kUnbounded = -1;
  static constexpr int kMaxRepeat = 10'000;
  static constexpr size_t kMaxNodes = 200'000;

  Expr empty() { return seq({}); }
  Expr literal(std::string_view bytes);
  Expr tag(std::string_view text);  // as text, or as the special token of that text
  Expr bytes(const ByteSet& set);
  // UTF-8 of the code points.
  Expr code_points(const CodePointRanges& ranges);
  Expr seq(std::vector<Expr> parts);
  Expr alt(std::vector<Expr> choices);  // of none: matches nothing
  // min .. max times. Counts above kMaxRepeat make build() fail.
  Expr repeat(Expr expr, int min, int max);
  Expr optional(Expr expr) { return repeat(expr, 0, 1); }
  Expr call(Rule rule);

  // `frame`: see Grammar::Node; true for rules that are long and called from many places, such as a string.
  Rule new_rule(std::string name, bool frame = false);
  void define(Rule rule, Expr expr) { rules_[rule].expr = expr; }
  bool too_large() const { return too_large_; }

  // The texts of `root`. With `tag`: any text up to the first `tag`, the tag, then a text of `root`. INVALID_ARGUMENT
  // if it has no text at all, is left-recursive, nested too deeply or too large.
  absl::StatusOr<std::shared_ptr<const Grammar>> build(Rule root, std::string_view tag = "");

 private:
  enum class Type : uint8_t { kBytes, kSeq, kAlt, kRepeat, kCall };
  struct ExprNode {
    Type type;
    int32_t arg = 0;  // byte set, rule, or the repeated expression
    int min = 0;
    int max = 0;
    std::vector<Expr> parts;
  };
  struct RuleEntry {
    std::string name;
    bool frame = false;
    Expr expr = -1;
    int32_t begin = 0;  // its nodes, [begin, end)
    int32_t end = 0;
    int32_t start = 0;
  };
  struct SetLess {
    bool operator()(const ByteSet& a, const ByteSet& b) const;
  };

  Expr add(ExprNode node);
  Rule after_tag(Rule root, std::string_view tag);
  int32_t add_node(Grammar::Kind kind, int32_t arg, int32_t next);
  int32_t split(std::vector<int32_t> targets);
  int32_t emit(Expr expr, int32_t next, int depth);
  int32_t emit_repeat(const ExprNode& node, int32_t next, int depth);
  int32_t emit_call(Rule rule, int32_t next);
  Expr repeatable(Expr expr);
  absl::Status emit_rules();
  void resolve_calls();
  // Nodes from which the end of their rule is reached, through bytes or without.
  std::vector<bool> reaches_end(bool through_bytes) const;
  void prune(const std::vector<bool>& productive);
  absl::Status check_recursion(const std::vector<bool>& nullable);
  const std::string& rule_name_at(int32_t node) const;
  void make_byte_classes();
  void make_hash();

  std::vector<ExprNode> exprs_;
  std::vector<ByteSet> sets_;
  std::map<ByteSet, int32_t, SetLess> set_ids_;
  std::vector<RuleEntry> rules_;
  std::map<Expr, Rule> repeated_;  // helper rules of repeated expressions
  bool too_large_ = false;
  bool too_deep_ = false;
  Grammar out_;
};

}  // namespace moesaic
