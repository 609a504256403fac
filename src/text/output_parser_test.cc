#include "text/output_parser.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace moesaic {
namespace {

struct Joined {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> calls;
  int complete = 0;

  std::string text() const {
    std::string out = str_cat("R[", reasoning, "] C[", content, "]");
    for (const auto& call : calls)
      out += str_cat(" ", call.index, ":", call.id, ":", call.name, "(", call.arguments, ")");
    return str_cat(out, " complete ", complete);
  }
};

void join(const std::vector<OutputDelta>& deltas, Joined& joined) {
  for (const OutputDelta& delta : deltas) {
    EXPECT_EQ(!delta.reasoning.empty() + !delta.content.empty() + !delta.tool_calls.empty(), 1)
        << "mixed or empty delta";
    joined.reasoning += delta.reasoning;
    joined.content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (call.index == static_cast<int>(joined.calls.size())) {
        EXPECT_FALSE(call.name.empty());
        EXPECT_FALSE(call.id.empty());
        joined.calls.push_back({call.index, call.id, call.name, ""});
      } else {
        EXPECT_TRUE(call.name.empty() && call.id.empty());
      }
      joined.calls.at(call.index).arguments += call.arguments;
    }
  }
}

Joined parse(const OutputParserOptions& options, const std::vector<std::string>& pieces) {
  OutputParser parser(options);
  Joined joined;
  for (const std::string& piece : pieces) join(parser.feed(piece), joined);
  join(parser.finish(), joined);
  joined.complete = parser.num_tool_calls();
  return joined;
}

const OutputParserOptions kPlain = {.tool_format = ToolFormat::kNone};
const OutputParserOptions kThinking = {.starts_in_reasoning = true};
const OutputParserOptions kV3 = {.tool_format = ToolFormat::kDeepseekV3};
const OutputParserOptions kV31 = {.tool_format = ToolFormat::kDeepseekV31};

std::string v3_call(const std::string& name, const std::string& arguments) {
  return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" + arguments + "\n```<｜tool▁call▁end｜>";
}
std::string v31_call(const std::string& name, const std::string& arguments) {
  return "<｜tool▁call▁begin｜>" + name + "<｜tool▁sep｜>" + arguments + "<｜tool▁call▁end｜>";
}
std::string calls(const std::string& inner) {
  return "<｜tool▁calls▁begin｜>" + inner + "<｜tool▁calls▁end｜>";
}

TEST(OutputParser, TagsAcrossPieces) {
  const Joined joined = parse(kThinking, {"r</", "th", "ink>a"});
  EXPECT_EQ(joined.text(), "R[r] C[a] complete 0");
  EXPECT_EQ(parse(kThinking, {" thought", ".", "</think>", "Answer"}).text(), "R[ thought.] C[Answer] complete 0");
  EXPECT_EQ(parse(kThinking, {" thought.</think>Answer"}).text(), "R[ thought.] C[Answer] complete 0");
}

TEST(OutputParser, ReasoningOpenedByTheModel) {
  EXPECT_EQ(parse(kPlain, {"<think>why</think>so"}).text(), "R[why] C[so] complete 0");
  EXPECT_EQ(parse(kPlain, {"\n<th", "ink>why"}).text(), "R[why] C[] complete 0");
  EXPECT_EQ(parse(kThinking, {"<think>why</think>so"}).text(), "R[why] C[so] complete 0");
  EXPECT_EQ(parse(kPlain, {"<thin air> <think>"}).text(), "R[] C[<thin air> <think>] complete 0");
  EXPECT_EQ(parse({.parse_reasoning = false}, {"<think>a</think>b"}).text(), "R[] C[<think>a</think>b] complete 0");
  EXPECT_EQ(parse(kPlain, {"  <thi"}).text(), "R[] C[  <thi] complete 0");
  EXPECT_EQ(parse(kThinking, {"a</thin"}).text(), "R[a</thin] C[] complete 0");
}

TEST(OutputParser, ToolCallsOfBothFormats) {
  for (const char* arguments : {R"({"code": 123})", R"({"a":{"b":"x"}})", R"({"s":"`` ``` `"})", "{}"}) {
    ASSERT_TRUE(nlohmann::json::accept(arguments));
    const std::string expected = str_cat("R[] C[ok] 0:call_0:f(", arguments, ") 1:call_1:g({}) complete 2");
    EXPECT_EQ(parse(kV3, {"ok" + calls(v3_call("f", arguments) + "\n" + v3_call("g", "{}"))}).text(), expected);
    EXPECT_EQ(parse(kV31, {"ok" + calls(v31_call("f", arguments) + v31_call("g", "{}"))}).text(), expected);
  }
}

TEST(OutputParser, ArgumentsStreamWhileTheyCome) {
  OutputParser parser(kV31);
  parser.feed("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>");
  const auto deltas = parser.feed("{\"city\": \"Os");
  ASSERT_EQ(deltas.size(), 1u);
  EXPECT_EQ(deltas[0].tool_calls[0].arguments, "{\"city\": \"Os");
}

TEST(OutputParser, CutAndMalformedCalls) {
  EXPECT_EQ(parse(kV31, {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1"}).text(),
            "R[] C[] 0:call_0:f({\"a\": 1) complete 0");
  EXPECT_EQ(parse(kV3, {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n``"})
                .calls[0]
                .arguments,
            "{\"a\": 1}\n``");
  EXPECT_EQ(
      parse(kV3,
            {"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"a\": 1}\n```<｜tool"})
          .text(),
      "R[] C[] 0:call_0:f({\"a\": 1}) complete 1");
  EXPECT_EQ(parse(kV3, {"x<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>func"}).text(), "R[] C[x] complete 0");
  EXPECT_EQ(parse(kV31, {calls(v31_call("", "{}"))}).content,
            "<｜tool▁call▁begin｜><｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
  EXPECT_EQ(parse(kV31, {calls("junk") + " more"}).content, "junk<｜tool▁calls▁end｜> more");
  EXPECT_EQ(parse(kV31, {v31_call("f", "{}") + "\n done"}).text(), "R[] C[done] 0:call_0:f({}) complete 1");
  EXPECT_EQ(parse(kPlain, {calls(v31_call("f", "{}"))}).content, calls(v31_call("f", "{}")));
  // V3 without the fence.
  EXPECT_EQ(parse(kV3, {"<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n{\"a\":1}<｜tool▁call▁end｜>"}).text(),
            "R[] C[] 0:call_0:f({\"a\":1}) complete 1");
}

