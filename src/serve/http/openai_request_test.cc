#include "serve/http/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/http/openai_error.h"

namespace moesaic {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const RequestLimits kLimits = {
    .served_name = "tiny", .vocab_size = 100, .defaults = {.temperature = 0.6f, .top_p = 0.95f}};

absl::StatusOr<CompletionRequest> chat(const std::string& fields) {
  return parse_chat_request(R"({"messages":[{"role":"user","content":"hi"}])" + fields + "}", kLimits);
}
absl::StatusOr<CompletionRequest> completion(const std::string& fields) {
  return parse_completion_request("{" + fields + "}", kLimits);
}
std::string param_of(const absl::Status& status) {
  const Json error = *parse_json(error_json(status));
  return error["error"]["param"].is_string() ? error["error"]["param"].get<std::string>() : "";
}

TEST(Json, RefusesWhatIsNotStrictJson) {
  const std::string deep(200, '[');
  for (const std::string& text :
       {std::string(""), std::string("{"), std::string("{}x"), std::string("{'a':1}"), std::string("{\"a\":NaN}"),
        std::string("[Infinity]"), std::string("[-Infinity]"), std::string("[1e999]"), std::string("[01]"),
        std::string("[\"\xff\"]"), std::string("[\"\xc3\"]"), std::string("[\"\xed\xa0\x80\"]"),
        std::string("[\"\\ud800\"]"), std::string("[\"\\udc00x\"]"), std::string("[\"\\ud800\\u0041\"]"),
        std::string("[\"\n\"]"), std::string("{\"a\":1,\"a\":2}"), deep, deep + std::string(200, ']')}) {
    const auto parsed = parse_json(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_EQ(http_status(parsed.status()), 400) << text;
  }
  EXPECT_TRUE(parse_json(std::string(128, '[') + std::string(128, ']')).ok());
  EXPECT_EQ((*parse_json(R"({"z":"\ud83d\ude00","a":[1,2.5,null,true]})")).dump(),
            R"({"z":"😀","a":[1,2.5,null,true]})");
}

TEST(Json, ManyKeysTakeNoQuadraticTime) {
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i) text += str_cat(i > 0 ? "," : "", "\"key", i, "\":", i);
  const auto parsed = parse_json(text + "}");  // quadratic: hours
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->size(), 300'000u);
}

TEST(Json, EscapesStrings) {
  EXPECT_EQ(json_string("a\"\\\n\r\t\x01\x7f é😀"), "\"a\\\"\\\\\\n\\r\\t\\u0001\\u007f é😀\"");
  EXPECT_EQ(json_string("a\xff\xf0\x9f b"), "\"a\xEF\xBF\xBD\xEF\xBF\xBD b\"");
}

struct BadField {
  const char* fields;
  const char* param;
};

TEST(OpenAiRequest, RefusesBadCommonFieldsByName) {
  for (const BadField& bad : std::vector<BadField>{
           {R"("temperature":-0.1)", "temperature"},
           {R"("temperature":2.5)", "temperature"},
           {R"("temperature":"hot")", "temperature"},
           {R"("top_p":0)", "top_p"},
           {R"("top_p":1.1)", "top_p"},
           {R"("top_k":-2)", "top_k"},
           {R"("top_k":1.5)", "top_k"},
           {R"("min_p":2)", "min_p"},
           {R"("frequency_penalty":-2.1)", "frequency_penalty"},
           {R"("presence_penalty":3)", "presence_penalty"},
           {R"("repetition_penalty":0)", "repetition_penalty"},
           {R"("n":0)", "n"},
           {R"("n":129)", "n"},
           {R"("n":1e30)", "n"},
           {R"("n":true)", "n"},
           {R"("best_of":2)", "best_of"},
           {R"("max_tokens":-1)", "max_tokens"},
           {R"("max_tokens":1.5)", "max_tokens"},
           {R"("max_completion_tokens":-1)", "max_completion_tokens"},
           {R"("max_tokens":99999999999999999999)", "max_tokens"},
           {R"("min_tokens":5,"max_tokens":4)", "min_tokens"},
           {R"("stop":"")", "stop"},
           {R"("stop":["a",""])", "stop"},
           {R"("stop":[1])", "stop"},
           {R"("stop":{"a":1})", "stop"},
           {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])", "stop"},
           {R"("stop_token_ids":[100])", "stop_token_ids"},
           {R"("stop_token_ids":[151645])", "stop_token_ids"},
           {R"("stop_token_ids":7)", "stop_token_ids"},
           {R"("logit_bias":{"99999999":5})", "logit_bias"},
           {R"("logit_bias":{"-1":5})", "logit_bias"},
           {R"("logit_bias":{"x":5})", "logit_bias"},
           {R"("logit_bias":{"5":101})", "logit_bias"},
           {R"("logit_bias":{"5":"a"})", "logit_bias"},
           {R"("logit_bias":[1])", "logit_bias"},
           {R"("seed":1.5)", "seed"},
           {R"("seed":"x")", "seed"},
           {R"("stream":"yes")", "stream"},
           {R"("stream_options":{"include_usage":true})", "stream_options"},
           {R"("stream":true,"stream_options":3)", "stream_options"},
           {R"("response_format":{"type":"json_schema"})", "response_format"},
           {R"("response_format":{})", "response_format"},
           {R"("regex":["a+"])", "regex"},
           {R"("regex":"a","ebnf":"b")", "ebnf"},
           {R"("priority":1001)", "priority"},
           {R"("priority":"high")", "priority"},
           {R"("structural_tag":{})", "structural_tag"},
           {R"("ignore_eos":1)", "ignore_eos"},
           {R"("cache_salt":"")", "cache_salt"},
           {R"("cache_salt":7)", "cache_salt"},
           {R"("cache_prompt":"no")", "cache_prompt"},
           {R"("model":7)", "model"},
       }) {
    const auto from_chat = chat(std::string(",") + bad.fields);
    ASSERT_FALSE(from_chat.ok()) << bad.fields;
    EXPECT_EQ(param_of(from_chat.status()), bad.param) << from_chat.status();
    EXPECT_EQ(http_status(from_chat.status()), 400) << bad.fields;
    const auto from_text = completion(std::string(R"("prompt":"x",)") + bad.fields);
    ASSERT_FALSE(from_text.ok()) << bad.fields;
    EXPECT_EQ(param_of(from_text.status()), bad.param) << bad.fields;
  }
}

