#include "text/grammar_matcher.h"

#include <algorithm>
#include <cstdio>

#include "base/clock.h"
#include "text/grammar_test_util.h"
#include "text/text_test_util.h"

namespace moesaic {
namespace {

constexpr std::string_view kPerson = R"({"type":"object","properties":{
  "name":{"type":"string","maxLength":40},"age":{"type":"integer","minimum":0,"maximum":130},
  "tags":{"type":"array","items":{"enum":["red","green","blue"]},"maxItems":5},
  "home":{"type":"object","properties":{"city":{"type":"string"},"zip":{"type":"string","pattern":"^[0-9]{5}$"}},
          "required":["city"]}},"required":["name","age"]})";
constexpr std::string_view kPersonText =
    "{\"name\": \"Zoë \\\"Z\\\" 世界\", \"age\": 42, \"tags\": [\"red\", \"blue\"], "
    "\"home\": {\n  \"city\": \"Oslo\", \"zip\": \"01234\"}}";

// The definition, token by token.
std::vector<uint64_t> brute_force_mask(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  Recognizer recognizer(grammar);
  const Tokenizer& tokenizer = demo_tokenizer();
  std::vector<uint64_t> mask(kDemoVocabSize / 64, 0);
  for (int32_t id = 0; id < tokenizer.size(); ++id) {
    if (tokenizer.is_special(id) || tokenizer.token_bytes(id).empty()) continue;
    if (recognizer.is_prefix(text + std::string(tokenizer.token_bytes(id)))) mask[id >> 6] |= uint64_t{1} << (id & 63);
  }
  return mask;
}

struct Case {
  const char* name;
  absl::StatusOr<std::shared_ptr<const Grammar>> grammar;
  std::string text;
};

std::vector<Case> cases() {
  return {
      {"schema", schema_grammar(kPerson), std::string(kPersonText)},
      {"object", output_grammar({.kind = OutputFormat::Kind::kJsonObject}),
       "{\"a\": [1, -2.5e+3, {\"b\": null}], \"c\": {\"d\": [[], \"\\u00e9\"]}}"},
      {"regex", regex_grammar(R"(([A-Z][a-z]+ )*is \d{1,3}(\.\d+)? years?)"), "Once Upon The King is 42.5 years"},
      {"ebnf",
       ebnf_grammar("root ::= term ([-+] term)* # sums\nterm ::= fac ([*/] fac)*\n"
                    "fac ::= [0-9]+ | \"(\" root \")\""),
       "(1+(20*3))/4-5"},
      {"words", regex_grammar("(\\w+ ?){1,200}\\."), "Once upon a time there was an ambiguous one."},
      {"tag", output_grammar({.kind = OutputFormat::Kind::kChoice, .choices = {"yes", "no", "nobody"}}, "</think>"),
       "He said </thin and </</think>nobody"},
  };
}

TEST(GrammarMatcherTest, MaskIsExactOverTheDemoVocabulary) {
  for (const Case& c : cases()) {
    ASSERT_TRUE(c.grammar.ok()) << c.name << c.grammar.status();
    GrammarMatchers matchers(demo_tokenizer(), kDemoVocabSize);
    const auto matcher = matchers.start(*c.grammar);
    std::vector<uint64_t> mask(kDemoVocabSize / 64, ~uint64_t{0});
    Rng rng(3);
    std::string text;
    for (const int32_t id : random_tokens(c.text, rng)) {
      ASSERT_TRUE(matcher->fill_mask(mask));
      ASSERT_EQ(mask, brute_force_mask(*c.grammar, text)) << c.name << " after " << text;
      ASSERT_TRUE(has_bit(mask, id));
      ASSERT_TRUE(matcher->accept(id));
      text += demo_tokenizer().token_bytes(id);
    }
    EXPECT_TRUE(matcher->is_complete()) << c.name;
    ASSERT_TRUE(matcher->fill_mask(mask));
    EXPECT_EQ(mask, brute_force_mask(*c.grammar, text)) << c.name;
    EXPECT_EQ(matcher->can_continue(), std::any_of(mask.begin(), mask.end(), [](uint64_t word) { return word != 0; }));
  }
}

