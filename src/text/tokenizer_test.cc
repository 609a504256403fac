#include "text/tokenizer.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/rng.h"
#include "text/detokenizer.h"
#include "text/text_test_util.h"
#include "text/utf8.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using Ids = std::vector<int32_t>;

void check_golden(const Tokenizer& tokenizer, const std::string& name) {
  const nlohmann::json golden = nlohmann::json::parse(read_source_file("tests/data/golden/tokenizer.json"));
  ASSERT_GT(golden.at(name).size(), 50u);
  for (const auto& row : golden.at(name)) {
    const std::string text = row.at("text");
    const Ids ids = row.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer.encode(text), ids) << row;
    EXPECT_EQ(tokenizer.decode(ids), row.at("decoded").get<std::string>()) << row;
    EXPECT_EQ(tokenizer.decode(ids, true), row.at("decoded_skip").get<std::string>()) << row;
  }
}

std::unique_ptr<Tokenizer> demo_tokenizer() {
  return Tokenizer::load(source_path("models/tiny-deepseek-v3")).value();
}

TEST(Tokenizer, DemoGolden) {
  check_golden(*demo_tokenizer(), "tiny-deepseek-v3");
}

TEST(Tokenizer, DeepseekV3Golden) {
  const std::string dir = MOESAIC_DEEPSEEK_TOKENIZER_DIR;
  if (dir.empty())
    GTEST_SKIP() << "DeepSeek-V3's tokenizer is not part of the project: set MOESAIC_DEEPSEEK_TOKENIZER_DIR";
  const int64_t start_ns = real_clock().now_ns();
  const auto tokenizer = Tokenizer::load(dir).value();
  RecordProperty("load_ms", static_cast<int>((real_clock().now_ns() - start_ns) / 1'000'000));
  check_golden(*tokenizer, "deepseek-v3");
}

TEST(Tokenizer, ConfigNamesBosAndEos) {
  const auto tokenizer = demo_tokenizer();
  EXPECT_TRUE(tokenizer->add_bos_token());
  EXPECT_EQ(tokenizer->bos_id(), 0);
  EXPECT_EQ(tokenizer->eos_id(), 1);
  EXPECT_EQ(tokenizer->bos_token(), "<｜begin▁of▁sentence｜>");
  EXPECT_EQ(tokenizer->size(), 4096);
  EXPECT_TRUE(tokenizer->is_special(0));
  EXPECT_FALSE(tokenizer->is_special(tokenizer->id_of("<think>")));
  EXPECT_EQ(tokenizer->id_of("no such token"), -1);
}

// A tokenizer class in tokenizer_config.json must not replace what tokenizer.json says.
TEST(Tokenizer, ClassNameChangesNothing) {
  const auto plain = Tokenizer::parse(byte_tokenizer().dump(), "").value();
  const auto tokenizer = Tokenizer::parse(byte_tokenizer().dump(),
                                          R"({"tokenizer_class":"LlamaTokenizerFast","bos_token":{"content":"<s>"}})")
                             .value();
  EXPECT_EQ(tokenizer->bos_token(), "<s>");
  EXPECT_EQ(tokenizer->bos_id(), -1);
  for (const char* text : {"hello world", "  two  spaces", "a\n\tb"}) {
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
    EXPECT_EQ(tokenizer->encode(text), plain->encode(text));
  }
  EXPECT_EQ(tokenizer->encode("hello"), (Ids{257, 258, 'o'}));  // "he", "ll"
}

TEST(Tokenizer, LowestRankFirstThenLeftmost) {
  nlohmann::ordered_json json = byte_tokenizer();
  json["model"]["merges"] = {"b c", "a b", "a a"};
  for (const char* token : {"bc", "ab", "aa"}) json["model"]["vocab"][token] = 1000 + json["model"]["vocab"].size();
  const auto tokenizer = Tokenizer::parse(json.dump(), "").value();
  const auto id = [&](const char* text) { return tokenizer->id_of(text); };
  EXPECT_EQ(tokenizer->encode("abc"), (Ids{'a', id("bc")}));
  EXPECT_EQ(tokenizer->encode("aaa"), (Ids{id("aa"), 'a'}));
  EXPECT_EQ(tokenizer->encode("abab"), (Ids{id("ab"), id("ab")}));
}

