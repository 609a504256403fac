// What the grammar of tool calls allows, OutputParser reads as whole calls without content, in both formats.
#include "text/tool_grammar.h"

#include <gtest/gtest.h>

#include "text/grammar_test_util.h"

namespace moesaic {
namespace {

Json two_tools() {
  return Json::parse(
      R"([{"function":{"name":"now","parameters":{"type":"object","properties":{}}}},{"function":{"name":"at","parameters":)"
      R"({"type":"object","properties":{"city":{"enum":["Oslo","Rome"]}},"required":["city"],"additionalProperties":false}}}])");
}

const OutputFormat kYesOrNo{.kind = OutputFormat::Kind::kChoice, .choices = {"yes", "no"}};

struct Parsed {
  std::string content;
  std::vector<ToolCallDelta> calls;
};
Parsed parse(ToolFormat format, std::string_view text) {
  OutputParser parser({.parse_reasoning = false, .tool_format = format});
  Parsed out;
  auto deltas = parser.feed(text);
  for (OutputDelta& delta : parser.finish()) deltas.push_back(std::move(delta));
  for (OutputDelta& delta : deltas) {
    out.content += delta.content;
    for (ToolCallDelta& call : delta.tool_calls) {
      if (call.index == std::ssize(out.calls)) {
        out.calls.push_back(std::move(call));
      } else {
        out.calls[call.index].arguments += call.arguments;
      }
    }
  }
  EXPECT_EQ(parser.num_tool_calls(), std::ssize(out.calls));
  return out;
}

void expect_calls(const std::vector<ToolCallDelta>& calls, const std::string& word) {
  for (const ToolCallDelta& call : calls) {
    const Json arguments = Json::parse(call.arguments, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(arguments.is_object()) << word;
    EXPECT_TRUE(call.name == "now" ? arguments.empty() : arguments.contains("city")) << word;
  }
}

TEST(ToolGrammar, EveryWordIsCallsOrTheFormat) {
  const Json tools = two_tools();
  for (const ToolFormat format : {ToolFormat::kDeepseekV3, ToolFormat::kDeepseekV31}) {
    for (const char* forced : {"-", "", "now", "at"}) {
      const bool is_forced = forced[0] != '-';
      const ToolCalls calls{.format = format, .tools = &tools, .is_forced = is_forced, .name = is_forced ? forced : ""};
      const auto grammar = output_grammar(kYesOrNo, "", calls);
      ASSERT_TRUE(grammar.ok()) << grammar.status();
      Recognizer recognizer(*grammar);
      Rng rng(17);
      int num_calls = 0;
      for (int round = 0; round < 60; ++round) {
        std::string word = recognizer.random_word(rng, rng.below(300));
        ASSERT_NE(word, "?");
        std::erase(word, static_cast<char>(kSpecialByte));  // as the text of special tokens reads
        if (is_forced) word = forced_call(format, calls.name) + word;
        const Parsed parsed = parse(format, word);
        num_calls += parsed.calls.empty() ? 0 : 1;
        EXPECT_TRUE(parsed.calls.empty() ? parsed.content == "yes" || parsed.content == "no" : parsed.content.empty())
            << word;
        EXPECT_TRUE(!is_forced || !parsed.calls.empty()) << word;
        EXPECT_TRUE(calls.name.empty() || parsed.calls.at(0).name == calls.name) << word;
        expect_calls(parsed.calls, word);
      }
      EXPECT_GT(num_calls, 10);
    }
  }
}

// A token that is special comes where the grammar has its text, and nowhere else.
TEST(ToolGrammar, SpecialTokensComeWhereTheyAreNamed) {
  const Json tools = two_tools();
  const ToolCalls calls{.format = ToolFormat::kDeepseekV31, .tools = &tools};
  const auto grammar = output_grammar(kYesOrNo, "", calls);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  GrammarMatchers matchers(demo_tokenizer(), kDemoVocabSize);
  const auto matcher = matchers.start(*grammar);
  std::vector<uint64_t> mask(kDemoVocabSize / 64);
  const auto only_special = [&](const char* text) {
    const int32_t wanted = demo_tokenizer().id_of(text);
    EXPECT_TRUE(matcher->fill_mask(mask));
    for (int32_t id = 0; id < kDemoVocabSize; ++id) {
      EXPECT_TRUE(!demo_tokenizer().is_special(id) || has_bit(mask, id) == (id == wanted)) << text << " " << id;
    }
    EXPECT_TRUE(matcher->accept(wanted)) << text;
  };
  EXPECT_FALSE(matcher->accept(demo_tokenizer().id_of("<｜tool▁call▁begin｜>")));
  only_special("<｜tool▁calls▁begin｜>");
  only_special("<｜tool▁call▁begin｜>");
  EXPECT_TRUE(matcher->accept_bytes("at"));
  only_special("<｜tool▁sep｜>");
  EXPECT_TRUE(matcher->accept_bytes("{\"city\": \"Rome\"}"));
  only_special("<｜tool▁call▁end｜>");
  EXPECT_FALSE(matcher->is_complete());
  EXPECT_TRUE(matcher->accept(demo_tokenizer().id_of("<｜tool▁calls▁end｜>")));
  EXPECT_TRUE(matcher->is_complete());
  EXPECT_FALSE(matcher->can_continue());
}

TEST(ToolGrammar, StrictToolsNameWhatCannotBeFollowed) {
  Json tools = two_tools();
  tools[1]["function"]["parameters"]["properties"]["city"] = {{"not", Json::object()}};
  EXPECT_TRUE(check_strict_tools(tools).ok());
  tools[1]["function"]["strict"] = true;
  const std::string message(check_strict_tools(tools).message());
  EXPECT_NE(message.find("tools[1].function.parameters: at #/properties/city"), std::string::npos) << message;
}

// Many large tools take bounded time: those that no longer fit are any object.
TEST(ToolGrammar, LargeToolsAreBoundedTogether) {
  Json tools = two_tools();
  const Json large =
      Json::parse(R"({"type":"object","properties":{"a":{"type":"string","maxLength":9000}},"required":["a"]})");
  for (int i = 0; i < 500; ++i) {
    tools.push_back({{"function", {{"name", str_cat("f", i)}, {"parameters", large}}}});
  }
  const ToolCalls calls{.format = ToolFormat::kDeepseekV31, .tools = &tools};
  const auto grammar = output_grammar(kYesOrNo, "", calls);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  EXPECT_TRUE(check_strict_tools(tools).ok());
  tools.back()["function"]["strict"] = true;
  EXPECT_NE(check_strict_tools(tools).message().find("too large together"), absl::string_view::npos);
}

}  // namespace
}  // namespace moesaic
