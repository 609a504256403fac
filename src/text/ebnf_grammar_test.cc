#include "text/ebnf_grammar.h"

#include <map>
#include <set>

#include "text/grammar_test_util.h"

namespace moesaic {
namespace {

// A random grammar over the letters a and b as a tree, written as EBNF, and recognised in the most naive way.
struct Tree {
  enum class Type { kText, kRule, kSeq, kAlt, kRepeat } type = Type::kText;
  std::string text;
  int rule = 0;
  int min = 0;
  int max = -1;
  std::vector<Tree> parts;
};

Tree random_tree(Rng& rng, int num_rules, int depth) {
  const uint64_t kind = depth == 0 ? rng.below(5) : rng.below(10);
  if (kind < 4) {
    Tree tree;
    for (uint64_t n = rng.below(3) + (kind > 0); n > 0; --n) tree.text += rng.below(2) == 0 ? 'a' : 'b';
    return tree;
  }
  if (kind == 4) return {.type = Tree::Type::kRule, .rule = static_cast<int>(rng.below(num_rules))};
  if (kind == 5) {
    const int min = static_cast<int>(rng.below(3));
    const int max = rng.below(2) == 0 ? -1 : min + static_cast<int>(rng.below(3));
    return {.type = Tree::Type::kRepeat, .min = min, .max = max, .parts = {random_tree(rng, num_rules, depth - 1)}};
  }
  Tree tree{.type = kind < 8 ? Tree::Type::kSeq : Tree::Type::kAlt};
  for (uint64_t n = 1 + rng.below(3); n > 0; --n) tree.parts.push_back(random_tree(rng, num_rules, depth - 1));
  return tree;
}

std::string written(const Tree& tree) {
  std::string out = tree.type == Tree::Type::kText ? str_cat('"', tree.text, '"') : "(";
  if (tree.type == Tree::Type::kText) return out;
  if (tree.type == Tree::Type::kRule) return tree.rule == 0 ? "root" : str_cat('r', tree.rule);
  for (size_t i = 0; i < tree.parts.size(); ++i) {
    out += str_cat(i > 0 && tree.type == Tree::Type::kAlt ? " | " : " ", written(tree.parts[i]));
  }
  out += ")";
  if (tree.type != Tree::Type::kRepeat) return out;
  return tree.max < 0 ? str_cat(out, "{", tree.min, ",}") : str_cat(out, "{", tree.min, ",", tree.max, "}");
}

class Naive {
 public:
  Naive(const std::vector<Tree>& rules, std::string text) : rules_(rules), text_(std::move(text)) {}
  bool is_word() { return rule_ends(0, 0).contains(text_.size()); }

 private:
  using Ends = std::set<size_t>;
  // A rule inside itself at the same place adds nothing.
  Ends rule_ends(int rule, size_t begin) {
    const auto key = std::make_pair(rule, begin);
    if (!open_.insert(key).second) return {};
    const Ends out = ends(rules_[rule], begin);
    open_.erase(key);
    return out;
  }
  Ends ends(const Tree& tree, size_t begin) {
    switch (tree.type) {
      case Tree::Type::kText:
        return text_.compare(begin, tree.text.size(), tree.text) == 0 ? Ends{begin + tree.text.size()} : Ends{};
      case Tree::Type::kRule:
        return rule_ends(tree.rule, begin);
      case Tree::Type::kAlt: {
        Ends out;
        for (const Tree& part : tree.parts) out.merge(ends(part, begin));
        return out;
      }
      case Tree::Type::kSeq: {
        Ends at = {begin};
        for (const Tree& part : tree.parts) at = after(part, at);
        return at;
      }
      case Tree::Type::kRepeat:
        break;
    }
    Ends out;
    Ends at = {begin};
    // Rounds beyond the text's length and the minimum add nothing new.
    const int rounds = tree.max < 0 ? tree.min + static_cast<int>(text_.size()) : tree.max;
    for (int i = 0; i <= rounds; ++i) {
      if (i >= tree.min) out.insert(at.begin(), at.end());
      at = after(tree.parts[0], at);
    }
    return out;
  }
  Ends after(const Tree& tree, const Ends& begins) {
    Ends out;
    for (const size_t begin : begins) out.merge(ends(tree, begin));
    return out;
  }

  const std::vector<Tree>& rules_;
  std::string text_;
  std::set<std::pair<int, size_t>> open_;
};

std::vector<std::string> texts_up_to(size_t length) {
  std::vector<std::string> out = {""};
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i].size() == length) break;
    out.push_back(out[i] + "a");
    out.push_back(out[i] + "b");
  }
  return out;
}

