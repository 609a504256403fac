#include "text/grammar_builder.h"

#include <algorithm>
#include <cstring>

#include "text/utf8.h"

namespace moesaic {
namespace {

constexpr uint32_t kMaxCodePoint = 0x10FFFF;
constexpr int kMaxExprDepth = 2'000;
constexpr int32_t kEndNode = 0;

uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9E3779B97F4A7C15ull;
  return hash ^ (hash >> 29);
}

// Splits [low, high], which have the same UTF-8 length and no surrogates, so that each piece is a product of byte
// ranges.
void add_utf8_sequences(uint32_t low, uint32_t high, std::vector<std::vector<ByteSet>>& out) {
  for (const int bits : {6, 12, 18}) {
    const uint32_t mask = (1u << bits) - 1;
    if ((low & ~mask) == (high & ~mask)) continue;
    if ((low & mask) != 0) {
      add_utf8_sequences(low, low | mask, out);
      return add_utf8_sequences((low | mask) + 1, high, out);
    }
    if ((high & mask) != mask) {
      add_utf8_sequences(low, (high & ~mask) - 1, out);
      return add_utf8_sequences(high & ~mask, high, out);
    }
  }
  std::string first;
  std::string last;
  append_code_point(low, first);
  append_code_point(high, last);
  std::vector<ByteSet> sequence(first.size());
  for (size_t i = 0; i < first.size(); ++i) {
    for (int byte = static_cast<uint8_t>(first[i]); byte <= static_cast<uint8_t>(last[i]); ++byte)
      sequence[i].set(byte);
  }
  out.push_back(std::move(sequence));
}

}  // namespace

CodePointRanges normalized(CodePointRanges ranges) {
  std::sort(ranges.begin(), ranges.end());
  CodePointRanges out;
  const auto add = [&](uint32_t low, uint32_t high) {
    if (low > high) return;
    if (!out.empty() && low <= out.back().second + 1 && !(out.back().second == 0xD7FF && low == 0xE000)) {
      out.back().second = std::max(out.back().second, high);
    } else {
      out.emplace_back(low, high);
    }
  };
  for (auto [low, high] : ranges) {
    high = std::min(high, kMaxCodePoint);
    add(low, std::min(high, 0xD7FFu));
    add(std::max(low, 0xE000u), high);
  }
  return out;
}

CodePointRanges complement(const CodePointRanges& ranges) {
  CodePointRanges out;
  uint32_t next = 0;
  for (const auto& [low, high] : ranges) {
    if (low > next) out.emplace_back(next, low - 1);
    next = high + 1;
  }
  if (next <= kMaxCodePoint) out.emplace_back(next, kMaxCodePoint);
  return normalized(std::move(out));
}

bool GrammarBuilder::SetLess::operator()(const ByteSet& a, const ByteSet& b) const {
  return std::memcmp(&a, &b, sizeof a) < 0;
}

GrammarBuilder::Expr GrammarBuilder::add(ExprNode node) {
  if (exprs_.size() + node.parts.size() >= 2 * kMaxNodes) {
    too_large_ = true;
    return 0;
  }
  exprs_.push_back(std::move(node));
  return static_cast<Expr>(exprs_.size()) - 1;
}

GrammarBuilder::Expr GrammarBuilder::tag(std::string_view text) {
  return alt({literal(text), seq({bytes(ByteSet().set(kSpecialByte)), literal(text)})});
}

GrammarBuilder::Expr GrammarBuilder::bytes(const ByteSet& set) {
  const auto [found, is_new] = set_ids_.try_emplace(set, static_cast<int32_t>(sets_.size()));
  if (is_new) sets_.push_back(set);
  return add({.type = Type::kBytes, .arg = found->second});
}

GrammarBuilder::Expr GrammarBuilder::literal(std::string_view text) {
  std::vector<Expr> parts;
  for (const char c : text) {
    if (too_large_) break;
    parts.push_back(bytes(ByteSet().set(static_cast<uint8_t>(c))));
  }
  return parts.size() == 1 ? parts[0] : seq(std::move(parts));
}

GrammarBuilder::Expr GrammarBuilder::code_points(const CodePointRanges& ranges) {
  ByteSet ascii;
  std::vector<std::vector<ByteSet>> sequences;
  for (auto [low, high] : normalized(ranges)) {
    for (; low <= high && low < 0x80; ++low) ascii.set(low);
    for (const uint32_t border : {0x7FFu, 0xFFFFu, kMaxCodePoint}) {
      if (low > high || low > border) continue;
      add_utf8_sequences(low, std::min(high, border), sequences);
      low = border + 1;
    }
  }
  std::vector<Expr> choices;
  if (ascii.any()) choices.push_back(bytes(ascii));
  for (const auto& sequence : sequences) {
    std::vector<Expr> parts;
    for (const ByteSet& set : sequence) parts.push_back(bytes(set));
    choices.push_back(seq(std::move(parts)));
  }
  return alt(std::move(choices));
}