// Long words take the heap, short ones the scan: both against the plain rule on the same word.
TEST(Tokenizer, LongWordsEqualPlainBpe) {
  const nlohmann::json json = nlohmann::json::parse(read_source_file("models/tiny-deepseek-v3/tokenizer.json"));
  std::map<std::pair<std::string, std::string>, int> rank;
  for (const auto& merge : json["model"]["merges"]) rank.emplace(std::pair(merge[0], merge[1]), rank.size());
  const auto tokenizer = demo_tokenizer();
  Rng rng(5);
  for (int round = 0; round < 300; ++round) {
    std::string word;
    const size_t length = 1 + rng.below(round % 2 ? 200 : 60);
    for (size_t i = 0; i < length; ++i) word += "etaoinshrdlu"[rng.below(12)];
    std::vector<std::string> parts;
    for (const char c : word) parts.emplace_back(1, c);
    while (true) {
      auto best = rank.end();
      size_t at = 0;
      for (size_t i = 0; i + 1 < parts.size(); ++i) {
        const auto it = rank.find({parts[i], parts[i + 1]});
        if (it == rank.end() || (best != rank.end() && best->second <= it->second)) continue;
        best = it;
        at = i;
      }
      if (best == rank.end()) break;
      parts[at] += parts[at + 1];
      parts.erase(parts.begin() + at + 1);
    }
    Ids expected;
    for (const std::string& part : parts) expected.push_back(json["model"]["vocab"][part]);
    EXPECT_EQ(tokenizer->encode(word), expected) << "seed 5 round " << round << " " << word;
  }
}

