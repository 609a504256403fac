// Reports that users of similar servers filed, as tests against a real server over a socket, and corners of HTTP that
// clients in the field reach: HTTP/1.0, a restart on the same port, contradictory heads, a queued client that leaves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/thread.h"
#include "serve/http/http_test_util.h"
#include "text/text_test_util.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

bool at_rest(const Engine& engine) {
  return eventually([&] { return engine.check_at_rest().ok(); });
}

// A chat of one choice asked for whole and streamed: both must say the same.
struct Chat {
  std::string content;
  std::string reasoning;
  std::string finish_reason;
};

Chat whole_chat(const TestServer& server, const std::string& fields) {
  const Json choice = server.chat(fields).json()["choices"][0];
  const auto text = [&](const char* key) {
    const Json& value = choice["message"][key];
    return value.is_null() ? std::string() : value.get<std::string>();
  };
  return {text("content"), text("reasoning_content"), choice["finish_reason"].get<std::string>()};
}

Chat both_ways(const TestServer& server, const std::string& fields) {
  Chat streamed;
  for (const std::string& event : server.chat(fields + R"(,"stream":true)").events()) {
    if (event == "[DONE]") break;
    const Json choice = (*parse_json(event))["choices"][0];
    const Json& delta = choice["delta"];
    EXPECT_FALSE(delta.contains("content") && delta.contains("reasoning_content")) << event;
    streamed.content += delta.value("content", "");
    streamed.reasoning += delta.value("reasoning_content", "");
    if (choice["finish_reason"].is_string()) streamed.finish_reason += choice["finish_reason"].get<std::string>();
  }
  const Chat whole = whole_chat(server, fields);
  EXPECT_EQ(streamed.content, whole.content);
  EXPECT_EQ(streamed.reasoning, whole.reasoning);
  EXPECT_EQ(streamed.finish_reason, whole.finish_reason);
  return whole;
}

// Whole runs of guessed tokens come in one step, or none.
constexpr int kDraftDepths[] = {0, 4};

// The 256 bytes and a few merges: a character of four bytes is four tokens, and no tag is one token.
std::unique_ptr<Tokenizer> plain_bytes(bool add_bos_token = true) {
  return *Tokenizer::parse(byte_tokenizer().dump(), str_cat(R"({"bos_token":"<｜begin▁of▁sentence｜>",)",
                                                            R"("eos_token":"<｜end▁of▁sentence｜>","add_bos_token":)",
                                                            add_bos_token ? "true}" : "false}"));
}

// Joined over the events of a stream, the lists of choice 0's logprobs (text completion).
Json streamed_logprobs(const HttpAnswer& answer) {
  Json joined = {{"tokens", Json::array()}, {"token_logprobs", Json::array()}, {"top_logprobs", Json::array()}};
  for (const std::string& event : answer.events()) {
    if (event == "[DONE]") break;
    const Json logprobs = (*parse_json(event))["choices"][0]["logprobs"];
    if (logprobs.is_null()) continue;
    for (auto& [key, list] : joined.items()) list.insert(list.end(), logprobs[key].begin(), logprobs[key].end());
  }
  return joined;
}