TEST(OpenAiRequest, RefusesWhatItCannotHonour) {
  for (const BadField& bad : std::vector<BadField>{
           {R"("functions":[{"name":"f"}])", "functions"},
           {R"("allowed_token_ids":[1])", "allowed_token_ids"},
           {R"("bad_words":["a"])", "bad_words"},
           {R"("use_beam_search":true)", "use_beam_search"},
           {R"("truncate_prompt_tokens":5)", "truncate_prompt_tokens"},
           {R"("prompt_logprobs":0)", "prompt_logprobs"},
           {R"("chat_template":"x")", "chat_template"},
           {R"("stop_regex":"a+")", "stop_regex"},
           {R"("lora_path":"x")", "lora_path"},
       }) {
    EXPECT_EQ(param_of(chat(std::string(",") + bad.fields).status()), bad.param) << bad.fields;
    EXPECT_EQ(param_of(completion(std::string(R"("prompt":"x",)") + bad.fields).status()), bad.param) << bad.fields;
  }
}

TEST(OpenAiRequest, WhatAsksForNothingIsNotRefused) {
  for (const char* fields : {R"("use_beam_search":false)", R"("bad_words":[])", R"("chat_template":"")",
                             R"("best_of":1)", R"("functions":null)", R"("unknown":{"a":1})"}) {
    EXPECT_TRUE(chat(std::string(",") + fields).ok()) << fields;
    EXPECT_TRUE(completion(std::string(R"("prompt":"x",)") + fields).ok()) << fields;
  }
}

