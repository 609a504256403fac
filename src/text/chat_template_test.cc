#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "text/text_test_util.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

std::string render(std::string_view source, const Json& variables = Json::object()) {
  const auto chat_template = ChatTemplate::parse(source);
  if (!chat_template.ok()) return "parse: " + chat_template.status().ToString();
  const auto text = (*chat_template)->render(variables);
  return text.ok() ? *text : "error: " + text.status().ToString();
}

TEST(ChatTemplate, Golden) {
  const Json golden = Json::parse(read_source_file("tests/data/golden/chat_template.json"));
  ASSERT_GT(golden["cases"].size(), 80u);
  std::map<std::string, std::unique_ptr<ChatTemplate>> templates;
  for (const auto& [name, source] : golden["templates"].items()) {
    templates[name] = ChatTemplate::parse(source.get<std::string>()).value();
  }
  for (Json row : golden["cases"]) {
    const std::string expected = row["rendered"];
    const std::string name = row["template"];
    row.erase("rendered");
    row.erase("template");
    row["bos_token"] = "<｜begin▁of▁sentence｜>";
    row["eos_token"] = "<｜end▁of▁sentence｜>";
    const auto text = templates.at(name)->render(row);
    ASSERT_TRUE(text.ok()) << text.status() << row;
    EXPECT_EQ(*text, expected) << row;
  }
}

TEST(ChatTemplate, LoadsFromTokenizerConfig) {
  const auto chat_template = ChatTemplate::load(source_path("models/tiny-deepseek-v3")).value();
  const Json variables = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"add_generation_prompt", true}};
  EXPECT_EQ(chat_template->render(variables).value(), "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>");
  EXPECT_TRUE(absl::IsNotFound(ChatTemplate::load(source_path("src/base")).status()));
}

TEST(ChatTemplate, OpensReasoning) {
  EXPECT_TRUE(ChatTemplate::opens_reasoning("<｜User｜>hi<｜Assistant｜><think>"));
  EXPECT_TRUE(ChatTemplate::opens_reasoning("<｜Assistant｜><think>\n"));
  EXPECT_FALSE(ChatTemplate::opens_reasoning("<｜Assistant｜></think>"));
  EXPECT_FALSE(ChatTemplate::opens_reasoning("<｜User｜>say <think> twice<｜Assistant｜>"));
}

TEST(ChatTemplate, ToJsonIsPythonsJsonDumps) {
  const Json t = Json::parse(R"([{"b":"天气 <a> & 'q' /x","a":1}])");
  EXPECT_EQ(render("{{ t|tojson }}", {{"t", t}}), R"([{"b": "天气 <a> & 'q' /x", "a": 1}])");
  EXPECT_EQ(render("{{ t|tojson(ensure_ascii=False) }}", {{"t", t}}), R"([{"b": "天气 <a> & 'q' /x", "a": 1}])");
  EXPECT_EQ(render("{{ t|tojson(ensure_ascii=True) }}", {{"t", "é😀"}}), R"("\u00e9\ud83d\ude00")");
  EXPECT_EQ(render("{{ t|tojson }}", {{"t", "\x01\b\f\n\r\t\"\\\x7f"}}), "\"\\u0001\\b\\f\\n\\r\\t\\\"\\\\\x7f\"");
  const Json numbers = Json::parse(
      "[1.0, 0.1, 1e16, 1e22, 1e-5, 123456789012345.0, -0.0, 18446744073709551615, -9223372036854775808, true, null, "
      "{}, []]");
  EXPECT_EQ(render("{{ t|tojson }}", {{"t", numbers}}),
            "[1.0, 0.1, 1e+16, 1e+22, 1e-05, 123456789012345.0, -0.0, 18446744073709551615, -9223372036854775808, "
            "true, null, {}, []]");
  EXPECT_EQ(render("{{ t|tojson(indent=2) }}", {{"t", Json::parse(R"({"a":[1,2],"b":{}})")}}),
            "{\n  \"a\": [\n    1,\n    2\n  ],\n  \"b\": {}\n}");
}

TEST(ChatTemplate, WhitespaceControl) {
  EXPECT_EQ(render("a\n  {% if true %}\n  b\n  {% endif %}\nc\n"), "a\n  b\nc");
  EXPECT_EQ(render("a  {%- if true -%}  b  {%- endif -%}  c"), "abc");
  EXPECT_EQ(render("a {{- 1 -}} b"), "a1b");
  EXPECT_EQ(render("  {{ 1 }}\n2"), "  1\n2");
  EXPECT_EQ(render("  {%+ if true +%}\nx{% endif %}"), "  \nx");
  EXPECT_EQ(render("a\n  {# note #}\nb"), "a\nb");
  EXPECT_EQ(render("x {% if true %}\ny{% endif %}"), "x y");
  EXPECT_EQ(render("a\r\nb\n\n"), "a\nb\n");
  EXPECT_EQ(render("{{ {'a': {'b': 1}}['a']['b'] }}"), "1");
  EXPECT_EQ(render("{{ '}}' }}{{ \"{% x %}\" }}"), "}}{% x %}");
}