TEST(KnownBugs, EveryByteOfACharacterIsAnEntryOfItsOwn) {  // B05
  const TestServer server({.tokenizer = plain_bytes(), .script = "😀”"});
  std::set<std::string> all_bytes;
  for (int32_t id = 0; id < server.tokenizer->size(); ++id) all_bytes.emplace(server.tokenizer->token_bytes(id));
  const auto check = [&](const Json& entries) {
    std::string joined;
    ASSERT_EQ(entries.size(), 8u);  // 4 + 3 bytes and EOS
    for (const Json& entry : entries) {
      for (const Json& byte : entry["bytes"]) joined += static_cast<char>(byte.get<int>());
      EXPECT_EQ(entry["top_logprobs"].size(), 5u);
      for (const Json& other : entry["top_logprobs"]) {
        std::string bytes;
        for (const Json& byte : other["bytes"]) bytes += static_cast<char>(byte.get<int>());
        EXPECT_TRUE(all_bytes.contains(bytes)) << other;  // its own, not decoded with its neighbours
      }
    }
    EXPECT_EQ(joined, "😀”<｜end▁of▁sentence｜>");
    for (int i = 0; i < 4; ++i) EXPECT_EQ(entries[i]["bytes"].dump(), str_cat("[", "\xf0\x9f\x98\x80"[i] & 0xff, "]"));
  };
  const std::string fields = R"("max_tokens":50,"logprobs":true,"top_logprobs":5)";
  const HttpAnswer whole = server.chat(fields);
  ASSERT_EQ(whole.status, 200) << whole.body;
  check(whole.json()["choices"][0]["logprobs"]["content"]);
  Json streamed = Json::array();
  for (const std::string& event : server.chat(fields + R"(,"stream":true)").events()) {
    if (event == "[DONE]") break;
    const Json logprobs = (*parse_json(event))["choices"][0]["logprobs"];
    if (!logprobs.is_null()) streamed.insert(streamed.end(), logprobs["content"].begin(), logprobs["content"].end());
  }
  check(streamed);
}

TEST(KnownBugs, ARawPromptGetsOneBos) {  // B07
  for (const bool add_bos : {true, false}) {
    const TestServer server({.tokenizer = plain_bytes(add_bos)});
    const auto count = [&](const char* prompt) {
      return server.completion(str_cat("\"prompt\":\"", prompt, R"(","max_tokens":1)"))
          .json()["usage"]["prompt_tokens"];
    };
    EXPECT_EQ(count("hi"), add_bos ? 3 : 2);
    EXPECT_EQ(count("<｜begin▁of▁sentence｜>hi"), 3);
    const std::string rendered = "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>";
    EXPECT_EQ(server.chat(R"("max_tokens":1)").json()["usage"]["prompt_tokens"],
              server.tokenizer->encode(rendered).size());
  }
}

TEST(KnownBugs, ATagThatIsNoTokenIsFoundInTheText) {  // B13
  const TestServer server({.tokenizer = plain_bytes(), .script = "r</think>a"});
  ASSERT_EQ(server.tokenizer->id_of("</think>"), -1);
  const Chat chat = both_ways(server, R"("max_tokens":50,"thinking":true)");
  EXPECT_EQ(chat.reasoning, "r");
  EXPECT_EQ(chat.content, "a");
}

TEST(KnownBugs, ACallThatIsCutEndsByLength) {  // B23
  constexpr char kTools[] = R"("tools":[{"type":"function","function":{"name":"f"}}],"max_tokens":)";
  for (const auto& [arguments, depth] : {std::pair(std::string(R"({"code": 123})"), 0),
                                         {R"({"code": 123})", 4},
                                         {R"({"a":{"b":"x"}})", 0},
                                         {R"({"a":{"b":"x"}})", 4}}) {
    const auto script = str_cat("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>", arguments,
                                "<｜tool▁call▁end｜><｜tool▁calls▁end｜>");
    const TestServer server({.script = script, .max_draft_depth = depth});
    const int tokens = static_cast<int>(server.tokenizer->encode(script).size());
    for (int max_tokens = 1; max_tokens <= tokens + 1; ++max_tokens) {
      SCOPED_TRACE(str_cat(arguments, " depth ", depth, " max_tokens ", max_tokens, " of ", tokens));
      const std::string fields = str_cat(kTools, max_tokens);
      const Json whole = server.chat(fields).json()["choices"][0];
      EXPECT_EQ(whole["finish_reason"], max_tokens <= tokens ? "length" : "tool_calls");
      std::string streamed, finish_reason;
      for (const std::string& event : server.chat(fields + R"(,"stream":true)").events()) {
        if (event == "[DONE]") break;
        const Json choice = (*parse_json(event))["choices"][0];
        for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
          streamed += call["function"]["arguments"].get<std::string>();
        }
        if (choice["finish_reason"].is_string()) finish_reason += choice["finish_reason"].get<std::string>();
      }
      EXPECT_EQ(finish_reason, whole["finish_reason"]);
      EXPECT_TRUE(arguments.starts_with(streamed)) << streamed;
      if (max_tokens > tokens) {
        EXPECT_EQ(streamed, arguments);
        EXPECT_EQ(whole["message"]["tool_calls"][0]["function"]["arguments"], arguments);
      }
    }
  }
}

