#include "engine/stop_matcher.h"

#include <algorithm>

#include "base/rng.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

using Strings = std::vector<std::string>;

struct Result {
  std::string text;
  bool stopped = false;
};

Result run(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher(stops);
  Result result;
  for (const std::string& piece : pieces) result.stopped = matcher.push(piece, &result.text);
  matcher.flush(&result.text);
  return result;
}

TEST(StopMatcherTest, StopStringAcrossTokens) {
  const Result result = run({"DEFGHIJ"}, {"ABC", "DEF", "G", "HI", "JK"});
  EXPECT_EQ(result.text, "ABC");
  EXPECT_TRUE(result.stopped);
}

TEST(StopMatcherTest, ReleasedWhenItCannotMatch) {
  StopMatcher matcher({"DEFGHIJ"});
  std::string text;
  EXPECT_FALSE(matcher.push("ABC", &text));
  EXPECT_EQ(text, "ABC");
  EXPECT_FALSE(matcher.push("DEF", &text));
  EXPECT_EQ(text, "ABC");
  EXPECT_EQ(matcher.num_held_bytes(), 3u);
  EXPECT_FALSE(matcher.push("Gx", &text));
  EXPECT_EQ(text, "ABCDEFGx");
}

TEST(StopMatcherTest, HeldTailIsFlushedAtTheEnd) {
  const Result result = run({"DEFGHIJ"}, {"ABC", "DEF"});
  EXPECT_EQ(result.text, "ABCDEF");
  EXPECT_FALSE(result.stopped);
}

TEST(StopMatcherTest, PartOfTheHeldTextIsReleased) {
  StopMatcher matcher({"aab"});
  std::string text;
  matcher.push("aaa", &text);
  EXPECT_EQ(text, "a");
  EXPECT_TRUE(matcher.push("b", &text));
  EXPECT_EQ(text, "a");
  EXPECT_EQ(matcher.match(), "aab");
}

TEST(StopMatcherTest, FirstToBeCompleteWinsWhateverTheOrder) {
  for (const Strings& stops : {Strings{"lo wor", "o", "hello"}, Strings{"hello", "o", "lo wor"}}) {
    EXPECT_EQ(run(stops, {"say hello world"}).text, "say ");
  }
  for (const Strings& stops : {Strings{"ABCD", "BC"}, Strings{"BC", "ABCD"}}) {
    EXPECT_EQ(run(stops, {"xABCD"}).text, "xA");
  }
}

TEST(StopMatcherTest, CharactersStayWhole) {
  StopMatcher matcher({"é!"});
  std::string text;
  matcher.push("né", &text);
  EXPECT_EQ(text, "n");
  matcher.push("è", &text);
  EXPECT_EQ(text, "néè");
}

TEST(StopMatcherTest, NothingAfterTheMatch) {
  StopMatcher matcher({"b"});
  std::string text;
  EXPECT_TRUE(matcher.push("abc", &text));
  EXPECT_TRUE(matcher.push("def", &text));
  matcher.flush(&text);
  EXPECT_EQ(text, "a");
}

// The definition, on the whole text: the smallest end over all stop strings, the longest of those.
Result plain(const Strings& stops, const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    size_t longest = 0;
    for (const std::string& stop : stops) {
      if (end >= stop.size() && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

std::string random_text(Rng& rng, uint64_t max_length) {
  std::string text;
  for (uint64_t i = 1 + rng.below(max_length); i > 0; --i) text += static_cast<char>('a' + rng.below(2));
  return text;
}

TEST(StopMatcherTest, RandomPiecesAgreeWithTheWholeText) {
  constexpr uint64_t kSeed = 3;
  Rng rng(kSeed);
  int num_stopped = 0;
  for (int round = 0; round < 20'000; ++round) {
    Strings stops;
    for (uint64_t i = 1 + rng.below(3); i > 0; --i) stops.push_back(random_text(rng, 7));
    const std::string text = random_text(rng, 30);
    Strings pieces;
    for (size_t at = 0; at < text.size(); at += pieces.back().size()) {
      pieces.push_back(text.substr(at, 1 + rng.below(5)));
    }
    const Result want = plain(stops, text);
    const Result got = run(stops, pieces);
    ASSERT_EQ(got.text, want.text) << "seed " << kSeed << " round " << round;
    ASSERT_EQ(got.stopped, want.stopped);
    num_stopped += want.stopped ? 1 : 0;
  }
  EXPECT_GT(num_stopped, 1000);
  EXPECT_LT(num_stopped, 19'900);
}

}  // namespace
}  // namespace moesaic