TEST(ChatTemplate, Expressions) {
  EXPECT_EQ(render("{{ 1 + 2 * 3 - 4 // 3 - 7 % 4 }}"), "3");
  EXPECT_EQ(render("{{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 1.5 + 1 }}"), "-4 2 3.5 2.5");
  EXPECT_EQ(render("{{ 'a' ~ 1 ~ none ~ true }} {{ 'a' 'b' + 'c' }}"), "a1NoneTrue abc");
  EXPECT_EQ(render("{{ 'x' if false }}|{{ 'x' if 1 else 'y' }}|{{ not false and (false or 1) }}"), "|x|1");
  EXPECT_EQ(render("{{ 1 < 2 <= 2 != 3 }} {{ 'a' in 'cat' }} {{ 'b' not in ['a'] }} {{ 'k' in {'k': 1} }}"),
            "True True True True");
  EXPECT_EQ(
      render(
          "{{ [1,2,3][-1] }} {{ 'añb'[1] }} {{ [1,2,3][1:] }} {{ 'abcd'[::-1] }} {{ 'abcd'[:-1] }} {{ (1,2)|length }}"),
      "3 ñ [2, 3] dcba abc 2");
  EXPECT_EQ(render("{{ x is defined }} {{ x is not defined }} {{ none is none }} {{ 'a' is string }} {{ {} is mapping "
                   "}} {{ 3 is number }} {{ [] is iterable }}"),
            "False True True True True True True");
  EXPECT_EQ(render("{{ x }}|{{ x|default('d') }}|{{ ''|default('e', true) }}|{{ x is not none }}"), "|d|e|True");
  EXPECT_EQ(
      render("{{ 'a</t>b</t>c'.split('</t>')[-1] }} {{ 'a</t>b</t>c'.split('</t>', 1)[1] }} {{ ' a  b '.split() }}"),
      "c b</t>c ['a', 'b']");
  EXPECT_EQ(render("{{ '  x '.strip() ~ '|' ~ 'xxa'.lstrip('x') ~ '|' ~ ' y '|trim }} {{ 'abc'.startswith('ab') }} {{ "
                   "'aXbX'.replace('X','-') }} {{ 'é'|length }}"),
            "x|a|y True a-b- 1");
  EXPECT_EQ(render("{{ ['a','b']|join(', ') }} {{ [3,4]|first }} {{ [3,4]|last }} {{ 'aB'|upper }} {{ 'aB'|lower }}"),
            "a, b 3 4 AB ab");
  EXPECT_EQ(render("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}"), "a=1;b=2;");
  EXPECT_EQ(render("{{ '\\n\\t\\x41\\u00e9\\'' }}"), "\n\tAé'");
  EXPECT_EQ(
      render("{{ m.role }} {{ m['role'] }} {{ m.x is defined }} {{ m.get('x', 3) }}", {{"m", {{"role", "user"}}}}),
      "user user False 3");
}

TEST(ChatTemplate, Statements) {
  EXPECT_EQ(
      render("{% for i in [1,2,3,4] if i % 2 == 0 %}{{ loop.index }}:{{ i }}{{ ',' if not loop.last }}{% endfor %}"),
      "1:2,2:4");
  EXPECT_EQ(render("{% for i in [] %}x{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(render("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}{% break %}{% endif "
                   "%}{{ i }}{% endfor %}"),
            "02");
  EXPECT_EQ(render("{% for i in [1,2] %}{{ loop.index0 }}{{ loop.first }}{{ loop.length }} {% endfor %}"),
            "0True2 1False2 ");
  // `set` inside a loop stays there, inside an if it does not; a namespace carries values out.
  EXPECT_EQ(render("{% set a = 1 %}{% for i in [1] %}{% set a = 2 %}{{ a }}{% endfor %}{{ a }}"), "21");
  EXPECT_EQ(render("{% if true %}{% set a = 3 %}{% endif %}{{ a }}"), "3");
  EXPECT_EQ(
      render("{% set ns = namespace(n=0) %}{% for i in [1,2,3] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}"),
      "6");
  EXPECT_EQ(render("{% if 0 %}a{% elif '' %}b{% elif 'x' %}c{% else %}d{% endif %}"), "c");
  EXPECT_EQ(render("{% set x %}a{{ 1 }}{% endset %}[{{ x }}]"), "[a1]");
  EXPECT_EQ(render("{% set a, b = [1, 2] %}{{ b }}{{ a }}"), "21");
}