TEST(OpenAiRequest, RefusesBadPrompts) {
  for (const char* fields :
       {R"("x":1)", R"("prompt":null)", R"("prompt":[])", R"("prompt":{})", R"("prompt":[-1])", R"("prompt":[100])",
        R"("prompt":[5279552648203111001])", R"("prompt":[1,"a"])", R"("prompt":["a",1])", R"("prompt":[[1],"a"])",
        R"("prompt":[[1,200]])", R"("prompt":[[1.5]])", R"("prompt":[true])", R"("prompt":[null])", R"("prompt":1)"}) {
    const auto parsed = completion(fields);
    ASSERT_FALSE(parsed.ok()) << fields;
    EXPECT_EQ(param_of(parsed.status()), "prompt") << parsed.status();
  }
  EXPECT_EQ(param_of(completion(R"("prompt":"a","suffix":"b")").status()), "suffix");
  EXPECT_EQ(param_of(completion(R"("prompt":"a","logprobs":21)").status()), "logprobs");
  EXPECT_THAT(completion(R"("prompt":[100])").status().ToString(), HasSubstr("100"));  // the limit is named
}

TEST(OpenAiRequest, RefusesBadChats) {
  const auto parse = [](const std::string& fields) { return parse_chat_request("{" + fields + "}", kLimits).status(); };
  const std::string hi = R"("messages":[{"role":"user","content":"hi"}])";
  const std::string tool = R"("tools":[{"type":"function","function":{"name":"f"}}])";
  EXPECT_EQ(param_of(parse("")), "messages");
  EXPECT_EQ(param_of(parse(R"("messages":[])")), "messages");
  EXPECT_EQ(param_of(parse(R"("messages":"hi")")), "messages");
  EXPECT_EQ(param_of(parse(R"("messages":["hi"])")), "messages[0]");
  EXPECT_EQ(param_of(parse(R"("messages":[{"role":"robot","content":"x"}])")), "messages[0].role");
  EXPECT_EQ(param_of(parse(R"("messages":[{"role":"user"}])")), "messages[0].content");
  EXPECT_EQ(param_of(parse(R"("messages":[{"role":"user","content":null}])")), "messages[0].content");
  EXPECT_EQ(param_of(parse(R"("messages":[{"role":"user","content":7}])")), "messages[0].content");
  const absl::Status image =
      parse(R"("messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])");
  EXPECT_EQ(param_of(image), "messages[0].content[0]");
  EXPECT_THAT(image.ToString(), HasSubstr("image_url"));
  EXPECT_EQ(param_of(parse(hi + R"(,"top_logprobs":3)")), "top_logprobs");
  EXPECT_EQ(param_of(parse(hi + R"(,"logprobs":true,"top_logprobs":21)")), "top_logprobs");
  EXPECT_EQ(param_of(parse(hi + R"(,"tools":[{"type":"web"}])")), "tools[0]");
  EXPECT_EQ(param_of(parse(hi + R"(,"tools":[{"type":"function","function":{}}])")), "tools[0]");
  EXPECT_EQ(param_of(parse(hi + R"(,"tool_choice":"required")")), "tool_choice");
  EXPECT_EQ(param_of(parse(hi + "," + tool + R"(,"tool_choice":"sometimes")")), "tool_choice");
  EXPECT_EQ(param_of(parse(hi + "," + tool + R"(,"tool_choice":{"type":"function","function":{"name":"g"}})")),
            "tool_choice");
  EXPECT_EQ(param_of(parse(hi + R"(,"thinking":"yes")")), "thinking");
  EXPECT_EQ(param_of(parse(hi + R"(,"continue_final_message":true)")), "continue_final_message");
}

