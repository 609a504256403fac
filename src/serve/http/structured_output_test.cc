// Constrained outputs through HTTP, over a model whose logits are random: whatever it would have said, the answer has
// the form that was asked for.
#include <regex>

#include "gtest/gtest.h"
#include "serve/http/http_test_util.h"

namespace moesaic {
namespace {

constexpr std::string_view kSchema =
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":9},"age":{"type":"integer","minimum":0,)"
    R"("maximum":130},"tags":{"type":"array","items":{"enum":["red","green"]},"maxItems":3}},"required":["name","age"],)"
    R"("additionalProperties":false})";

std::string json_schema_format(std::string_view schema) {
  return str_cat(R"("response_format":{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":)", schema,
                 "}}");
}

void expect_person(const std::string& text) {
  const auto parsed = parse_json(text);
  ASSERT_TRUE(parsed.ok()) << text << parsed.status();
  const Json& person = *parsed;
  ASSERT_TRUE(person.contains("name") && person["name"].is_string()) << text;
  EXPECT_LE(count_code_points(person["name"].get<std::string>()), 9u) << text;
  ASSERT_TRUE(person.contains("age") && person["age"].is_number_integer()) << text;
  EXPECT_TRUE(person["age"] >= 0 && person["age"] <= 130) << text;
  EXPECT_LE(person.size(), person.contains("tags") ? 3u : 2u) << text;
  for (const Json& tag : person.value("tags", Json::array())) EXPECT_TRUE(tag == "red" || tag == "green") << text;
}

TEST(StructuredOutput, JsonSchema) {
  const TestServer server;
  const std::string format = json_schema_format(kSchema);
  for (int seed = 0; seed < 8; ++seed) {
    const std::string fields =
        str_cat(R"("temperature":)", seed == 0 ? 0 : 1, R"(,"max_tokens":300,"seed":)", seed, ",", format);
    const HttpAnswer whole = server.chat(fields);
    ASSERT_EQ(whole.status, 200) << whole.body;
    const Json choice = whole.json()["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "stop") << whole.body;
    expect_person(choice["message"]["content"]);
    std::string streamed;
    for (const std::string& event : server.chat(str_cat(R"("stream":true,)", fields)).events()) {
      if (event == "[DONE]") continue;
      streamed += parse_json(event)->at("choices")[0]["delta"].value("content", "");
    }
    EXPECT_EQ(streamed, choice["message"]["content"]);
  }
  const Json three = server.chat(str_cat(R"("n":3,"temperature":1,"seed":1,"max_tokens":300,)", format)).json();
  ASSERT_EQ(three["choices"].size(), 3u);
  for (const Json& choice : three["choices"]) expect_person(choice["message"]["content"]);
}

TEST(StructuredOutput, CutByMaxTokens) {
  const TestServer server;
  const Json choice = server.chat(str_cat(R"("max_tokens":3,)", json_schema_format(kSchema))).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["content"].get<std::string>().substr(0, 1), "{");
}

TEST(StructuredOutput, EverySpellingOfTheFields) {
  const TestServer server;
  const std::string json_text = json_string(kSchema);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"("regex":"[a-c]{4}-\\d+x")", "[a-c]{4}-\\d+x"},
      {R"("guided_regex":"[a-c]{4}-\\d{3}")", "[a-c]{4}-\\d{3}"},
      {R"("structured_outputs":{"regex":"(ab|cd){5}","choice":null})", "(ab|cd){5}"},
      {R"("ebnf":"root ::= \"<\" [x-z]{2,5} \">\"")", "<[x-z]{2,5}>"},
      {R"("guided_grammar":"root ::= \"a\" root \"b\" | \"c\"")", "a*cb*"},
      {R"("structured_outputs":{"grammar":"root ::= [0-9]{3}"})", "[0-9]{3}"},
      {R"("guided_choice":["yes","no"])", "yes|no"},
      {R"("structured_outputs":{"choice":["left","right"]})", "left|right"},
      {str_cat(R"("json_schema":)", json_text), ""},
      {str_cat(R"("guided_json":)", kSchema), ""},
      {str_cat(R"("guided_json":)", json_text), ""},
      {str_cat(R"("structured_outputs":{"json":)", kSchema, "}"), ""},
      {json_schema_format(kSchema), ""},
  };
  for (const auto& [field, pattern] : cases) {
    const HttpAnswer answer = server.completion(str_cat(R"("prompt":"hi","max_tokens":300,)", field));
    ASSERT_EQ(answer.status, 200) << field << answer.body;
    const Json choice = answer.json()["choices"][0];
    const std::string text = choice["text"];
    if (pattern.empty()) {
      expect_person(text);
    } else if (choice["finish_reason"] == "stop") {
      EXPECT_TRUE(std::regex_match(text, std::regex(pattern))) << field << " " << text;
    }
  }
  for (const char* field :
       {R"("response_format":{"type":"json_object"})", R"("structured_outputs":{"json_object":true})"}) {
    const Json choice = server.completion(str_cat(R"("prompt":"hi","max_tokens":400,)", field)).json()["choices"][0];
    EXPECT_EQ(choice["text"].get<std::string>().substr(0, 1), "{");
    EXPECT_TRUE(choice["finish_reason"] == "length" || parse_json(choice["text"].get<std::string>())->is_object());
  }
}