TEST(KnownBugs, LogprobsDependOnNeitherCompanyNorDrafts) {  // B49
  const TestServer plain;
  const TestServer server({.max_draft_depth = 3});
  const std::string body = R"({"prompt":"tell me","max_tokens":6,"ignore_eos":true,"echo":true,"logprobs":5)";
  const Json alone = call(plain.port(), "POST", "/v1/completions", body + "}").json()["choices"][0]["logprobs"];
  const size_t prompt_tokens = server.tokenizer->encode("tell me").size() + 1;
  ASSERT_EQ(alone["token_logprobs"].size(), prompt_tokens + 6);
  for (size_t i = 1; i < alone["token_logprobs"].size(); ++i) {
    EXPECT_LT(alone["token_logprobs"][i].get<double>(), 0.0) << i;
    EXPECT_GE(alone["top_logprobs"][i].size(), 5u);
  }
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(http_request("POST", "/v1/completions", body + (i % 2 ? R"(,"stream":true})" : "}")));
  }
  for (int i = 0; i < 8; ++i) {
    const HttpAnswer answer = read_answer(*clients[i]);
    const Json found = i % 2 ? streamed_logprobs(answer) : answer.json()["choices"][0]["logprobs"];
    for (const char* key : {"tokens", "token_logprobs", "top_logprobs"}) EXPECT_EQ(found[key], alone[key]) << i << key;
  }
  EXPECT_GT(server.engine->stats().speculation->accepted_tokens_total, 0);
}

TEST(KnownBugs, AFailureEndsEveryStreamOnce) {  // B27
  for (const char* path : {"/v1/completions", "/v1/chat/completions"}) {
    const std::string_view what = path[5] == 'h' ? R"("messages":[{"role":"user","content":"x"}])" : R"("prompt":"x")";
    const TestServer server({.faults = {.fail_at_step = 3, .delay_ms = 20}});
    const std::string fields = str_cat("{", what, R"(,"n":2,"max_tokens":9,"ignore_eos":true)");
    const HttpAnswer streamed = call(server.port(), "POST", path, fields + R"(,"stream":true})");
    ASSERT_EQ(streamed.status, 200) << streamed.body;
    const std::vector<std::string> events = streamed.events();
    int errors = 0;
    for (const std::string& event : events) errors += event.find("\"error\"") != std::string::npos;
    EXPECT_EQ(errors, 1) << streamed.body;
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_THAT(events[events.size() - 2], HasSubstr("\"error\""));
  }
}

TEST(KnownBugs, PromptOnlyInEveryCombination) {  // B15
  const TestServer server;
  for (const bool echo : {true, false}) {
    for (const char* logprobs : {"null", "0", "1"}) {
      for (const int max_tokens : {0, 1}) {
        SCOPED_TRACE(str_cat("echo ", echo ? "true" : "false", " logprobs ", logprobs, " max_tokens ", max_tokens));
        const HttpAnswer answer =
            server.completion(str_cat(R"("prompt":[40,41,42],"ignore_eos":true,"echo":)", echo ? "true" : "false",
                                      R"(,"logprobs":)", logprobs, R"(,"max_tokens":)", max_tokens));
        ASSERT_EQ(answer.status, 200) << answer.body;
        const Json json = answer.json();
        const Json& choice = json["choices"][0];
        EXPECT_EQ(choice["finish_reason"], "length");
        EXPECT_EQ(json["usage"]["completion_tokens"], max_tokens);
        EXPECT_EQ(json["usage"]["prompt_tokens"], 3);
        if (!echo && max_tokens == 0) {
          EXPECT_EQ(choice["text"], "");
        }
        EXPECT_EQ(choice["logprobs"].is_null(), *logprobs == 'n');
        if (*logprobs == 'n') continue;
        const Json& values = choice["logprobs"]["token_logprobs"];
        ASSERT_EQ(values.size(), static_cast<size_t>((echo ? 3 : 0) + max_tokens));
        for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i].is_null(), echo && i == 0) << i;
      }
    }
  }
  EXPECT_EQ(server.chat(R"("max_tokens":3,"ignore_eos":true)").json()["usage"]["completion_tokens"], 3);
  EXPECT_TRUE(at_rest(*server.engine));
}

