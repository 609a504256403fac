#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/regex_grammar.h"

#include <pcre2.h>

#include <map>

#include "text/grammar_test_util.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

// The same pattern in PCRE2: whole matches, and what may still become one.
class Peer {
 public:
  explicit Peer(const std::string& pattern) {
    const std::string whole = "\\A(?:" + pattern + ")\\z";
    int error = 0;
    PCRE2_SIZE offset = 0;
    code_ =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(whole.data()), whole.size(), PCRE2_UTF, &error, &offset, nullptr);
    EXPECT_NE(code_, nullptr) << pattern << " " << error << " at " << offset;
    data_ = pcre2_match_data_create(1, nullptr);
  }
  ~Peer() {
    pcre2_match_data_free(data_);
    pcre2_code_free(code_);
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  bool is_word(std::string_view text) const { return match(text, 0) >= 0; }
  // PCRE2 calls no empty text partial.
  bool is_prefix(std::string_view text) const {
    return text.empty() || match(text, PCRE2_PARTIAL_HARD) == PCRE2_ERROR_PARTIAL;
  }

 private:
  int match(std::string_view text, uint32_t options) const {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0, options, data_, nullptr);
  }
  pcre2_code* code_ = nullptr;
  pcre2_match_data* data_ = nullptr;
};

std::string random_regex(Rng& rng, int depth) {
  static constexpr const char* kAtoms[] = {
      "a",   "b",     "é",      "1",         ".",         "\\d", "\\w",  "\\s", "\\D", "[ab]", "[^a1]",   "[a-é]",
      "\\.", "\\x41", "[\\w-]", "\\x{4E16}", "[^\\W\\d]", "ab",  "[]a]", "\\n", "\\S", "[^é]", "[\\s\\d]"};
  const uint64_t kind = depth == 0 ? 0 : rng.below(8);
  if (kind < 2) return kAtoms[rng.below(std::size(kAtoms))];
  if (kind < 4) return random_regex(rng, depth - 1) + random_regex(rng, depth - 1);
  const std::string inner = random_regex(rng, depth - 1);
  if (kind == 4) return str_cat("(?:", inner, "|", random_regex(rng, depth - 1), ")");
  if (kind == 5) return str_cat("(", inner, "|)");
  static constexpr const char* kCounts[] = {"*", "+", "?", "{2}", "{1,}", "{0,2}", "*?", "+?", "{0,1}?", "{3,5}"};
  return str_cat("(?:", inner, ")", kCounts[rng.below(std::size(kCounts))]);
}

std::string random_text(Rng& rng) {
  static constexpr const char* kLetters[] = {"a", "b", "é", "1", " ", "A", "世", ".", "-", "\n", "_", "]"};
  std::string out;
  for (uint64_t n = rng.below(6); n > 0; --n) out += kLetters[rng.below(std::size(kLetters))];
  return out;
}

TEST(RegexGrammarTest, AgreesWithPcre2) {
  int num_words = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Rng rng(seed);
    const std::string pattern = random_regex(rng, 4);
    SCOPED_TRACE(str_cat("seed ", seed, " ", pattern));
    const auto grammar = regex_grammar(pattern);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    Recognizer recognizer(*grammar);
    const Peer peer(pattern);
    std::vector<std::string> texts;
    for (int i = 0; i < 20; ++i) texts.push_back(random_text(rng));
    for (int i = 0; i < 5; ++i) {
      const std::string word = recognizer.random_word(rng, rng.below(12));
      ASSERT_TRUE(is_valid_utf8(word) && peer.is_word(word)) << word;
      ++num_words;
      for (size_t size = 0; size <= word.size(); ++size) {
        ASSERT_TRUE(recognizer.is_prefix(word.substr(0, size)));
        texts.push_back(word.substr(0, size));
      }
    }
    for (const std::string& text : texts) {
      if (!is_valid_utf8(text)) continue;
      ASSERT_EQ(recognizer.is_word(text), peer.is_word(text)) << text;
      ASSERT_EQ(recognizer.is_prefix(text), peer.is_prefix(text)) << text;
    }
  }
  EXPECT_EQ(num_words, 2000);
}

TEST(RegexGrammarTest, AnchorsAtTheEndsMeanNothingNew) {
  for (const char* pattern : {"^ab|cd$", "ab|cd", "^(?:ab|cd)$", "\\Aab|cd\\z", "(?<x>ab)|(?P<y>cd)"}) {
    Recognizer recognizer(*regex_grammar(pattern));
    EXPECT_TRUE(recognizer.is_word("ab") && recognizer.is_word("cd") && !recognizer.is_word("abcd")) << pattern;
  }
}

TEST(RegexGrammarTest, WhatIsNotKnownIsNamed) {
  const std::map<std::string, std::string> wrong = {
      {"a(?=b)", "(?= is not supported"},
      {"(?<!a)b", "(?< is not supported"},
      {"(?i)a", "(?i is not supported"},
      {"(a)\\1", "\\1 is not supported"},
      {"\\bword", "\\b is not supported"},
      {"\\p{L}", "\\p is not supported"},
      {"a++", "possessive"},
      {"a**", "nothing to repeat"},
      {"*a", "nothing to repeat"},
      {"a{2,1}", "out of order"},
      {"a{,2}", "start a count"},
      {"a{99999}", "10000 repetitions"},
      {"[b-a]", "out of order"},
      {"[a", "a ] is missing"},
      {"(a", "a ) is missing"},
      {"a)", "has no ("},
      {"a^b", "only possible at the start"},
      {"a$b", "only possible at the end"},
      {"(^a)", "only possible at the start"},
      {"[[:alpha:]]", "POSIX"},
      {"\\", "nothing follows"},
      {"\\x1", "hexadecimal"},
      {"\\uD800", "no character"},
      {"[^\\x{0}-\\x{10FFFF}]", "matches no text"},
      {"\xFF", "not valid UTF-8"},
      {std::string(5000, '('), "nested deeper"},
      {"((((a{999}b){999}c){999}d){999}e|" + std::string(70'000, 'x'), "65536"},
  };
  for (const auto& [pattern, message] : wrong) {
    const auto grammar = regex_grammar(pattern);
    ASSERT_FALSE(grammar.ok()) << pattern;
    EXPECT_NE(grammar.status().message().find(message), std::string::npos) << pattern << " " << grammar.status();
  }
  std::string many;
  for (int i = 0; i < 40; ++i) many += "d{9000}";
  EXPECT_NE(regex_grammar(many).status().message().find("too large"), std::string::npos);
}

}  // namespace
}  // namespace moesaic