// With thinking on, the form is kept behind </think>, and the thinking is free.
TEST(StructuredOutput, BehindTheReasoning) {
  const TestServer server;
  const std::string fields = str_cat(R"("chat_template_kwargs":{"thinking":true},)", json_schema_format(kSchema));
  const int32_t close = server.tokenizer->id_of("</think>");
  const Json cut = server.chat(str_cat(R"("max_tokens":20,)", fields)).json()["choices"][0];
  EXPECT_EQ(cut["finish_reason"], "length");
  EXPECT_FALSE(cut["message"]["reasoning_content"].is_null());
  const HttpAnswer answer = server.chat(str_cat(R"("max_tokens":300,"logit_bias":{")", close, R"(":100},)", fields));
  const Json choice = answer.json()["choices"][0];
  ASSERT_EQ(choice["finish_reason"], "stop") << answer.body;
  expect_person(choice["message"]["content"]);
}

constexpr std::string_view kTools =
    R"("tools":[{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":)"
    R"({"enum":["Oslo","Rome"]},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"],)"
    R"("additionalProperties":false}}},{"type":"function","function":{"name":"now"}}],)";

// The calls, of which each has the arguments that its tool wants.
Json expect_calls(const Json& choice) {
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
  EXPECT_TRUE(choice["message"]["content"].is_null()) << choice;
  const Json calls = choice["message"].value("tool_calls", Json::array());
  EXPECT_FALSE(calls.empty()) << choice;
  for (const Json& call : calls) {
    const auto arguments = parse_json(call["function"]["arguments"].get<std::string>());
    EXPECT_TRUE(arguments.ok() && arguments->is_object()) << call;
    if (!arguments.ok()) continue;
    if (call["function"]["name"] == "now") {
      EXPECT_TRUE(arguments->empty()) << call;
      continue;
    }
    EXPECT_EQ(call["function"]["name"], "weather");
    EXPECT_TRUE(arguments->at("city") == "Oslo" || arguments->at("city") == "Rome") << call;
    EXPECT_TRUE(arguments->at("days") >= 1 && arguments->at("days") <= 9) << call;
  }
  return calls;
}