TEST(KnownBugs, IdsOutsideTheVocabularyHurtNobody) {  // B17
  const TestServer server({.faults = {.delay_ms = 2}});
  const std::string neighbour = R"({"prompt":[40,41],"max_tokens":200,"ignore_eos":true})";
  const Json alone = call(server.port(), "POST", "/v1/completions", neighbour).json()["choices"][0]["text"];
  RawClient client(server.port());
  client.send(http_request("POST", "/v1/completions", neighbour));
  ASSERT_TRUE(eventually([&] { return server.engine->stats().num_running == 1; }));
  const std::pair<const char*, const char*> kBad[] = {
      {R"("prompt":[-1])", "prompt"},
      {R"("prompt":[4096])", "prompt"},
      {R"("prompt":[5279552648203111001])", "prompt"},
      {R"("prompt":[18446744073709551615])", "prompt"},
      {R"("prompt":[[1],[4096]])", "prompt"},
      {R"("prompt":[1.5])", "prompt"},
      {R"("prompt":"x","stop_token_ids":[151645])", "stop_token_ids"},
      {R"("prompt":"x","stop_token_ids":[-1])", "stop_token_ids"},
      {R"("prompt":"x","logit_bias":{"99999999":5})", "logit_bias"},
      {R"("prompt":"x","logit_bias":{"-1":5})", "logit_bias"},
      {R"("prompt":"x","logit_bias":{"1":1e300})", "logit_bias"},
  };
  for (const auto& [fields, name] : kBad) {
    const HttpAnswer answer = server.completion(fields);
    EXPECT_EQ(answer.status, 400) << fields;
    EXPECT_EQ(answer.json()["error"]["param"], name) << answer.body;
  }
  EXPECT_THAT(server.completion(R"("prompt":[4096])").body, HasSubstr("4095"));
  EXPECT_EQ(read_answer(client).json()["choices"][0]["text"], alone);
}

TEST(KnownBugs, StopStringsAcrossTokens) {  // B25
  for (const int depth : kDraftDepths) {
    const TestServer server({.script = "ABCDEFGHIJK", .max_draft_depth = depth});
    for (const char* stop : {R"(,"stop":"DEFGHIJ")", R"(,"stop":["zzzz","DEFGHIJ"])"}) {
      const Chat stopped = both_ways(server, str_cat(R"("max_tokens":50)", stop));
      EXPECT_EQ(stopped.content, "ABC");
      EXPECT_EQ(stopped.finish_reason, "stop");
    }
  }
  for (const int depth : kDraftDepths) {
    const TestServer server({.script = "ABCDEFGx", .max_draft_depth = depth});
    EXPECT_EQ(both_ways(server, R"("max_tokens":50,"stop":"DEFGHIJ")").content, "ABCDEFGx");
  }
  const TestServer server({.script = "ABCDEF"});
  const auto tokens = static_cast<int>(server.tokenizer->encode("ABCDEF").size());
  EXPECT_EQ(both_ways(server, R"("max_tokens":50,"stop":"DEFGHIJ")").content, "ABCDEF");
  const Chat by_length = both_ways(server, str_cat(R"("stop":"DEFGHIJ","max_tokens":)", tokens));
  EXPECT_EQ(by_length.content, "ABCDEF");
  EXPECT_EQ(by_length.finish_reason, "length");
}

