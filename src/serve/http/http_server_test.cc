#include "serve/http/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/http/http_test_util.h"
#include "serve/http/routing.h"

namespace moesaic {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Joined deltas, and the rules that every good stream keeps.
struct Streamed {
  std::string reasoning;
  std::string content;
  std::string arguments;
  std::string finish_reason;
};

Streamed check_stream(const HttpAnswer& answer) {
  Streamed out;
  const std::vector<std::string> events = answer.events();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.head, HasSubstr("Content-Type: text/event-stream"));
  EXPECT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json chunk = *parse_json(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    if (chunk["choices"].empty()) continue;
    const Json& choice = chunk["choices"][0];
    const Json& delta = choice["delta"];
    EXPECT_EQ(delta.contains("role"), i == 0) << events[i];
    EXPECT_LE(delta.contains("content") + delta.contains("reasoning_content") + delta.contains("tool_calls"), 1);
    if (delta.contains("reasoning_content")) out.reasoning += delta["reasoning_content"].get<std::string>();
    if (delta.contains("content")) out.content += delta["content"].get<std::string>();
    if (delta.contains("tool_calls")) {
      for (const Json& call : delta["tool_calls"]) out.arguments += call["function"]["arguments"].get<std::string>();
    }
    if (choice["finish_reason"].is_null()) continue;
    EXPECT_EQ(out.finish_reason, "") << "a second finish_reason";
    out.finish_reason = choice["finish_reason"].get<std::string>();
  }
  return out;
}

TEST(HttpServer, ListsModelsHealthVersionAndRefusesTheRest) {
  const TestServer server;
  const int port = server.port();
  const Json models = call(port, "GET", "/v1/models").json();
  EXPECT_EQ(models["object"], "list");
  EXPECT_EQ(models["data"][0]["id"], "tiny");
  EXPECT_EQ(models["data"][0]["max_model_len"], 512);
  EXPECT_EQ(call(port, "GET", "/v1/models/tiny").json()["id"], "tiny");
  EXPECT_EQ(call(port, "GET", "/v1/models/%74iny?x=1").json()["id"], "tiny");
  EXPECT_EQ(call(port, "GET", "/v1/models/other").status, 404);
  EXPECT_EQ(call(port, "GET", "/health").status, 200);
  EXPECT_EQ(call(port, "GET", "/health_generate").status, 200);
  EXPECT_EQ(call(port, "GET", "/version").status, 200);
  EXPECT_EQ(call(port, "GET", "/").status, 200);
  EXPECT_EQ(call(port, "HEAD", "/health").status, 200);
  EXPECT_EQ(call(port, "OPTIONS", "/v1/chat/completions").status, 204);
  const HttpAnswer missing = call(port, "GET", "/v2/nothing");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.json()["error"]["type"], "not_found_error");
  const HttpAnswer wrong = call(port, "GET", "/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.head, HasSubstr("Allow: POST"));
  EXPECT_EQ(call(port, "POST", "/v1/models", "{}").status, 405);
}