// What a streamed answer says, in the form of one that is not.
Json joined(const HttpAnswer& answer) {
  Json choice = {{"finish_reason", nullptr}, {"message", {{"content", ""}}}};
  Json& message = choice["message"];
  for (const std::string& event : answer.events()) {
    if (event == "[DONE]") continue;
    const Json part = parse_json(event)->at("choices")[0];
    if (!part["finish_reason"].is_null()) choice["finish_reason"] = part["finish_reason"];
    message["content"] = message["content"].get<std::string>() + part["delta"].value("content", "");
    for (const Json& call : part["delta"].value("tool_calls", Json::array())) {
      Json& calls = message["tool_calls"];
      if (calls.size() <= call["index"]) calls.push_back({{"function", {{"name", ""}, {"arguments", ""}}}});
      for (const char* name : {"name", "arguments"}) {
        Json& text = calls[call["index"].get<size_t>()]["function"][name];
        text = text.get<std::string>() + call["function"].value(name, "");
      }
    }
  }
  if (message["content"] == "" && message.contains("tool_calls")) message["content"] = nullptr;
  return choice;
}

// With tools, the answer has the form or is calls; streamed, and with guesses, it is the same.
TEST(StructuredOutput, BesideTools) {
  const TestServer server({.context_length = 1024});
  const TestServer guessing({.max_draft_depth = 3, .context_length = 1024});
  const int32_t begin = server.tokenizer->id_of("<｜tool▁calls▁begin｜>");
  int num_calls = 0;
  for (int seed = 0; seed < 12; ++seed) {
    const int bias = seed % 3 == 0 ? 100 : seed % 3 == 1 ? -100 : 0;
    const std::string fields = str_cat(R"("temperature":1,"max_tokens":400,"seed":)", seed, R"(,"logit_bias":{")",
                                       begin, "\":", bias, "},", kTools, json_schema_format(kSchema));
    const HttpAnswer answer = server.chat(fields);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const Json choice = answer.json()["choices"][0];
    const bool calls = choice["message"].contains("tool_calls");
    num_calls += calls;
    EXPECT_TRUE(bias <= 0 || calls) << answer.body;
    if (calls) {
      expect_calls(choice);
    } else {
      EXPECT_EQ(choice["finish_reason"], "stop") << answer.body;
      expect_person(choice["message"]["content"]);
    }
    EXPECT_EQ(guessing.chat(fields).json()["choices"][0], choice);
    const Json streamed = joined(guessing.chat(str_cat(R"("stream":true,)", fields)));
    EXPECT_EQ(streamed["finish_reason"], choice["finish_reason"]);
    EXPECT_EQ(streamed["message"]["content"], choice["message"]["content"]);
    ASSERT_EQ(streamed["message"].contains("tool_calls"), calls) << streamed;
    for (size_t i = 0; calls && i < choice["message"]["tool_calls"].size(); ++i) {
      EXPECT_EQ(streamed["message"]["tool_calls"][i]["function"], choice["message"]["tool_calls"][i]["function"]);
    }
  }
  EXPECT_GE(num_calls, 4);
  EXPECT_GT(guessing.engine->stats().speculation->draft_tokens_total, 0);
}