TEST(ChatTemplate, RunTimeErrorsNameThePlace) {
  EXPECT_THAT(render("\n {{ 'a' + none }}"),
              HasSubstr("line 2, column 9: can only concatenate str (not \"NoneType\") to str"));
  EXPECT_THAT(render("{{ a.b }}"), HasSubstr("'a' is undefined"));
  EXPECT_THAT(render("{{ raise_exception('no system role') }}"), HasSubstr("no system role"));
  EXPECT_THAT(render("{% for x in 3 %}{% endfor %}"), HasSubstr("'int' object is not iterable"));
  EXPECT_THAT(render("{{ 1 // 0 }}"), HasSubstr("division by zero"));
  EXPECT_THAT(render("{{ 9223372036854775807 * 9223372036854775807 }}"), HasSubstr("integer overflow"));
  EXPECT_THAT(render("{% set loop = 1 %}{% set loop.x = 1 %}"), HasSubstr("not a namespace"));
}

TEST(ChatTemplate, UnknownConstructsAreRefusedAtLoad) {
  const std::pair<const char*, const char*> rows[] = {
      {"{% macro f() %}{% endmacro %}", "line 1, column 4: the statement {% macro %} is not supported"},
      {"{{ x|frobnicate }}", "the filter frobnicate is not supported"},
      {"{{ x is sameas y }}", "the test sameas is not supported"},
      {"{{ x.format(1) }}", "the method format() is not supported"},
      {"{{ cycler(1) }}", "the function cycler() is not supported"},
      {"{% include 'x' %}", "{% include %}"},
      {"{% break %}", "{% break %}"},
      {"{{ 2 ** 3 }}", "the operator ** is not supported"},
      {"a\n{% if x %}", "line 2, column 11: expected {% endif %}, found the end"},
      {"{{ x", "the tag has no end"},
      {"{# x", "the comment has no end"},
      {"{{ 'x }}", "the string has no end"},
      {"{{ }}", "expected an expression"},
      {"{{ a b }}", "expected }}, found b"},
      {"{{ (1 }}", "unexpected \"}\""},
      {"{{ @ }}", "unexpected character"},
      {"{% endif %}", "{% endif %}"},
      {"{{ 99999999999999999999 }}", "out of range"},
      {"{{ '\\ud800' }}", "bad escape"},
      {"{{ x[] }}", "expected an index"},
  };
  for (const auto& [source, message] : rows) {
    EXPECT_THAT(render(source), testing::AllOf(testing::StartsWith("parse: "), HasSubstr(message))) << source;
  }
}

TEST(ChatTemplate, HostileTemplatesEnd) {
  const auto repeat = [](const std::string& text, int n) {
    std::string out;
    for (int i = 0; i < n; ++i) out += text;
    return out;
  };
  EXPECT_THAT(render("{{ " + repeat("(", 100000) + "1" + repeat(")", 100000) + " }}"), HasSubstr("nested deeper"));
  EXPECT_THAT(render("{{ " + repeat("not ", 100000) + "x }}"), HasSubstr("nested"));
  EXPECT_THAT(render("{{ " + repeat("-", 100000) + "1 }}"), HasSubstr("nested"));
  EXPECT_THAT(render("{{ 1" + repeat("+1", 100000) + " }}"), HasSubstr("deeper"));
  EXPECT_THAT(render("{{ x" + repeat("|trim", 100000) + " }}"), HasSubstr("deeper"));
  EXPECT_THAT(render("{{ x" + repeat(".a", 100000) + " }}"), HasSubstr("deeper"));
  EXPECT_THAT(render(repeat("{% if 1 %}", 100000)), HasSubstr("nested deeper"));
  EXPECT_THAT(render("{% for a in range(1000000000000) %}{% endfor %}"), HasSubstr("steps"));
  EXPECT_THAT(render("{% for a in range(9000) %}{% for b in range(9000) %}{% endfor %}{% endfor %}"),
              HasSubstr("rendering"));
  EXPECT_THAT(render("{{ 'abcdefgh' * 1000000000 }}"), HasSubstr("too long"));
  EXPECT_THAT(
      render("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"),
      HasSubstr("MiB"));
  EXPECT_THAT(render("{% set ns = namespace(s=[]) %}{% for i in range(1000) %}{% set ns.s = [ns.s] %}{% endfor %}"),
              HasSubstr("nested deeper"));
  EXPECT_THAT(render("{% set ns = namespace() %}{% set ns.a = ns %}"), HasSubstr("cannot hold"));
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  EXPECT_THAT(render("{{ x }}", {{"x", deep}}), HasSubstr("nested deeper"));
}

}  // namespace
}  // namespace moesaic
