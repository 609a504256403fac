#include "text/tokenize_lines.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "text/messages.h"
#include "text/text_test_util.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

class TokenizeLines : public testing::Test {
 protected:
  std::string answer(const std::string& line) {
    bool failed = false;
    return tokenize_line(line, *tokenizer_, template_.get(), failed);
  }
  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(source_path("models/tiny-deepseek-v3")).value();
  std::unique_ptr<ChatTemplate> template_ = ChatTemplate::load(source_path("models/tiny-deepseek-v3")).value();
};

TEST_F(TokenizeLines, Answers) {
  EXPECT_EQ(answer(R"({"text": " Hello  world "})"), R"({"ids":[393,489,81,223,1148,223]})");
  EXPECT_EQ(answer(R"({"ids": [0,393,489,81]})"), R"({"text":"<｜begin▁of▁sentence｜> Hello"})");
  EXPECT_EQ(answer(R"({"ids": [0,393,489,81], "skip_special_tokens": true})"), R"({"text":" Hello"})");
  EXPECT_EQ(
      answer(R"({"messages": [{"role":"user","content":"天\n"}], "add_generation_prompt": true, "thinking": true})"),
      R"({"rendered":"<｜begin▁of▁sentence｜><｜User｜>天\n<｜Assistant｜><think>"})");
  EXPECT_EQ(answer(R"({"messages": [{"role":"user","content":"x"}]})"),
            R"({"rendered":"<｜begin▁of▁sentence｜><｜User｜>x"})");
  EXPECT_EQ(answer(R"({"text": "\ud83d\ude00"})"), answer("{\"text\": \"😀\"}"));
}

TEST_F(TokenizeLines, BadLinesAnswerAndTheStreamGoesOn) {
  std::istringstream in(
      "{\"text\": 3}\n\nnonsense\n{\"text\": \"\\ud800\"}\n{\"text\": \"\xff\"}\n{\"ids\": [-1]}\n{\"ids\": [4096]}\n"
      "{\"ids\": [5279552648203111001]}\n{}\n[]\n{\"messages\": []}\n{\"text\": \"a\"}\n" +
      std::string(100000, '[') + "\n{\"text\": \"\"}");
  std::ostringstream out;
  EXPECT_EQ(tokenize_lines(in, out, *tokenizer_, nullptr), 11);
  std::istringstream lines(out.str());
  std::vector<Json> answers;
  for (std::string line; std::getline(lines, line);) answers.push_back(Json::parse(line));
  ASSERT_EQ(answers.size(), 13u);
  const char* const expected[] = {"text: expected a string",
                                  "bad JSON",
                                  "surrogate",
                                  "UTF-8",
                                  "ids[0]: expected an id in 0..4095, found -1",
                                  "found 4096",
                                  "found 5279552648203111001",
                                  "expected one of",
                                  "expected an object",
                                  "no chat template"};
  for (size_t i = 0; i < std::size(expected); ++i)
    EXPECT_THAT(answers[i]["error"].get<std::string>(), HasSubstr(expected[i]));
  EXPECT_TRUE(answers[10].contains("ids"));
  EXPECT_THAT(answers[11]["error"].get<std::string>(), HasSubstr("bad JSON"));
  EXPECT_EQ(answers[12].dump(), R"({"ids":[]})");
}

std::string normalized(const char* messages) {
  const auto result = normalize_messages(Json::parse(messages));
  return result.ok() ? result->dump() : str_cat(result.status().message());
}

TEST(Messages, Normalizes) {
  EXPECT_EQ(normalized(R"([{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}])"),
            R"([{"role":"user","content":"a b"}])");
  EXPECT_EQ(
      normalized(R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f"}}]}])"),
      R"([{"role":"assistant","content":null,"tool_calls":[{"function":{"name":"f","arguments":"{}"},"type":"function"}]}])");
  EXPECT_EQ(normalized(R"([{"role":"assistant","tool_calls":[]}])"), R"([{"role":"assistant","content":""}])");
  EXPECT_EQ(normalized(R"([{"role":"user","content":[{"type":"image_url","image_url":{}}]}])"),
            "messages[0].content[0]: content part of type image_url is not supported, expected text");
  EXPECT_THAT(normalized(R"([{"role":"user","content":3}])"), HasSubstr("messages[0].content: expected a string"));
  EXPECT_THAT(normalized(R"([{"role":"user","content":null}])"), HasSubstr("messages[0].content: expected a string"));
  EXPECT_THAT(normalized(R"([{"content":"a"}])"), HasSubstr("messages[0].role"));
  EXPECT_THAT(normalized(R"([3])"), HasSubstr("messages[0]: expected an object"));
  EXPECT_THAT(normalized("[]"), HasSubstr("at least one"));
  EXPECT_THAT(normalized(R"([{"role":"assistant","tool_calls":[{"function":{"arguments":"{}"}}]}])"),
              HasSubstr("messages[0].tool_calls[0].function.name"));
}

// Null content and object arguments, as SDKs send them, on templates that add arguments to a string and that do not.
TEST(Messages, ObjectArgumentsRender) {
  const Json golden = Json::parse(read_source_file("tests/data/golden/chat_template.json"));
  const Json messages = Json::parse(R"([{"role":"user","content":"w"},{"role":"assistant","content":null,
      "tool_calls":[{"function":{"name":"f","arguments":{"city":"Oslo"}}}]}])");
  for (const auto& [name, source] : golden["templates"].items()) {
    const auto chat_template = ChatTemplate::parse(source.get<std::string>()).value();
    const auto text = render_messages(*chat_template, {{"messages", messages}, {"tools", nullptr}});
    ASSERT_TRUE(text.ok()) << name << text.status();
    EXPECT_THAT(*text, HasSubstr("{\"city\": \"Oslo\"}")) << name;
  }
}

}  // namespace
}  // namespace moesaic