TEST(Tokenizer, IgnoreMergesTakesWholeWords) {
  nlohmann::ordered_json json = byte_tokenizer();
  json["model"]["vocab"]["xyz"] = 1000;
  EXPECT_EQ(Tokenizer::parse(json.dump(), "").value()->encode("xyz"), (Ids{'x', 'y', 'z'}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(Tokenizer::parse(json.dump(), "").value()->encode("xyz").size(), 1u);
}

TEST(Tokenizer, InvalidUtf8BecomesReplacementCharacters) {
  const auto tokenizer = demo_tokenizer();
  EXPECT_EQ(tokenizer->encode("a\xFFz\xE2\x82"), tokenizer->encode("a\uFFFDz\uFFFD"));
}

// Characters newer than PCRE2's tables, and U+180E: ids from Hugging Face tokenizers.
TEST(Tokenizer, NewCharactersSplitAsInTheReference) {
  const auto tokenizer = demo_tokenizer();
  const std::pair<const char*, Ids> rows[] = {
      {"hi \U0001FACE!", {3471, 223, 175, 256, 107, 239, 3}},
      {"a\u2429\U0001F6DC b", {67, 161, 241, 105, 175, 256, 252, 253, 274}},
      {"x\u180Ey \u180E z", {90, 160, 257, 239, 91, 223, 160, 257, 239, 223, 92}},
      {"\U00031350\u1C89q", {175, 112, 238, 241, 160, 113, 234, 83}},
  };
  for (const auto& [text, ids] : rows) EXPECT_EQ(tokenizer->encode(text), ids) << text;
}

// Accents, digits, scripts, runs of spaces, flags and CRLF: ids from Hugging Face tokenizers.
TEST(Tokenizer, OrdinaryTextHasTheReferencesIds) {
  const auto tokenizer = demo_tokenizer();
  const std::pair<const char*, Ids> rows[] = {
      {"Führer", {40, 130, 123, 74, 3358}},
      {"3 33 333 3333 33333", {21, 223, 1765, 223, 1765, 21, 223, 1765, 21, 21, 223, 1765, 21, 1765}},
      {"  x\n\n y ", {223, 223, 90, 297, 312, 223}},
      {"中文abc123カタカナ",
       {163, 119, 258, 165, 247, 232, 578, 69, 1409, 21, 162, 227, 107, 162, 227, 126, 162, 227, 107, 162, 228, 235}},
      {"\U0001F1E9\U0001F1EA flag", {175, 256, 232, 105, 175, 256, 232, 106, 685, 559}},
      {"e\u0301te\u0301", {71, 139, 226, 1384, 139, 226}},
      {"one\r\ntwo\r\n\r\nthree", {439, 204, 201, 86, 2859, 204, 201, 204, 201, 443, 602}},
      {"hello world", {259, 288, 81, 1148}},
      {"  two  spaces", {223, 714, 223, 540, 2600}},
      {"a\n\tb", {67, 201, 200, 68}},
  };
  for (const auto& [text, ids] : rows) EXPECT_EQ(tokenizer->encode(text), ids) << text;
}

TEST(Tokenizer, SplitBehaviours) {
  const auto pieces = [](const char* behavior, bool invert) {
    nlohmann::ordered_json json = byte_tokenizer();
    auto& steps = json["pre_tokenizer"]["pretokenizers"];
    steps[0] = {{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}};
    json["model"]["ignore_merges"] = true;
    std::string text = "the-final--countdown";
    for (size_t i = 0; i < text.size(); ++i) {
      for (size_t n = 2; i + n <= text.size(); ++n) {
        const std::string word = text.substr(i, n);
        if (!json["model"]["vocab"].contains(word)) json["model"]["vocab"][word] = 1000 + json["model"]["vocab"].size();
      }
    }
    const auto tokenizer = Tokenizer::parse(json.dump(), "").value();
    std::string joined;
    for (const int32_t id : tokenizer->encode(text)) joined += std::string(tokenizer->token_bytes(id)) + "|";
    return joined;
  };
  // The example of the reference's documentation.
  EXPECT_EQ(pieces("Removed", false), "the|final|countdown|");
  EXPECT_EQ(pieces("Isolated", false), "the|-|final|-|-|countdown|");
  EXPECT_EQ(pieces("MergedWithPrevious", false), "the-|final-|-|countdown|");
  EXPECT_EQ(pieces("MergedWithNext", false), "the|-final|-|-countdown|");
  EXPECT_EQ(pieces("Contiguous", false), "the|-|final|--|countdown|");
  EXPECT_EQ(pieces("Removed", true), "-|-|-|");
}

TEST(Tokenizer, AddPrefixSpace) {
  nlohmann::ordered_json json = byte_tokenizer();
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", true}};
  const auto tokenizer = Tokenizer::parse(json.dump(), "").value();
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("ab cd")), " ab cd");
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(" ab")), " ab");
}