TEST(OpenAiRequest, ReadsEveryField) {
  const auto parsed = completion(
      R"("model":"tiny","prompt":[[1,2],[3]],"n":2,"temperature":1,"top_p":0.5,"top_k":7,"min_p":0.25,)"
      R"("frequency_penalty":1,"presence_penalty":-1,"repetition_penalty":1.5,"seed":-1,"logit_bias":{"5":-100},)"
      R"("stop":["a","b"],"stop_token_ids":[9],"max_tokens":16.0,"min_tokens":3,"ignore_eos":true,"echo":true,)"
      R"("logprobs":4,"stream":true,"stream_options":{"include_usage":true},"skip_special_tokens":false,)"
      R"("no_stop_trim":true,"unknown_field":{"x":[1]},"user":"me","priority":-3,"cache_salt":"t1","cache_prompt":false)");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_THAT(std::get<1>(parsed->prompts.at(0)), ElementsAre(1, 2));
  EXPECT_THAT(std::get<1>(parsed->prompts.at(1)), ElementsAre(3));
  EXPECT_EQ(parsed->n, 2);
  EXPECT_EQ(parsed->sampling.temperature, 1.0f);
  EXPECT_EQ(parsed->sampling.top_p, 0.5f);
  EXPECT_EQ(parsed->sampling.top_k, 7);
  EXPECT_EQ(parsed->sampling.min_p, 0.25f);
  EXPECT_EQ(parsed->sampling.frequency_penalty, 1.0f);
  EXPECT_EQ(parsed->sampling.presence_penalty, -1.0f);
  EXPECT_EQ(parsed->sampling.repetition_penalty, 1.5f);
  EXPECT_TRUE(parsed->has_seed);
  EXPECT_EQ(parsed->sampling.seed, ~uint64_t{0});
  EXPECT_THAT(parsed->sampling.logit_bias, ElementsAre(std::pair(5, -100.0f)));
  EXPECT_THAT(parsed->stop, ElementsAre("a", "b"));
  EXPECT_THAT(parsed->stop_token_ids, ElementsAre(9));
  EXPECT_EQ(parsed->max_tokens, 16);
  EXPECT_EQ(parsed->sampling.min_tokens, 3);
  EXPECT_TRUE(parsed->ignore_eos && parsed->echo && parsed->stream && parsed->include_usage);
  EXPECT_TRUE(parsed->include_stop_in_output);
  EXPECT_FALSE(parsed->skip_special_tokens);
  EXPECT_EQ(parsed->num_logprobs, 4);
  EXPECT_EQ(parsed->priority, -3);
  EXPECT_EQ(parsed->cache_salt, "t1");
  EXPECT_FALSE(parsed->use_prefix_cache);
}

TEST(OpenAiRequest, NullIsAbsentAndDefaultsComeFromTheModel) {
  const auto parsed = chat(R"(,"temperature":null,"top_p":null,"stop":null,"n":null,"max_tokens":null,"tools":null,)"
                           R"("response_format":{"type":"text"},"logit_bias":null,"seed":null,"best_of":1)");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->sampling.temperature, 0.6f);
  EXPECT_EQ(parsed->sampling.top_p, 0.95f);
  EXPECT_FALSE(parsed->max_tokens.has_value());
  EXPECT_FALSE(parsed->has_seed);
  EXPECT_EQ(chat(R"(,"max_tokens":5,"max_completion_tokens":7)")->max_tokens, 7);
  EXPECT_EQ(chat(R"(,"max_tokens":0)")->max_tokens, 0);
}

TEST(OpenAiRequest, BringsChatsIntoTheTemplatesForm) {
  const auto parsed = parse_chat_request(
      R"({"messages":[{"role":"developer","content":"s"},)"
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"f","arguments":)"
      R"({"city":"Oslo"}}}]},{"role":"tool","tool_call_id":"c1","content":"ok"}],)"
      R"("tools":[{"type":"function","function":{"name":"f"}}],"chat_template_kwargs":{"thinking":true}})",
      kLimits);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->chat->messages.dump(),
            R"([{"role":"system","content":"s"},{"role":"user","content":"a b"},)"
            R"({"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function",)"
            R"("function":{"name":"f","arguments":{"city":"Oslo"}}}]},)"
            R"({"role":"tool","content":"ok","tool_call_id":"c1"}])");
  EXPECT_EQ(parsed->chat->tool_choice, ToolChoice::kAuto);
  EXPECT_EQ(parsed->chat->template_variables.dump(), R"({"thinking":true})");
  EXPECT_EQ(chat(R"(,"thinking":{"type":"enabled"})")->chat->template_variables.dump(), R"({"thinking":true})");
}

TEST(OpenAiRequest, UnknownModelIsNotFoundAndNamesTheServedOne) {
  const absl::Status status = chat(R"(,"model":"gpt-4")").status();
  EXPECT_EQ(http_status(status), 404);
  const Json error = *parse_json(error_json(status));
  EXPECT_EQ(error["error"]["code"], "model_not_found");
  EXPECT_THAT(error["error"]["message"].get<std::string>(), HasSubstr("\"tiny\""));
  EXPECT_TRUE(chat(R"(,"model":"tiny")").ok());
}

}  // namespace
}  // namespace moesaic