// However often masks and states are forgotten, a matcher stays where a fresh one that saw the same tokens is.
TEST(GrammarMatcherTest, ForgettingChangesNothing) {
  const std::vector<Case> all = cases();
  for (const size_t max_bytes : {size_t{0}, size_t{100'000}, size_t{1} << 30}) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      SCOPED_TRACE(str_cat("seed ", seed, " bytes ", max_bytes));
      Rng rng(seed);
      GrammarMatchers bounded(demo_tokenizer(), kDemoVocabSize, max_bytes), plain(demo_tokenizer(), kDemoVocabSize);
      struct Walk {
        std::vector<int32_t> tokens;
        size_t at = 0;
        std::unique_ptr<GrammarMatcher> matcher, fresh;
      };
      std::vector<Walk> walks;
      for (const Case& c : all) {
        for (int twin = 0; twin < 2; ++twin) {
          walks.push_back({random_tokens(c.text, rng), 0, bounded.start(*c.grammar), plain.start(*c.grammar)});
        }
      }
      std::vector<uint64_t> mask(kDemoVocabSize / 64), expected(mask);
      for (int i = 0; i < 300; ++i) {
        Walk& walk = walks[rng.below(walks.size())];
        if (walk.at < walk.tokens.size()) {
          ASSERT_TRUE(walk.matcher->accept(walk.tokens[walk.at]) && walk.fresh->accept(walk.tokens[walk.at]));
          ++walk.at;
        }
        ASSERT_FALSE(walk.matcher->accept(demo_tokenizer().eos_id()));
        ASSERT_TRUE(walk.matcher->fill_mask(mask) && walk.fresh->fill_mask(expected));
        ASSERT_EQ(mask, expected);
        ASSERT_EQ(walk.matcher->is_complete(), walk.fresh->is_complete());
      }
    }
  }
}

// Thousands of grammars in turn, some of them at once: the bytes keep their bound, who was used last stays.
TEST(GrammarMatcherTest, AllGrammarsTogetherKeepTheirBytes) {
  constexpr size_t kMaxBytes = 1 << 20;
  GrammarMatchers matchers(demo_tokenizer(), kDemoVocabSize, kMaxBytes);
  std::vector<uint64_t> mask(kDemoVocabSize / 64);
  const auto use = [&](int number) {
    auto matcher = matchers.start(*regex_grammar(str_cat("x{1,5}", number, "([a-f]+|[0-9]{3}) end")));
    EXPECT_TRUE(matcher->accept_bytes(str_cat("xx", number, "abc")) && matcher->fill_mask(mask));
    return matcher;
  };
  std::vector<std::unique_ptr<GrammarMatcher>> open;
  size_t most_grammars = 0;
  for (int i = 0; i < 2000; ++i) {
    use(-1);  // again and again: never the one unused for longest
    auto matcher = use(i);
    if (i % 100 == 0) open.push_back(std::move(matcher));
    most_grammars = std::max(most_grammars, matchers.num_grammars());
    ASSERT_LE(matchers.num_bytes(), kMaxBytes);
  }
  EXPECT_LT(most_grammars, 1000u);
  EXPECT_GT(most_grammars, open.size() + 2);
  const size_t before = matchers.num_grammars();
  use(-1);
  EXPECT_EQ(matchers.num_grammars(), before);
  for (const auto& matcher : open) {
    EXPECT_TRUE(matcher->accept_bytes("de end") && matcher->is_complete() && !matcher->can_continue());
  }
}

// What is in use is never lost, also where it alone is more than the bound.
TEST(GrammarMatcherTest, WhatIsInUseMayExceedTheBound) {
  GrammarMatchers matchers(demo_tokenizer(), kDemoVocabSize, 0);
  std::vector<std::unique_ptr<GrammarMatcher>> open;
  for (int i = 0; i < 50; ++i) open.push_back(matchers.start(*regex_grammar(str_cat(i, "[a-z]{20}"))));
  EXPECT_EQ(matchers.num_grammars(), 50u);
  for (int i = 0; i < 50; ++i) EXPECT_TRUE(open[i]->accept_bytes(str_cat(i, "abc")));
  open.clear();
  const auto last = matchers.start(*regex_grammar("[a-z]{3000}"));
  EXPECT_TRUE(last->accept_bytes(std::string(3000, 'a')));
  EXPECT_LT(matchers.num_grammars(), 10u);
}

TEST(GrammarMatcherTest, WhatIsNoTextIsNotAllowed) {
  GrammarMatchers matchers(demo_tokenizer(), kDemoVocabSize);
  const auto any = matchers.start(*regex_grammar("[^x]*"));
  std::vector<uint64_t> mask(kDemoVocabSize / 64);
  ASSERT_TRUE(any->fill_mask(mask));
  for (int32_t id = 0; id < kDemoVocabSize; ++id) {
    const bool has_text = id < demo_tokenizer().size() && !demo_tokenizer().is_special(id);
    EXPECT_TRUE(has_text || !(has_bit(mask, id) || any->accept(id))) << id;
  }
  EXPECT_TRUE(has_bit(mask, demo_tokenizer().id_of("a")));
  EXPECT_FALSE(any->accept(-1) || any->accept(kDemoVocabSize));
}

TEST(GrammarMatcherTest, EqualGrammarsShareTheirMasks) {
  GrammarMatchers matchers(demo_tokenizer(), kDemoVocabSize);
  const auto first = matchers.start(*schema_grammar(kPerson));
  std::vector<uint64_t> mask(kDemoVocabSize / 64);
  ASSERT_TRUE(first->accept_bytes("{\"name\": \"") && first->fill_mask(mask));
  EXPECT_EQ(**schema_grammar(kPerson), **schema_grammar(kPerson));
  EXPECT_NE((*schema_grammar(kPerson))->hash(), (*schema_grammar("{}"))->hash());
}

// Hostile grammars: bounded work, and a clear no instead of a wrong mask.
TEST(GrammarMatcherTest, TooAmbiguousIsRefusedInBoundedTime) {
  GrammarMatchers matchers(demo_tokenizer(), kDemoVocabSize);
  std::vector<uint64_t> mask(kDemoVocabSize / 64, ~uint64_t{0});
  const int64_t start_ns = real_clock().now_ns();
  for (const char* pattern : {"((a?){1,100}){1,100}b", "(.{0,200}){1,50}", "((a|b|ab)*){1,3000}c"}) {
    const auto grammar = regex_grammar(pattern);
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const auto matcher = matchers.start(*grammar);
    for (int i = 0; i < 20 && matcher->accept_bytes("a"); ++i) {
      if (matcher->fill_mask(mask)) continue;
      EXPECT_TRUE(std::all_of(mask.begin(), mask.end(), [](uint64_t word) { return word == 0; }));
      break;
    }
  }
  EXPECT_LT(real_clock().now_ns() - start_ns, 20'000'000'000);
}

void print_speed(const char* name, const Tokenizer& tokenizer, int64_t vocab_size,
                 const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  GrammarMatchers matchers(tokenizer, vocab_size);
  matchers.start(grammar);  // makes the trie
  const std::vector<int32_t> ids = tokenizer.encode(text);
  std::vector<uint64_t> mask((vocab_size + 63) / 64);
  for (const char* round : {"first", "again"}) {
    const auto matcher = matchers.start(grammar);
    int64_t total_ns = 0;
    int64_t worst_ns = 0;
    for (const int32_t id : ids) {
      const int64_t start_ns = real_clock().now_ns();
      ASSERT_TRUE(matcher->fill_mask(mask));
      const int64_t took_ns = real_clock().now_ns() - start_ns;
      total_ns += took_ns;
      worst_ns = std::max(worst_ns, took_ns);
      ASSERT_TRUE(matcher->accept(id)) << text;
    }
    std::printf("fill_mask %s, %lld tokens, %s: mean %.1f us, worst %.1f us\n", name,
                static_cast<long long>(vocab_size), round, total_ns * 1e-3 / ids.size(), worst_ns * 1e-3);
  }
}

TEST(GrammarMatcherTest, Speed) {
  for (const Case& c : cases()) print_speed(c.name, demo_tokenizer(), kDemoVocabSize, *c.grammar, c.text);
}

TEST(GrammarMatcherTest, SpeedOverDeepSeekV3) {
  const std::string dir = MOESAIC_DEEPSEEK_TOKENIZER_DIR;
  if (dir.empty()) GTEST_SKIP() << "needs -DMOESAIC_DEEPSEEK_TOKENIZER_DIR for DeepSeek-V3's vocabulary";
  const auto tokenizer = Tokenizer::load(dir);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const int64_t start_ns = real_clock().now_ns();
  const TokenTrie trie(**tokenizer, 129'280);
  std::printf("trie of 129280 tokens: %.1f ms, %u nodes\n", (real_clock().now_ns() - start_ns) * 1e-6,
              trie.num_nodes());
  for (const Case& c : cases()) print_speed(c.name, **tokenizer, 129'280, *c.grammar, c.text);
}

}  // namespace
}  // namespace moesaic