TEST(HttpServer, ChatAnswersWholeAndStreamedAlike) {
  const TestServer server({.script = "Hello, world. é😀!"});
  const HttpAnswer whole = server.chat(R"("max_tokens":50)");
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Json json = whole.json();
  EXPECT_TRUE(json["id"].get<std::string>().starts_with("chatcmpl-"));
  EXPECT_EQ(json["object"], "chat.completion");
  EXPECT_EQ(json["model"], "tiny");
  EXPECT_EQ(json["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(json["choices"][0]["message"]["content"], "Hello, world. é😀!");
  EXPECT_EQ(json["choices"][0]["finish_reason"], "stop");
  // One BOS, from the template.
  const std::string rendered = "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>";
  EXPECT_EQ(json["usage"]["prompt_tokens"], server.tokenizer->encode(rendered).size());
  EXPECT_EQ(json["usage"]["completion_tokens"], server.tokenizer->encode("Hello, world. é😀!").size() + 1);

  const HttpAnswer stream = server.chat(R"("max_tokens":50,"stream":true,"stream_options":{"include_usage":true})");
  const Streamed streamed = check_stream(stream);
  EXPECT_EQ(streamed.content, "Hello, world. é😀!");
  EXPECT_EQ(streamed.finish_reason, "stop");
  const std::vector<std::string> events = stream.events();
  const Json last = *parse_json(events[events.size() - 2]);
  EXPECT_EQ(last["choices"].dump(), "[]");
  EXPECT_EQ(last["usage"].dump(), [&] {
    Json usage = json["usage"];
    usage["prompt_tokens_details"]["cached_tokens"] = last["usage"]["prompt_tokens_details"]["cached_tokens"];
    return usage.dump();
  }());
  EXPECT_TRUE((*parse_json(events[0]))["usage"].is_null());
}

TEST(HttpServer, ReasoningComesApartFromContent) {
  const TestServer server({.script = " thought.</think>Answer"});
  for (const char* stop : {"", R"(,"stop":["zzzz"])"}) {
    const std::string fields = str_cat(R"("max_tokens":50,"chat_template_kwargs":{"thinking":true})", stop);
    const Json message = server.chat(fields).json()["choices"][0]["message"];
    EXPECT_EQ(message["reasoning_content"], " thought.");
    EXPECT_EQ(message["content"], "Answer");
    const Streamed streamed = check_stream(server.chat(fields + R"(,"stream":true)"));
    EXPECT_EQ(streamed.reasoning, " thought.");
    EXPECT_EQ(streamed.content, "Answer");
    const Json joined = server.chat(fields + R"(,"separate_reasoning":false)").json()["choices"][0]["message"];
    EXPECT_TRUE(joined["reasoning_content"].is_null());
    EXPECT_EQ(joined["content"], " thought.</think>Answer");
  }
}

constexpr char kTools[] = R"("tools":[{"type":"function","function":{"name":"add","parameters":{"type":"object"}}}])";

TEST(HttpServer, ToolCallsAreParsedAndCutOnesAreNot) {
  const TestServer server(
      {.script = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\":{\"b\":12}}<｜tool▁call▁end｜>"
                 "<｜tool▁calls▁end｜>"});
  const Json choice = server.chat(str_cat(kTools, R"(,"max_tokens":99)")).json()["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_TRUE(choice["message"]["content"].is_null());
  const Json& tool_call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(tool_call["type"], "function");
  EXPECT_FALSE(tool_call["id"].get<std::string>().empty());
  EXPECT_EQ(tool_call["function"]["name"], "add");
  EXPECT_EQ(tool_call["function"]["arguments"], R"({"a":{"b":12}})");
  const Streamed streamed = check_stream(server.chat(str_cat(kTools, R"(,"max_tokens":99,"stream":true)")));
  EXPECT_EQ(streamed.arguments, R"({"a":{"b":12}})");
  EXPECT_EQ(streamed.finish_reason, "tool_calls");
  EXPECT_EQ(streamed.content, "");
  const Json cut = server.chat(str_cat(kTools, R"(,"max_tokens":6)")).json()["choices"][0];
  EXPECT_EQ(cut["finish_reason"], "length");
}

TEST(HttpServer, WithoutParallelCallsTheFirstAloneIsShown) {
  const TestServer server(
      {.script = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\":1}<｜tool▁call▁end｜>"
                 "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{\"a\":2}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"});
  for (const bool parallel : {true, false}) {
    const std::string fields =
        str_cat(kTools, R"(,"max_tokens":99,"parallel_tool_calls":)", parallel ? "true" : "false");
    const Json choice = server.chat(fields).json()["choices"][0];
    EXPECT_EQ(choice["message"]["tool_calls"].size(), parallel ? 2u : 1u);
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"a":1})");
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    const Streamed streamed = check_stream(server.chat(fields + R"(,"stream":true)"));
    EXPECT_EQ(streamed.arguments, parallel ? R"({"a":1}{"a":2})" : R"({"a":1})");
    EXPECT_EQ(streamed.finish_reason, "tool_calls");
  }
}

TEST(HttpServer, ADemandedToolCallStartsInThePrompt) {
  const TestServer server({.script = "{\"a\":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"});
  const std::string named = str_cat(kTools, R"(,"tool_choice":{"type":"function","function":{"name":"add"}})");
  const Json choice = server.chat(str_cat(named, R"(,"max_tokens":99)")).json()["choices"][0];
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["arguments"], R"({"a":1})");
  const HttpAnswer thinking = server.chat(str_cat(named, R"(,"thinking":true)"));
  EXPECT_EQ(thinking.status, 400);
  EXPECT_EQ(thinking.json()["error"]["param"], "tool_choice");
}