TEST(EbnfGrammarTest, AgreesWithANaiveRecognizer) {
  const std::vector<std::string> texts = texts_up_to(6);
  int num_checked = 0;
  int num_far = 0;  // prefixes whose words are too long for the naive way
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    Rng rng(seed);
    std::vector<Tree> rules;
    for (int rule = 0; rule < 3; ++rule) rules.push_back(random_tree(rng, 3, 3));
    const std::string text =
        str_cat("root ::= ", written(rules[0]), "\nr1 ::= ", written(rules[1]), "\nr2 ::= ", written(rules[2]), "\n");
    SCOPED_TRACE(str_cat("seed ", seed, "\n", text));
    const auto grammar = ebnf_grammar(text);
    if (!grammar.ok()) {
      const std::string message(grammar.status().message());
      if (message.find("left-recursive") != message.npos) continue;
      ASSERT_EQ(message, "matches no text at all");
      for (const std::string& word : texts) ASSERT_FALSE(Naive(rules, word).is_word()) << word;
      continue;
    }
    ++num_checked;
    Recognizer recognizer(*grammar);
    std::set<std::string> prefixes;  // of words that were seen
    for (const std::string& word : texts) {
      const bool is_word = Naive(rules, word).is_word();
      ASSERT_EQ(recognizer.is_word(word), is_word) << word;
      for (size_t size = 0; is_word && size <= word.size(); ++size) prefixes.insert(word.substr(0, size));
    }
    for (const std::string& prefix : texts) {
      if (prefix.size() > 4) break;
      if (!recognizer.is_prefix(prefix)) {
        ASSERT_FALSE(prefixes.contains(prefix)) << prefix;
      } else if (!prefixes.contains(prefix)) {
        const std::string word = recognizer.completed(prefix);
        num_far += word == "?" || word.size() > 24;
        ASSERT_TRUE(word == "?" || word.size() > 24 || (word.starts_with(prefix) && Naive(rules, word).is_word()))
            << prefix << " " << word;
      }
    }
  }
  EXPECT_LT(num_far, 100);
  EXPECT_GT(num_checked, 200);
}

TEST(EbnfGrammarTest, Syntax) {
  Recognizer recognizer(
      *ebnf_grammar("# a comment\r\nroot ::= \"a\\n\\\"\\x41\" [^a-z\\]\\-] item* # more\n   tail\n"
                    "item ::=\n  \"x\" | (\"y\" \"z\")+\ntail ::= . [\\u00e9-\\u00ff\\U0001F600]? | \"\""));
  for (const char* word : {"a\n\"A0", "a\n\"A0xyzyzx", "a\n\"A世😀", "a\n\"AZq\u00e9", "a\n\"AZé😀"}) {
    EXPECT_TRUE(recognizer.is_word(word)) << word;
  }
  for (const char* word : {"a\n\"Aa", "a\n\"A]", "a\n\"A-", "a\n\"A", "a\n\"A0qq"}) {
    EXPECT_FALSE(recognizer.is_word(word)) << word;
  }
  // Characters are cut anywhere, never wrong.
  EXPECT_TRUE(recognizer.is_prefix("a\n\"A\xE4\xB8"));
  EXPECT_FALSE(recognizer.is_prefix("a\n\"A\xE4\x28") || recognizer.is_prefix("a\n\"A\xFF") ||
               recognizer.is_prefix("a\n\"A\xED\xA0"));
}

TEST(EbnfGrammarTest, Errors) {
  const std::map<std::string, std::string> wrong = {
      {"", "no rule called root"},
      {"root = \"a\"", "byte 5: expected ::="},
      {"root ::= a", "the rule a is used and not defined"},
      {"root ::= \"a", "closing \" is missing"},
      {"root ::= [a", "a ] is missing"},
      {"root ::= (\"a\"", "a ) is missing"},
      {"root ::= \"a\" )", "expected a rule, found )"},
      {"root ::= [b-a]", "out of order"},
      {"root ::= \"a\"{3,2}", "out of order"},
      {"root ::= \"a\"{20000}", "10000 repetitions"},
      {"root ::= \"\\q\"", "unknown escape"},
      {"root ::= \"\\ud800\"", "no character has this number"},
      {"root ::= \"a\"\nroot ::= \"b\"", "defined twice"},
      {"root ::= root \"a\" | \"b\"", "left-recursive: root"},
      {"root ::= a \"x\"\na ::= \"\" root | \"b\"", "left-recursive"},
      {"root ::= \"a\" root", "matches no text"},
      {"root ::= \"\xFF\"", "not valid UTF-8"},
      {"root ::= " + std::string(5000, '('), "nested deeper"},
  };
  for (const auto& [text, message] : wrong) {
    const auto grammar = ebnf_grammar(text);
    ASSERT_FALSE(grammar.ok()) << text;
    EXPECT_NE(grammar.status().message().find(message), std::string::npos) << grammar.status();
  }
  std::string many = "root ::= \"x\"";
  for (int i = 0; i < 60; ++i) many += " \"a\"{9999}";
  EXPECT_NE(ebnf_grammar(many).status().message().find("too large"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