TEST(KnownBugs, ReasoningEndsWhereItsTagStands) {  // B29
  for (const int depth : kDraftDepths) {
    const TestServer server({.script = " thought.</think>Answer", .max_draft_depth = depth});
    for (const char* stop : {"", R"(,"stop":["zzzz"])"}) {
      const Chat chat = both_ways(server, str_cat(R"("max_tokens":50,"chat_template_kwargs":{"thinking":true})", stop));
      EXPECT_EQ(chat.reasoning, " thought.");
      EXPECT_EQ(chat.content, "Answer");
    }
  }
  const TestServer server({.script = " thought.</think>Answer"});
  const Chat joined = both_ways(server, R"("max_tokens":50,"thinking":true,"separate_reasoning":false)");
  EXPECT_EQ(joined.reasoning, "");
  EXPECT_THAT(joined.content, HasSubstr("Answer"));
}

TEST(KnownBugs, ContentPartsAndCallsOfEarlierTurns) {  // B11
  const TestServer server;
  const auto ask = [&](std::string_view messages) {
    return call(server.port(), "POST", "/v1/chat/completions",
                str_cat(R"({"max_tokens":1,"messages":[)", messages, "]}"));
  };
  const Json parts = ask(R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]})").json();
  const Json joined = ask(R"({"role":"user","content":"a b"})").json();
  EXPECT_EQ(parts["usage"]["prompt_tokens"], joined["usage"]["prompt_tokens"]);
  EXPECT_EQ(parts["choices"][0]["message"], joined["choices"][0]["message"]);
  const HttpAnswer image = ask(R"({"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]})");
  EXPECT_EQ(image.status, 400);
  EXPECT_THAT(image.body, HasSubstr("image_url"));
  for (const char* arguments : {R"({"city":"Oslo"})", R"("{\"city\": \"Oslo\"}")"}) {
    const HttpAnswer answer =
        ask(str_cat(R"({"role":"user","content":"hi"},{"role":"assistant","content":null,"tool_calls":[{"id":"c",)",
                    R"("type":"function","function":{"name":"f","arguments":)", arguments,
                    R"(}}]},{"role":"tool","tool_call_id":"c","content":"rain"})"));
    EXPECT_EQ(answer.status, 200) << answer.body;
  }
}

TEST(KnownBugs, SameAnswerAloneAndInCompany) {  // B79
  const TestServer server;
  const std::string body = R"({"prompt":"tell","max_tokens":20,"ignore_eos":true})";
  const Json alone = call(server.port(), "POST", "/v1/completions", body).json()["choices"][0]["text"];
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 32; ++i) {
    const std::string filler = str_cat(R"({"prompt":"filler )", i, R"(","max_tokens":)", 5 + i % 7, "}");
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(http_request("POST", "/v1/completions", i % 2 == 0 ? body : filler));
  }
  for (int i = 0; i < 32; ++i) {
    const HttpAnswer answer = read_answer(*clients[i]);
    EXPECT_EQ(answer.status, 200) << answer.body;
    if (i % 2 == 0) {
      EXPECT_EQ(answer.json()["choices"][0]["text"], alone);
    }
  }
  EXPECT_TRUE(at_rest(*server.engine));
}