GrammarBuilder::Expr GrammarBuilder::seq(std::vector<Expr> parts) {
  return parts.size() == 1 ? parts[0] : add({.type = Type::kSeq, .parts = std::move(parts)});
}

GrammarBuilder::Expr GrammarBuilder::alt(std::vector<Expr> choices) {
  return choices.size() == 1 ? choices[0] : add({.type = Type::kAlt, .parts = std::move(choices)});
}

GrammarBuilder::Expr GrammarBuilder::repeat(Expr expr, int min, int max) {
  if (min > kMaxRepeat || max > kMaxRepeat) too_large_ = true;
  return add({.type = Type::kRepeat, .arg = expr, .min = min, .max = max});
}

GrammarBuilder::Expr GrammarBuilder::call(Rule rule) {
  return add({.type = Type::kCall, .arg = rule});
}

GrammarBuilder::Rule GrammarBuilder::new_rule(std::string name, bool frame) {
  rules_.push_back({.name = std::move(name), .frame = frame});
  return static_cast<Rule>(rules_.size()) - 1;
}

int32_t GrammarBuilder::add_node(Grammar::Kind kind, int32_t arg, int32_t next) {
  if (out_.nodes_.size() >= kMaxNodes) {
    too_large_ = true;
    return kEndNode;
  }
  out_.nodes_.push_back({.kind = kind, .arg = arg, .next = next});
  return static_cast<int32_t>(out_.nodes_.size()) - 1;
}

int32_t GrammarBuilder::split(std::vector<int32_t> targets) {
  if (targets.size() == 1) return targets[0];
  const auto first = static_cast<int32_t>(out_.edges_.size());
  const auto count = static_cast<int32_t>(targets.size());
  out_.edges_.insert(out_.edges_.end(), targets.begin(), targets.end());
  if (out_.edges_.size() > 4 * kMaxNodes) too_large_ = true;
  return add_node(Grammar::Kind::kSplit, first, count);
}

int32_t GrammarBuilder::emit_call(Rule rule, int32_t next) {
  return add_node(next == kEndNode ? Grammar::Kind::kTailCall : Grammar::Kind::kCall, rule, next);
}

// What costs one node a copy.
GrammarBuilder::Expr GrammarBuilder::repeatable(Expr expr) {
  if (exprs_[expr].type == Type::kBytes || exprs_[expr].type == Type::kCall) return expr;
  const auto [found, is_new] = repeated_.try_emplace(expr, -1);
  if (is_new) {
    found->second = new_rule("(repeated)");
    define(found->second, expr);
  }
  return call(found->second);
}

int32_t GrammarBuilder::emit_repeat(const ExprNode& node, int32_t next, int depth) {
  const int copies = node.max == kUnbounded ? node.min + 1 : node.max;
  const Expr part = copies > 1 ? repeatable(node.arg) : node.arg;
  int32_t start = next;
  if (node.max == kUnbounded) {
    // The loop: its node is made first, so that the part can lead back to it.
    const auto first = static_cast<int32_t>(out_.edges_.size());
    out_.edges_.insert(out_.edges_.end(), {kEndNode, next});
    start = add_node(Grammar::Kind::kSplit, first, 2);
    const int32_t body = emit(part, start, depth);
    out_.edges_[first] = body;
  }
  for (int i = node.min; i < node.max && !too_large_; ++i) start = split({emit(part, start, depth), next});
  for (int i = 0; i < node.min && !too_large_; ++i) start = emit(part, start, depth);
  return start;
}

// The nodes of an expression that is followed by `next`.
int32_t GrammarBuilder::emit(Expr expr, int32_t next, int depth) {
  if (too_large_ || too_deep_) return next;
  if (depth > kMaxExprDepth) {
    too_deep_ = true;
    return next;
  }
  const ExprNode node = exprs_[expr];  // a copy: helper rules grow the list
  switch (node.type) {
    case Type::kBytes:
      return add_node(Grammar::Kind::kBytes, node.arg, next);
    case Type::kCall:
      return emit_call(node.arg, next);
    case Type::kRepeat:
      return emit_repeat(node, next, depth + 1);
    case Type::kSeq:
      for (auto part = node.parts.rbegin(); part != node.parts.rend(); ++part) next = emit(*part, next, depth + 1);
      return next;
    case Type::kAlt:
      break;
  }
  std::vector<int32_t> targets;
  for (const Expr part : node.parts) targets.push_back(emit(part, next, depth + 1));
  return split(std::move(targets));
}