TEST(OutputParser, DetectsTheFormat) {
  EXPECT_EQ(OutputParser::detect_tool_format("no tools"), ToolFormat::kNone);
  EXPECT_EQ(OutputParser::detect_tool_format("<｜tool▁call▁begin｜> ```json"), ToolFormat::kDeepseekV3);
  EXPECT_EQ(OutputParser::detect_tool_format("<｜tool▁call▁begin｜> x"), ToolFormat::kDeepseekV31);
}

// The joined deltas must not depend on where the text is cut, whatever the text.
TEST(OutputParser, AnySplitGivesTheSame) {
  const std::string fragments[] = {"<think>",
                                   "</think>",
                                   "<｜tool▁calls▁begin｜>",
                                   "<｜tool▁calls▁end｜>",
                                   "<｜tool▁call▁begin｜>",
                                   "<｜tool▁call▁end｜>",
                                   "<｜tool▁sep｜>",
                                   "function",
                                   "name",
                                   "\n",
                                   " ",
                                   "```json",
                                   "```",
                                   "`",
                                   "{\"a\": 1}",
                                   "text",
                                   "<",
                                   "</thi",
                                   "<｜tool",
                                   "é😀",
                                   v3_call("f", "{\"x\": \"y\"}"),
                                   v31_call("g", "[1]"),
                                   calls(v3_call("h", "{}")),
                                   std::string(600, 'n')};
  constexpr uint64_t kSeed = 42;
  Rng rng(kSeed);
  for (int round = 0; round < 4000; ++round) {
    std::string text;
    for (size_t i = 1 + rng.below(12); i > 0; --i) text += fragments[rng.below(std::size(fragments))];
    OutputParserOptions options;
    options.parse_reasoning = rng.below(4) != 0;
    options.starts_in_reasoning = rng.below(2) != 0;
    options.tool_format = static_cast<ToolFormat>(rng.below(3));
    const std::string whole = parse(options, {text}).text();
    for (int split = 0; split < 4; ++split) {
      std::vector<std::string> pieces;
      const size_t longest = split == 0 ? 1 : 1 + rng.below(40);
      for (size_t at = 0; at < text.size();) {
        const size_t n = 1 + rng.below(longest);
        pieces.push_back(text.substr(at, n));
        at += n;
      }
      ASSERT_EQ(parse(options, pieces).text(), whole) << "seed " << kSeed << " round " << round << ": " << text;
    }
  }
}

}  // namespace
}  // namespace moesaic