TEST(HttpServer, CompletionsOfManyPromptsAndChoices) {
  const TestServer server;
  const Json json = server.completion(R"("prompt":["one","two"],"n":2,"max_tokens":4,"temperature":1,"seed":5)").json();
  ASSERT_EQ(json["choices"].size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(json["choices"][i]["index"], i);
  EXPECT_NE(json["choices"][0]["text"], json["choices"][1]["text"]);
  EXPECT_EQ(json["usage"]["completion_tokens"], 16);
  const Json alone = server.completion(R"("prompt":"two","max_tokens":4,"temperature":1,"seed":5)").json();
  EXPECT_EQ(alone["choices"][0]["text"], json["choices"][2]["text"]);
  EXPECT_EQ(alone["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(server.completion(R"("prompt":[[5,6],[7]],"max_tokens":1)").json()["choices"].size(), 2u);
  EXPECT_EQ(server.completion(R"("prompt":"x")").json()["usage"]["completion_tokens"], 16);  // the default
}

TEST(HttpServer, StreamsEveryChoiceOfN) {
  const TestServer server({.script = "abc"});
  std::vector<std::string> texts(3);
  std::vector<int> finishes(3, 0);
  const HttpAnswer answer = server.completion(R"("prompt":"x","n":3,"max_tokens":9,"stream":true)");
  const std::vector<std::string> events = answer.events();
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const Json choice = (*parse_json(events[i]))["choices"][0];
    texts.at(choice["index"].get<int>()) += choice["text"].get<std::string>();
    finishes.at(choice["index"].get<int>()) += choice["finish_reason"] == "stop";
  }
  EXPECT_THAT(texts, ElementsAre("abc", "abc", "abc"));
  EXPECT_THAT(finishes, ElementsAre(1, 1, 1));
}

TEST(HttpServer, EchoAndLogprobsAgreeWithTheText) {
  const TestServer server({.script = "é😀 ok"});
  for (const std::string prompt : {"\\n1. Carol has 20", "a😀b"}) {
    for (const int max_tokens : {0, 1, 20}) {
      const Json json =
          server.completion(str_cat(R"("echo":true,"logprobs":1,"prompt":")", prompt, R"(","max_tokens":)", max_tokens))
              .json();
      const Json& choice = json["choices"][0];
      const Json& logprobs = choice["logprobs"];
      std::string joined;
      for (size_t i = 0; i < logprobs["tokens"].size(); ++i) {
        EXPECT_EQ(logprobs["text_offset"][i], count_code_points(joined));
        joined += logprobs["tokens"][i].get<std::string>();
        EXPECT_EQ(logprobs["token_logprobs"][i].is_null(), i == 0);
      }
      EXPECT_EQ(joined, choice["text"].get<std::string>());
      EXPECT_EQ(logprobs["top_logprobs"].size(), logprobs["tokens"].size());
      EXPECT_EQ(logprobs["token_logprobs"].size(), logprobs["tokens"].size());
      const std::string text = (*parse_json(str_cat("\"", prompt, "\""))).get<std::string>();
      EXPECT_TRUE(joined.starts_with(text)) << joined;
      if (max_tokens == 0) {
        EXPECT_EQ(joined, text);
      }
      if (max_tokens == 20) {
        EXPECT_EQ(joined, text + "é😀 ok");
      }
      if (max_tokens < 2) {
        EXPECT_EQ(choice["finish_reason"], "length");
        EXPECT_EQ(json["usage"]["completion_tokens"], max_tokens);
      }
    }
  }
  const HttpAnswer silent = server.completion(R"("prompt":"x","max_tokens":0,"logprobs":1)");
  EXPECT_EQ(silent.status, 200);
  EXPECT_EQ(silent.json()["choices"][0]["text"], "");
}

TEST(HttpServer, ChatLogprobsCarryEachTokensBytes) {
  const TestServer server({.script = "é😀”"});
  const auto bytes_of = [](const Json& content) {
    std::string bytes;
    for (const Json& token : content) {
      for (const Json& byte : token["bytes"]) bytes += static_cast<char>(byte.get<int>());
      EXPECT_EQ(token["top_logprobs"].size(), 5u);
      EXPECT_NE(token["token"], "");
      EXPECT_THAT(token["token"].get<std::string>(), Not(HasSubstr("\uFFFD")));
    }
    return bytes;
  };
  const std::string fields = R"("max_tokens":50,"logprobs":true,"top_logprobs":5)";
  const Json whole = server.chat(fields).json()["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(bytes_of(whole), "é😀”<｜end▁of▁sentence｜>");
  Json streamed = Json::array();
  for (const std::string& event : server.chat(fields + R"(,"stream":true)").events()) {
    if (event == "[DONE]") break;
    const Json logprobs = (*parse_json(event))["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (const Json& token : logprobs["content"]) streamed.push_back(token);
  }
  EXPECT_EQ(streamed.dump(), whole.dump());
}

TEST(HttpServer, LengthsOutsideTheContextAreRefusedWithTheNumbers) {
  const TestServer server({.context_length = 64});
  const auto ids = [](int count) {
    std::string out = "[5";
    for (int i = 1; i < count; ++i) out += ",5";
    return out + "]";
  };
  const auto refused = [&](int prompt, const std::string& fields, const std::vector<std::string>& numbers) {
    const HttpAnswer answer = server.completion(str_cat("\"prompt\":", ids(prompt), fields));
    EXPECT_EQ(answer.status, 400) << answer.body;
    const Json error = answer.json()["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded");
    for (const std::string& number : numbers) EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(number));
  };
  refused(8, R"(,"max_tokens":60)", {"64", "8 tokens", "60"});
  refused(64, "", {"64 tokens"});
  refused(70, "", {"64", "70"});
  const Json rest = server.completion(str_cat("\"prompt\":", ids(63), R"(,"ignore_eos":true)")).json();
  EXPECT_EQ(rest["usage"]["completion_tokens"], 1);
  EXPECT_EQ(rest["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(server.completion(str_cat("\"prompt\":", ids(8), R"(,"max_tokens":56)")).status, 200);
}

// Also a text that stands in the end-of-text token behind it, or ends in spaces.
TEST(HttpServer, AMessageIsContinuedWhereItEnds) {
  const TestServer server;
  for (const std::string text : {"Once upon", "e", "sentence", ">", "a  ", ""}) {
    const std::string body = str_cat(R"({"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":")",
                                     text, R"("}],"continue_final_message":true})");
    const HttpAnswer answer = call(server.port(), "POST", "/tokenize", body);
    ASSERT_EQ(answer.status, 200) << answer.body;
    const std::string rendered = "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>" + text;
    EXPECT_EQ(answer.json()["tokens"].get<std::vector<int32_t>>(), server.tokenizer->encode(rendered)) << text;
  }
}