absl::Status GrammarBuilder::emit_rules() {
  out_.nodes_.push_back({});                    // kEndNode
  for (size_t i = 0; i < rules_.size(); ++i) {  // emitting adds helper rules
    if (rules_[i].expr < 0) return absl::InvalidArgumentError(str_cat("the rule ", rules_[i].name, " is not defined"));
    const auto begin = static_cast<int32_t>(out_.nodes_.size());
    const int32_t start = emit(rules_[i].expr, kEndNode, 0);
    if (too_deep_) return absl::InvalidArgumentError(str_cat("is nested deeper than ", kMaxExprDepth, " levels"));
    if (too_large_) {
      return absl::InvalidArgumentError(str_cat("is too large: at most ", kMaxNodes,
                                                " states and repetitions of at most ", kMaxRepeat, " are possible"));
    }
    const auto end = static_cast<int32_t>(out_.nodes_.size());
    for (int32_t node = begin; node < end; ++node) out_.nodes_[node].frame = rules_[i].frame;
    rules_[i].begin = begin;
    rules_[i].end = end;
    rules_[i].start = start;
  }
  return absl::OkStatus();
}

void GrammarBuilder::resolve_calls() {
  for (Grammar::Node& node : out_.nodes_) {
    if (node.kind == Grammar::Kind::kCall || node.kind == Grammar::Kind::kTailCall) node.arg = rules_[node.arg].start;
  }
}

const std::string& GrammarBuilder::rule_name_at(int32_t node) const {
  static const std::string kNone;
  for (const RuleEntry& rule : rules_) {
    if (node >= rule.begin && node < rule.end) return rule.name;
  }
  return kNone;
}

// Any text that ends with the first `tag`: the automaton of Knuth, Morris and Pratt, a rule a state.
GrammarBuilder::Rule GrammarBuilder::after_tag(Rule root, std::string_view tag) {
  std::vector<Rule> states;
  for (size_t i = 0; i < tag.size(); ++i) states.push_back(new_rule("(before the tag)"));
  states.push_back(root);
  for (size_t matched = 0; matched < tag.size(); ++matched) {
    std::map<size_t, ByteSet> next;
    for (int byte = 0; byte < kSpecialByte; ++byte) {
      const std::string seen = str_cat(tag.substr(0, matched), static_cast<char>(byte));
      size_t length = std::min(seen.size(), tag.size());
      while (!std::string_view(seen).ends_with(tag.substr(0, length))) --length;
      next[length].set(byte);
    }
    std::vector<Expr> choices;
    for (const auto& [length, set] : next) choices.push_back(seq({bytes(set), call(states[length])}));
    define(states[matched], alt(std::move(choices)));
  }
  return states[0];
}

void GrammarBuilder::make_byte_classes() {
  std::array<int32_t, 256> classes{};
  int32_t count = 1;
  for (const ByteSet& set : sets_) {
    if (count == 256) break;
    std::array<int32_t, 512> parts;  // by old class and membership
    parts.fill(-1);
    count = 0;
    for (int byte = 0; byte < 256; ++byte) {
      int32_t& part = parts[2 * classes[byte] + set.test(byte)];
      if (part < 0) part = count++;
      classes[byte] = part;
    }
  }
  out_.num_byte_classes_ = count;
  for (int byte = 0; byte < 256; ++byte) out_.byte_class_[byte] = static_cast<uint8_t>(classes[byte]);
  for (const ByteSet& set : sets_) {
    ByteSet& of_classes = out_.sets_.emplace_back();
    for (int byte = 0; byte < 256; ++byte) {
      if (set.test(byte)) of_classes.set(classes[byte]);
    }
  }
}

void GrammarBuilder::make_hash() {
  uint64_t hash = static_cast<uint64_t>(out_.start_);
  for (const Grammar::Node& node : out_.nodes_) {
    hash = mix(hash, static_cast<uint64_t>(node.kind) << 32 | static_cast<uint32_t>(node.arg));
    hash = mix(hash, static_cast<uint64_t>(node.next));
  }
  for (const uint8_t byte_class : out_.byte_class_) hash = mix(hash, byte_class);
  out_.hash_ = hash;
}

absl::StatusOr<std::shared_ptr<const Grammar>> GrammarBuilder::build(Rule root, std::string_view tag) {
  if (!tag.empty()) root = after_tag(root, tag);
  MOESAIC_RETURN_IF_ERROR(emit_rules());
  resolve_calls();
  out_.start_ = rules_[root].start;
  const std::vector<bool> productive = reaches_end(/*through_bytes=*/true);
  if (!productive[out_.start_]) return absl::InvalidArgumentError("matches no text at all");
  prune(productive);
  MOESAIC_RETURN_IF_ERROR(check_recursion(reaches_end(/*through_bytes=*/false)));
  make_byte_classes();
  make_hash();
  return std::shared_ptr<const Grammar>(new Grammar(std::move(out_)));
}

}  // namespace moesaic
