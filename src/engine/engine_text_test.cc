// Text: scripted tokens through detokenizer, stop strings and end tokens.
#include "engine/engine_test_util.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

using Strings = std::vector<std::string>;

Result run(std::vector<int32_t> script, Request request) {
  static const std::unique_ptr<Tokenizer> tokenizer = byte_word_tokenizer();
  EngineOptions options = small_options();
  options.hooks.script = std::move(script);
  Collector collector;
  Engine engine(options, std::make_unique<FakeExecutor>(options), tokenizer.get(), real_clock());
  const absl::Status status = engine.submit(std::move(request), collector.sink());
  EXPECT_TRUE(status.ok()) << status;
  if (!status.ok()) return {};
  collector.wait(1);
  return collector.results().begin()->second;
}

Request stop_request(Strings stop, int max_tokens = 20) {
  Request request = make_request(1, {65}, max_tokens);
  request.stop = std::move(stop);
  return request;
}

TEST(EngineTextTest, StopStringAcrossTokens) {
  const Result result = run(ids_of({"ABC", "DEF", "G", "HI", "JK"}), stop_request({"DEFGHIJ"}));
  EXPECT_EQ(result.text, "ABC");
  EXPECT_EQ(result.pieces, (Strings{"ABC", "", "", "", ""}));
  EXPECT_EQ(result.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(result.last.stop_string, "DEFGHIJ");
}

TEST(EngineTextTest, HeldTextIsReleased) {
  EXPECT_EQ(run(ids_of({"ABC", "DEF", "Gx"}), stop_request({"DEFGHIJ"})).text, "ABCDEFGx");
  const Result by_eos = run(ids_of({"ABC", "DEF"}), stop_request({"DEFGHIJ"}));
  EXPECT_EQ(by_eos.text, "ABCDEF");
  EXPECT_EQ(by_eos.last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(by_eos.last.stop_token_id, kEos);
  const Result by_length = run(ids_of({"ABC", "DEF"}), stop_request({"DEFGHIJ"}, 2));
  EXPECT_EQ(by_length.text, "ABCDEF");
  EXPECT_EQ(by_length.last.finish_reason, FinishReason::kLength);
}

TEST(EngineTextTest, StopStringMayBeIncluded) {
  Request request = stop_request({"FG"});
  request.include_stop_in_output = true;
  EXPECT_EQ(run(ids_of({"ABC", "DEF", "Gx"}), request).text, "ABCDEFG");
}

TEST(EngineTextTest, StopStringOnTheLastTokenIsAStop) {
  const Result result = run(ids_of({"ABC", "DEF"}), stop_request({"EF"}, 2));
  EXPECT_EQ(result.text, "ABCD");
  EXPECT_EQ(result.last.finish_reason, FinishReason::kStop);
}

TEST(EngineTextTest, CharactersAreWholeAndBrokenOnesAreReplaced) {
  const Result emoji = run({0xF0, 0x9F, 0x98, 0x80}, stop_request({}));
  EXPECT_EQ(emoji.text, "\xF0\x9F\x98\x80");
  EXPECT_EQ(emoji.pieces, (Strings{"", "", "", "\xF0\x9F\x98\x80", ""}));
  EXPECT_EQ(run({'a', 0xF0, 0x9F}, stop_request({})).text, "a\xEF\xBF\xBD");
}

TEST(EngineTextTest, EosHasNoText) {
  for (const bool skip_special_tokens : {true, false}) {
    Request request = stop_request({}, 3);
    request.skip_special_tokens = skip_special_tokens;
    request.include_stop_in_output = true;
    EXPECT_EQ(run({'a', kEos, 'b'}, request).text, "a");
    request.ignore_eos = true;
    const Result ignored = run({'a', kEos, 'b'}, request);
    EXPECT_EQ(ignored.text, "ab");
    EXPECT_EQ(ignored.last.finish_reason, FinishReason::kLength);
  }
}

TEST(EngineTextTest, StopTokenIds) {
  Request request = stop_request({});
  request.stop_token_ids = {'b'};
  const Result result = run({'a', 'b', 'c'}, request);
  EXPECT_EQ(result.text, "a");
  EXPECT_EQ(result.last.stop_token_id, 'b');
  EXPECT_EQ(result.last.num_output_tokens, 2);
  request.include_stop_in_output = true;
  EXPECT_EQ(run({'a', 'b', 'c'}, request).text, "ab");
}

TEST(EngineTextTest, StopStringsCountFromMinTokensOn) {
  Request request = stop_request({"b"}, 6);
  request.sampling.min_tokens = 3;
  EXPECT_EQ(run({'a', 'b', 'a', 'b', 'a', 'a'}, request).text, "aba");
}

}  // namespace
}  // namespace moesaic