TEST(HttpServer, TokenizesBothWays) {
  const TestServer server;
  const Json tokens = call(server.port(), "POST", "/tokenize", R"({"prompt":"Hello","return_token_strs":true})").json();
  EXPECT_EQ(tokens["tokens"][0], 0);  // BOS
  EXPECT_EQ(tokens["count"], tokens["tokens"].size());
  EXPECT_EQ(tokens["token_strs"].size(), tokens["tokens"].size());
  EXPECT_EQ(tokens["max_model_len"], 512);
  const Json plain =
      call(server.port(), "POST", "/tokenize", R"({"prompt":"Hello","add_special_tokens":false})").json();
  EXPECT_EQ(plain["tokens"].size() + 1, tokens["tokens"].size());
  const Json back =
      call(server.port(), "POST", "/detokenize", str_cat(R"({"tokens":)", plain["tokens"].dump(), "}")).json();
  EXPECT_EQ(back["prompt"], "Hello");
  EXPECT_EQ(back["text"], "Hello");
  const Json chat = call(server.port(), "POST", "/tokenize", R"({"messages":[{"role":"user","content":"hi"}]})").json();
  EXPECT_EQ(chat["tokens"][0], 0);
  EXPECT_NE(chat["tokens"][1], 0);
  EXPECT_EQ(call(server.port(), "POST", "/detokenize", R"({"tokens":[4096]})").status, 400);
  EXPECT_EQ(call(server.port(), "POST", "/tokenize", R"({"prompt":["a","b"]})").json()["count"].size(), 2u);
}