TEST(Tokenizer, LongRunsAreNotQuadratic) {
  const auto tokenizer = demo_tokenizer();
  const int64_t start_ns = real_clock().now_ns();
  for (const char c : {' ', 'a', '\n', '!', '1'}) {
    const std::string text(1 << 20, c);
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
  EXPECT_LT(real_clock().now_ns() - start_ns, 60'000'000'000);
}

// A pattern with exponential backtracking ends within its bounds, and no text is lost.
TEST(Tokenizer, HostilePatternEnds) {
  nlohmann::ordered_json json = byte_tokenizer();
  json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "(?:a+)+b|(a|aa)+$";
  const auto tokenizer = Tokenizer::parse(json.dump(), "").value();
  const std::string text = std::string(5000, 'a') + "c";
  const int64_t start_ns = real_clock().now_ns();
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_LT(real_clock().now_ns() - start_ns, 60'000'000'000);
}

TEST(Tokenizer, ThreadsAndTokenizersShareNothingWrong) {
  const auto demo = demo_tokenizer();
  const auto bytes = Tokenizer::parse(byte_tokenizer().dump(), "").value();
  const Ids a = demo->encode("hello world");
  const Ids b = bytes->encode("hello world");
  ASSERT_NE(a, b);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(demo->encode("hello world"), a);
    EXPECT_EQ(bytes->encode("hello world"), b);
  }
}

std::string error_of(const std::string& json) {
  const auto tokenizer = Tokenizer::parse(json, "");
  return tokenizer.ok() ? "" : tokenizer.status().ToString();
}

TEST(Tokenizer, BadFilesNameThePlace) {
  using json = nlohmann::ordered_json;
  const auto broken = [](auto change) {
    json file = byte_tokenizer();
    change(file);
    return error_of(file.dump());
  };
  EXPECT_EQ(broken([](json&) {}), "");
  EXPECT_THAT(error_of(""), HasSubstr("tokenizer.json"));
  EXPECT_THAT(error_of("[]"), HasSubstr("expected an object"));
  EXPECT_THAT(error_of(byte_tokenizer().dump().substr(0, 3000)), HasSubstr("tokenizer.json: expected JSON"));
  EXPECT_THAT(error_of(std::string(100000, '[')), HasSubstr("tokenizer.json: expected JSON"));
  EXPECT_THAT(broken([](json& f) { f["model"].erase("vocab"); }), HasSubstr("model.vocab: expected an object"));
  EXPECT_THAT(broken([](json& f) { f["model"].erase("merges"); }), HasSubstr("model.merges: expected a list"));
  EXPECT_THAT(broken([](json& f) { f["model"]["vocab"]["zz"] = 1000000000; }), HasSubstr("model.vocab[\"zz\"]"));
  EXPECT_THAT(broken([](json& f) { f["model"]["vocab"]["zz"] = -1; }), HasSubstr("model.vocab[\"zz\"]"));
  EXPECT_THAT(broken([](json& f) { f["model"]["vocab"]["zz"] = "1"; }), HasSubstr("found a string"));
  EXPECT_THAT(broken([](json& f) { f["model"]["vocab"]["zz"] = 7; }), HasSubstr("id 7 is taken"));
  EXPECT_THAT(broken([](json& f) { f["model"]["merges"][1] = "q qq"; }), HasSubstr("model.merges[1]: token \"qq\""));
  EXPECT_THAT(broken([](json& f) { f["model"]["merges"][1] = "q"; }), HasSubstr("model.merges[1]"));
  EXPECT_THAT(broken([](json& f) { f["model"]["merges"][1] = {"h", 3}; }), HasSubstr("model.merges[1]"));
  EXPECT_THAT(broken([](json& f) { f["model"]["type"] = "Unigram"; }), HasSubstr("found Unigram"));
  EXPECT_THAT(broken([](json& f) { f["model"]["byte_fallback"] = true; }), HasSubstr("model.byte_fallback"));
  EXPECT_THAT(broken([](json& f) { f["normalizer"] = {{"type", "NFC"}}; }), HasSubstr("found NFC"));
  EXPECT_THAT(broken([](json& f) { f["decoder"] = {{"type", "Metaspace"}}; }), HasSubstr("found Metaspace"));
  EXPECT_THAT(broken([](json& f) { f["pre_tokenizer"] = {{"type", "Metaspace"}}; }), HasSubstr("found Metaspace"));
  EXPECT_THAT(broken([](json& f) { f["pre_tokenizer"] = nullptr; }), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(broken([](json& f) { f["added_tokens"][0]["lstrip"] = true; }), HasSubstr("added_tokens[0].lstrip"));
  EXPECT_THAT(broken([](json& f) { f["added_tokens"][0]["id"] = 5; }), HasSubstr("added_tokens[0].id"));
  EXPECT_THAT(broken([](json& f) { f["added_tokens"][0]["content"] = ""; }), HasSubstr("added_tokens[0].content"));
  const auto regex = [&](const char* pattern) {
    return broken([&](json& f) { f["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern; });
  };
  EXPECT_THAT(regex("(a"), HasSubstr("pretokenizers[0].pattern: bad regular expression at byte 2"));
  EXPECT_THAT(regex("[a-z&&[^b]]"), HasSubstr("not supported"));
  EXPECT_THAT(regex("\\h+"), HasSubstr("not supported"));
  EXPECT_THAT(regex("\\p{N}{1,3}+"), HasSubstr("not supported"));
  EXPECT_THAT(regex("(?:(?:a{1000}){1000}){1000}"), HasSubstr("bad regular expression"));
}

TEST(Tokenizer, BadConfigsNameTheField) {
  const auto error = [](const char* config) {
    return Tokenizer::parse(byte_tokenizer().dump(), config).status().ToString();
  };
  for (const char* config : {"[", "[]", "3", "{\"bos_token\":\"", "\xff"}) {
    EXPECT_THAT(error(config), HasSubstr("tokenizer_config.json")) << config;
  }
  EXPECT_THAT(error(R"({"bos_token":3})"), HasSubstr("bos_token: expected a string"));
  EXPECT_THAT(error(R"({"eos_token":{"content":[]}})"), HasSubstr("eos_token"));
  EXPECT_THAT(error(R"({"add_bos_token":"yes"})"), HasSubstr("add_bos_token: expected true or false"));
}

TEST(Detokenizer, HoldsBackBytesOfACharacter) {
  const auto tokenizer = Tokenizer::parse(byte_tokenizer().dump(), "").value();
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.add(0xF0), "");
  EXPECT_EQ(detokenizer.add(0x9F), "");
  EXPECT_EQ(detokenizer.add(0x98), "");
  EXPECT_EQ(detokenizer.add(0x80), "😀");
  EXPECT_EQ(detokenizer.add(0xE4), "");
  EXPECT_EQ(detokenizer.add('a'), "\uFFFDa");
  EXPECT_EQ(detokenizer.add(0xE4), "");
  EXPECT_EQ(detokenizer.flush(), "\uFFFD");
  EXPECT_EQ(detokenizer.flush(), "");
  EXPECT_EQ(tokenizer->token_bytes(0xF0), "\xF0");
}

TEST(Detokenizer, SpecialTokensStayWhole) {
  const auto tokenizer = Tokenizer::parse(byte_tokenizer().dump(), "").value();
  const int32_t user = tokenizer->id_of("<｜User｜>");
  ASSERT_GE(user, 0);
  Detokenizer shown(*tokenizer, false);
  EXPECT_EQ(shown.add(0xE4), "");
  EXPECT_EQ(shown.add(user), "\uFFFD<｜User｜>");
  EXPECT_EQ(shown.add('x'), "x");
  Detokenizer skipped(*tokenizer, true);
  EXPECT_EQ(skipped.add('a'), "a");
  EXPECT_EQ(skipped.add(user), "");
  EXPECT_EQ(skipped.add('b'), "b");
}

// Python's bytes.decode("utf-8", "replace") on the same bytes.
TEST(Utf8, RepairsAsPythonDoes) {
  const std::pair<std::string, std::string> rows[] = {
      {"\xC0\x80", "\uFFFD\uFFFD"},           {"\xE0\x80\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"}, {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98x", "\uFFFDx"},           {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE2\x82\xE2\x82\xAC", "\uFFFD€"},    {"\xFF", "\uFFFD"},
  };
  for (const auto& [bytes, text] : rows) {
    EXPECT_EQ(repair_utf8(bytes), text);
    EXPECT_FALSE(is_valid_utf8(bytes));
    EXPECT_TRUE(is_valid_utf8(text));
  }
}

TEST(Detokenizer, PiecesJoinToDecode) {
  const auto tokenizer = Tokenizer::parse(byte_tokenizer().dump(), "").value();
  Rng rng(11);
  for (int round = 0; round < 2000; ++round) {
    Ids ids;
    for (size_t i = rng.below(30); i > 0; --i) {
      // Mostly bytes that begin or continue characters.
      const uint64_t kind = rng.below(4);
      ids.push_back(kind == 0   ? rng.below(tokenizer->size() + 3)
                    : kind == 1 ? 0xC0 + rng.below(64)
                                : 0x80 + rng.below(64));
    }
    for (const bool skip : {false, true}) {
      Detokenizer detokenizer(*tokenizer, skip);
      std::string joined;
      for (const int32_t id : ids) {
        const std::string piece = detokenizer.add(id);
        EXPECT_TRUE(is_valid_utf8(piece));
        joined += piece;
      }
      joined += detokenizer.flush();
      EXPECT_EQ(joined, tokenizer->decode(ids, skip)) << "seed 11 round " << round;
    }
  }
}

}  // namespace
}  // namespace moesaic