TEST(KnownBugs, ARestartTakesThePortAtOnce) {  // B81
  HttpServerOptions options;
  {
    const TestServer server;
    options.port = server.port();
    RawClient client(server.port());  // the server closes first: its side of the connection lingers
    client.send(http_request("GET", "/health"));
    EXPECT_EQ(read_answer(client).status, 200);
  }
  const auto again = HttpServer::bind(options);
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST(KnownBugs, AnHttp10StreamEndsWithItsConnection) {
  const TestServer server({.script = "abc"});
  RawClient client(server.port());
  const std::string body = R"({"prompt":"x","stream":true})";
  client.send(str_cat("POST /v1/completions HTTP/1.0\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_TRUE(client.closed_within(10'000));
  EXPECT_THAT(client.received(), testing::Not(HasSubstr("chunked")));
  EXPECT_TRUE(client.received().ends_with("data: [DONE]\n\n")) << client.received();
}

TEST(KnownBugs, ContradictoryHeadsAreNoRequests) {
  const TestServer server;
  for (const std::string bytes :
       {"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        "POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /health HTTP/1.1\r\nno colon\r\n\r\n", "\r\n\r\n\r\n\r\n", "\x16\x03\x01\x02"}) {
    RawClient client(server.port());
    client.send(bytes);
    client.shutdown_send();
    EXPECT_TRUE(client.closed_within(8'000)) << bytes;
    if (!client.received().empty()) {
      EXPECT_TRUE(client.received().starts_with("HTTP/1.1 4")) << client.received();
    }
  }
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 200);
}

TEST(KnownBugs, DrippingBytesExtendNoDeadline) {
  const TestServer server({.http = {.header_timeout_ms = 300, .body_timeout_ms = 300}});
  for (const char* start : {"GET /health HT", "POST /v1/completions HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{"}) {
    RawClient client(server.port());
    client.send(start);
    const int64_t begin_ns = real_clock().now_ns();
    while (client.try_send("T") && !client.closed_within(20)) {
    }
    EXPECT_LT(real_clock().now_ns() - begin_ns, 8'000'000'000) << start;
  }
}

TEST(KnownBugs, AQueuedClientMayLeave) {  // B73
  const TestServer server({.faults = {.delay_ms = 10}, .max_running_requests = 1});
  RawClient running(server.port());
  running.send(http_request("POST", "/v1/completions", R"({"prompt":"x","max_tokens":40,"ignore_eos":true})"));
  ASSERT_TRUE(eventually([&] { return server.engine->stats().num_running == 1; }));
  RawClient queued(server.port());
  queued.send(http_request("POST", "/v1/completions", R"({"prompt":"x","max_tokens":400,"ignore_eos":true})"));
  ASSERT_TRUE(eventually([&] { return server.engine->stats().num_queued == 1; }));
  queued.reset();
  EXPECT_TRUE(eventually([&] { return server.engine->stats().num_queued == 0; }));
  EXPECT_EQ(server.engine->stats().num_running, 1);
  EXPECT_EQ(read_answer(running).status, 200);
  EXPECT_TRUE(at_rest(*server.engine));
}

TEST(KnownBugs, SaltsAreApartAndUsageCountsCachedTokens) {  // B53, B75
  const TestServer server;
  std::string ids = "40";
  for (int i = 0; i < 2 * server.engine->options().kv_block_tokens; ++i) ids += str_cat(",", 41 + i % 50);
  const auto cached = [&](const char* fields) {
    const HttpAnswer answer =
        server.completion(str_cat("\"prompt\":[", ids, R"(],"max_tokens":2,"ignore_eos":true)", fields));
    EXPECT_EQ(answer.status, 200) << answer.body;
    const Json usage = answer.json()["usage"];
    EXPECT_LT(usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]);
    return usage["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached(R"(,"cache_prompt":false)"), 0);
  for (const char* fields : {R"(,"cache_salt":"A")", R"(,"cache_salt":"B")", ""}) {
    EXPECT_EQ(cached(fields), 0) << fields;
    EXPECT_GT(cached(fields), 0) << fields;
    EXPECT_GT(cached(fields), 0) << fields;
  }
  EXPECT_EQ(cached(R"(,"cache_prompt":false)"), 0);
  EXPECT_TRUE(at_rest(*server.engine));
  EXPECT_GT(server.engine->stats().kv_blocks_cached, 0);
}

}  // namespace
}  // namespace moesaic