TEST(HttpServer, NeedsTheApiKeyEverywhereButOnHealth) {
  const TestServer server({.http = {.api_key = "secret"}});
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 200);
  const HttpAnswer refused = call(server.port(), "GET", "/v1/models");
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json()["error"]["type"], "authentication_error");
  for (const char* bad : {"secre", "secret2", "", "Secret"}) {
    EXPECT_EQ(call(server.port(), "GET", "/v1/models", "", str_cat("Authorization: Bearer ", bad, "\r\n")).status, 401);
  }
  EXPECT_EQ(call(server.port(), "GET", "/v1/models", "", "Authorization: Bearer secret\r\n").status, 200);
  EXPECT_EQ(call(server.port(), "POST", "/v1/completions", R"({"prompt":"x"})").status, 401);
}

TEST(HttpServer, MetricsCountInBothFamilies) {
  const TestServer server({.script = "abc"});
  ASSERT_EQ(server.completion(R"("prompt":[5,6,7],"max_tokens":9)").status, 200);
  const std::string text = call(server.port(), "GET", "/metrics").body;
  const std::string label = R"({model_name="tiny",engine="0")";
  const std::string sglang = R"({model_name="tiny",engine_type="unified",tp_rank="0",pp_rank="0")";
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_total" + label + "} 3\n"));
  EXPECT_THAT(text, HasSubstr("sglang:prompt_tokens_total" + sglang + "} 3\n"));
  EXPECT_THAT(text, HasSubstr("vllm:request_success_total" + label + ",finished_reason=\"stop\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_count" + label + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("sglang:e2e_request_latency_seconds_count" + sglang + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:num_requests_running" + label + "} 0\n"));
  EXPECT_THAT(text, HasSubstr("moesaic:kv_blocks{model_name=\"tiny\",state=\"used\"} 0\n"));
}

TEST(HttpServer, ProfileIsATraceOnDemand) {
  const TestServer server({.script = "abc"});
  EXPECT_EQ(call(server.port(), "POST", "/stop_profile").status, 400);
  EXPECT_EQ(call(server.port(), "GET", "/start_profile").status, 405);
  EXPECT_EQ(call(server.port(), "POST", "/start_profile").status, 200);
  EXPECT_EQ(call(server.port(), "POST", "/start_profile").status, 400);
  ASSERT_EQ(server.completion(R"("prompt":[5,6,7],"max_tokens":9)").status, 200);
  const Json trace = call(server.port(), "POST", "/stop_profile").json();
  EXPECT_EQ(trace["otherData"]["dropped_events"], 0);
  EXPECT_GT(trace["traceEvents"].size(), 10);
}

TEST(Routing, PercentsAndKeys) {
  EXPECT_EQ(decode_percent("/a%2Fb%zz%4"), "/a/b%zz%4");
  EXPECT_EQ(path_of("/a?b#c"), "/a");
  EXPECT_EQ(path_of("http://host:80/a/b?c=d://e"), "/a/b");
  EXPECT_EQ(path_of("http://host"), "/");
  EXPECT_EQ(path_of("/a?b=http://c/d"), "/a");
  EXPECT_EQ(path_of(""), "");
  EXPECT_TRUE(is_authorized("bearer k", "k"));
  EXPECT_FALSE(is_authorized("Basic k", "k"));
  EXPECT_FALSE(is_authorized("", "k"));
}

TEST(HttpWire, ChunksCarryTheirSizeInHex) {
  std::string chunk;
  append_chunk("0123456789abcdef0", &chunk);
  append_chunk("", &chunk);
  EXPECT_EQ(chunk, "11\r\n0123456789abcdef0\r\n0\r\n\r\n");
}

}  // namespace
}  // namespace moesaic