TEST(StructuredOutput, ToolChoiceSaysWhichOfTheTwo) {
  const TestServer server({.context_length = 1024});
  for (int seed = 0; seed < 8; ++seed) {
    const auto ask = [&](std::string_view choice, std::string_view format) {
      const HttpAnswer answer =
          server.chat(str_cat(R"("temperature":1,"max_tokens":400,"seed":)", seed, ",", kTools, choice, format));
      EXPECT_EQ(answer.status, 200) << answer.body;
      return answer.json()["choices"][0];
    };
    const std::string format = json_schema_format(kSchema);
    expect_person(ask(R"("tool_choice":"none",)", format)["message"]["content"]);
    expect_calls(ask(R"("tool_choice":"required",)", format));
    constexpr std::string_view kNamed = R"("tool_choice":{"type":"function","function":{"name":"weather"}})";
    const Json named = ask(str_cat(kNamed, ","), format);
    EXPECT_EQ(expect_calls(named)[0]["function"]["name"], "weather");
    EXPECT_EQ(expect_calls(ask(kNamed, ""))[0]["function"], named["message"]["tool_calls"][0]["function"]);
  }
  // What cannot be followed is any object.
  const Json loose = server
                         .chat(R"("max_tokens":400,"tool_choice":"required","tools":[{"type":"function","function":)"
                               R"({"name":"f","parameters":{"type":"object","properties":{"a":{"not":{}}}}}}])")
                         .json()["choices"][0];
  EXPECT_EQ(loose["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>().substr(0, 1), "{");
}

// Behind the thinking too.
TEST(StructuredOutput, BesideToolsBehindTheReasoning) {
  const TestServer server({.context_length = 1024});
  const int32_t close = server.tokenizer->id_of("</think>");
  const int32_t begin = server.tokenizer->id_of("<｜tool▁calls▁begin｜>");
  const Json choice = server
                          .chat(str_cat(R"("thinking":true,"max_tokens":400,"logit_bias":{")", close, R"(":100,")",
                                        begin, R"(":90},)", kTools, json_schema_format(kSchema)))
                          .json()["choices"][0];
  expect_calls(choice);
}

TEST(StructuredOutput, RefusalsNameTheFieldAndThePlace) {
  const TestServer server;
  struct Wrong {
    std::string fields;
    const char* param;
    const char* message;
  };
  const std::string strict =
      R"("response_format":{"type":"json_object"},"tools":[{"type":"function","function":{"name":"f","strict":true,)"
      R"("parameters":{"type":"object","properties":{"a":{"not":{}}}}}}])";
  const std::vector<Wrong> cases = {
      {json_schema_format(R"({"type":"object","properties":{"a":{"not":{}}}})"), "response_format",
       "at #/properties/a: the keyword \"not\" is not supported"},
      {json_schema_format(R"({"type":"array","uniqueItems":true})"), "response_format", "\"uniqueItems\""},
      {json_schema_format("7"), "response_format", "must be a JSON schema"},
      {R"("response_format":{"type":"json_schema"})", "response_format", "json_schema"},
      {R"("response_format":{"type":"json_schema","json_schema":{"name":"x"}})", "response_format",
       "json_schema.schema"},
      {R"("response_format":{"type":"structural_tag"})", "response_format", "\"structural_tag\" is not supported"},
      {R"("response_format":"json_object")", "response_format", "an object with a type"},
      {R"("regex":"(a")", "regex", "a ) is missing"},
      {R"("regex":7)", "regex", "must be a string"},
      {R"("guided_regex":"\\bx")", "guided_regex", "\\b is not supported"},
      {R"("ebnf":"root ::= root \"a\" | \"b\"")", "ebnf", "left-recursive"},
      {R"("guided_choice":[])", "guided_choice", "strings"},
      {R"("guided_choice":["a",1])", "guided_choice", "strings"},
      {R"("guided_json":"{")", "guided_json", "is not valid JSON"},
      {R"("structured_outputs":{"whitespace_pattern":" "})", "structured_outputs", "whitespace_pattern"},
      {R"("structured_outputs":{})", "structured_outputs", "names no format"},
      {R"("structured_outputs":{"regex":"a","choice":["b"]})", "structured_outputs", "only one"},
      {R"("regex":"a","response_format":{"type":"json_object"})", "regex", "only one"},
      {strict, "tools", "tools[0].function.parameters: at #/properties/a: the keyword \"not\""},
  };
  for (const Wrong& wrong : cases) {
    const HttpAnswer answer = server.chat(wrong.fields);
    ASSERT_EQ(answer.status, 400) << wrong.fields << answer.body;
    const Json error = answer.json()["error"];
    EXPECT_EQ(error["param"], wrong.param) << answer.body;
    EXPECT_NE(error["message"].get<std::string>().find(wrong.message), std::string::npos) << answer.body;
  }
  EXPECT_EQ(server.chat(R"("response_format":{"type":"text"},"max_tokens":2,"regex":null)").status, 200);
}

}  // namespace
}  // namespace moesaic
