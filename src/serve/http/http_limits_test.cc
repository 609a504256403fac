// Hostile, slow and vanishing clients, failures in the engine, and shutdown.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "base/thread.h"
#include "serve/http/http_test_util.h"

namespace moesaic {
namespace {

using testing::HasSubstr;

constexpr char kLongStream[] =
    R"({"prompt":"x","max_tokens":400,"stream":true,"ignore_eos":true,"logprobs":5,"temperature":0})";

bool at_rest(const Engine& engine) {
  return eventually([&] { return engine.check_at_rest().ok(); });
}

TEST(HttpLimits, BodiesOverTheLimitAre413AndBelowAreParsed) {
  const TestServer server({.http = {.max_body_bytes = 11 << 20}});
  const std::string filler(10 << 20, 'a');
  const HttpAnswer long_prompt = call(server.port(), "POST", "/v1/completions",
                                      str_cat(R"({"prompt":"x","max_tokens":1,"user":")", filler, "\"}"));
  EXPECT_EQ(long_prompt.status, 200) << long_prompt.body;
  const HttpAnswer too_large = call(server.port(), "POST", "/v1/completions", std::string(12 << 20, 'a'));
  EXPECT_EQ(too_large.status, 413);
  EXPECT_THAT(too_large.head, HasSubstr("Connection: close"));
  RawClient chunked(server.port());  // no Content-Length to judge by
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = str_cat("100000\r\n", std::string(1 << 20, 'a'), "\r\n");
  for (int i = 0; i < 13 && chunked.try_send(chunk); ++i) {
  }
  EXPECT_EQ(read_answer(chunked).status, 413);
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 200);
}

TEST(HttpLimits, AVeryLongPromptIs400WithBothNumbers) {
  const TestServer server;
  std::string text;
  while (text.size() < 10 << 20) text += "once upon a time ";
  const HttpAnswer answer = call(server.port(), "POST", "/v1/completions", str_cat(R"({"prompt":")", text, "\"}"));
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("512 tokens"));
  EXPECT_THAT(answer.body, HasSubstr(str_cat(server.tokenizer->encode(text).size() + 1)));
  EXPECT_EQ(server.completion(R"("prompt":"x","max_tokens":1)").status, 200);
}

TEST(HttpLimits, BadRequestsAre400AndTheServerLives) {
  const TestServer server;
  for (const std::string& body :
       {std::string("{"), std::string("[]"), std::string("\xff\xfe"), std::string("\"\\ud800\""),
        std::string(100'000, '['), std::string(R"({"prompt":"\ud800"})"),
        std::string(R"({"prompt":"x","temperature":NaN})")}) {
    const HttpAnswer answer = call(server.port(), "POST", "/v1/completions", body);
    EXPECT_EQ(answer.status, 400) << body.substr(0, 80);
    EXPECT_EQ(answer.json()["error"]["type"], "invalid_request_error");
  }
  for (const std::string& bytes :
       {std::string("hello\r\n\r\n"), std::string("GET / HTTP/9.9\r\n\r\n"),
        std::string("POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n"),
        std::string("POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")}) {
    RawClient client(server.port());
    client.send(bytes);
    EXPECT_EQ(read_answer(client).status, 400) << bytes;
  }
  RawClient large_head(server.port());
  large_head.send(str_cat("GET / HTTP/1.1\r\nX: ", std::string(80 << 10, 'a'), "\r\n\r\n"));
  EXPECT_EQ(read_answer(large_head).status, 431);
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 200);
}

constexpr char kStrangeValues[] = R"([null, true, -1, 0, 1, 1e-40, 1e308, 0.5, 9223372036854775807,
  -9223372036854775808, 18446744073709551615, 1e19, "", "x", "\u0000", "\ud83d\ude00", [], {}, [[]], [null], ["x"],
  {"a": 1}, {"type": "function"}, {"1": 1e-40}, [{"type": "function"}], {"messages": 5, "tools": 7, "bos_token": []},
  [{"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": 5}}]}],
  [{"role": "assistant", "content": "a"}, {"role": "tool", "content": []}]])";
constexpr char kFields[] = R"(["model", "messages", "prompt", "temperature", "top_p", "top_k", "min_p", "n", "best_of",
  "max_tokens", "max_completion_tokens", "min_tokens", "stop", "stop_token_ids", "logit_bias", "seed", "stream",
  "stream_options", "frequency_penalty", "presence_penalty", "repetition_penalty", "logprobs", "top_logprobs", "echo",
  "suffix", "user", "tools", "tool_choice", "thinking", "chat_template_kwargs", "response_format", "ignore_eos",
  "continue_final_message", "add_generation_prompt", "separate_reasoning", "skip_special_tokens", "add_special_tokens",
  "priority", "tokens"])";

// Every field with every strange value: answered or refused by a message, never an internal error.
TEST(HttpLimits, StrangeValuesOfEveryFieldAreAnsweredOrRefused) {
  const TestServer server({.script = "abc", .context_length = 64});
  const Json fields = *parse_json(kFields), values = *parse_json(kStrangeValues);
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}) {
    RawClient client(server.port());
    for (const Json& field : fields) {
      for (const Json& value : values) {
        Json body = {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"prompt", "hi"}, {"tokens", {1}}};
        body[field.get<std::string>()] = value;
        client.send(http_request("POST", path, body.dump()));
        const HttpAnswer answer = read_answer(client);
        ASSERT_TRUE(answer.status == 200 || answer.status == 400 || answer.status == 404)
            << path << body << answer.status << answer.body;
        if (answer.status != 200) {
          EXPECT_FALSE(answer.json()["error"]["message"].get<std::string>().empty()) << body;
        }
      }
    }
  }
  EXPECT_TRUE(at_rest(*server.engine));
}

TEST(HttpLimits, SlowHeadsAndBodiesAreCutOff) {
  const TestServer server({.http = {.header_timeout_ms = 200, .body_timeout_ms = 200, .idle_timeout_ms = 300}});
  RawClient silent(server.port());
  EXPECT_TRUE(silent.closed_within(5'000));
  RawClient head(server.port());
  head.send("POST /v1/completions HT");
  EXPECT_TRUE(head.closed_within(5'000));
  RawClient body(server.port());
  body.send("POST /v1/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_TRUE(body.closed_within(5'000));
  RawClient idle(server.port());
  idle.send(http_request("GET", "/health"));
  EXPECT_EQ(read_answer(idle).status, 200);
  EXPECT_TRUE(idle.closed_within(5'000));
}

TEST(HttpLimits, KeepAlivePipeliningAndExpect) {
  const TestServer server({.script = "abc"});
  RawClient client(server.port());
  const std::string completion = http_request("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9})");
  const std::string stream = http_request("POST", "/v1/completions", R"({"prompt":"x","max_tokens":9,"stream":true})");
  client.send(completion + stream + http_request("GET", "/health") + completion);
  EXPECT_EQ(read_answer(client).json()["choices"][0]["text"], "abc");
  EXPECT_EQ(read_answer(client).events().back(), "[DONE]");
  EXPECT_EQ(read_answer(client).body, "{\"status\":\"ok\"}");
  EXPECT_EQ(read_answer(client).json()["choices"][0]["text"], "abc");
  client.send("POST /v1/completions HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 29\r\n\r\n");
  EXPECT_EQ(read_answer(client).status, 100);
  client.send(R"({"prompt":"x","max_tokens":9})");
  EXPECT_EQ(read_answer(client).status, 200);
  RawClient old(server.port());
  const std::string_view body = R"({"prompt":"x","max_tokens":9,"stream":true})";
  old.send(str_cat("POST /v1/completions HTTP/1.0\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_EQ(read_answer(old).events().back(), "[DONE]");  // no chunks; the end closes
}

TEST(HttpLimits, AClientThatLeavesFreesItsBlocks) {
  const TestServer server({.faults = {.delay_ms = 5}});
  const std::string whole = R"({"prompt":"x","max_tokens":400,"ignore_eos":true})";
  for (const std::string& body : {std::string(kLongStream), whole}) {
    for (int way = 0; way < 3; ++way) {
      const int64_t steps = server.engine->stats().steps_total;
      RawClient client(server.port());
      client.send(http_request("POST", "/v1/completions", body));
      ASSERT_TRUE(eventually([&] { return server.engine->stats().num_running == 1; }));
      if (way == 0) client.reset();
      if (way == 1) client.shutdown_send();
      if (way == 2) {
        client.send(http_request("GET", "/health"));  // pipelined bytes must not hide the end
        usleep(20'000);
        client.reset();
      }
      ASSERT_TRUE(at_rest(*server.engine));
      EXPECT_LT(server.engine->stats().steps_total - steps, 390);  // it did not run to its end
    }
  }
  EXPECT_EQ(server.completion(R"("prompt":"x","max_tokens":2)").status, 200);
}

TEST(HttpLimits, RandomAbortsLeaveNothingBehind) {
  const TestServer server({.faults = {.delay_ms = 1}, .max_running_requests = 4});
  Rng rng(7);
  for (int i = 0; i < 150; ++i) {
    RawClient client(server.port());
    client.send(http_request("POST", "/v1/completions", kLongStream));
    if (rng.below(3) > 0) usleep(static_cast<useconds_t>(rng.below(8'000)));
    if (rng.below(2) == 0) client.reset();
  }
  EXPECT_TRUE(at_rest(*server.engine));
}

TEST(HttpLimits, ASlowReaderLosesOnlyItsOwnRequest) {
  TestServer server({.http = {.max_stream_buffer_bytes = 64 << 10}, .context_length = 8192, .num_kv_blocks = 2048});
  RawClient slow(server.port(), /*receive_buffer_bytes=*/16 << 10);
  slow.send(http_request("POST", "/v1/completions",
                         R"({"prompt":"x","max_tokens":8000,"n":4,"stream":true,"ignore_eos":true,"logprobs":20})"));
  int fine = 0;
  while (server.engine->stats().num_running > 0 || fine == 0) {
    fine += server.completion(R"("prompt":"y","max_tokens":4,"stream":true)").status == 200;
  }
  EXPECT_TRUE(at_rest(*server.engine));
  EXPECT_LT(server.engine->stats().output_tokens_total - 4 * fine, 16'000) << fine;  // of 32,000
  while (slow.read_some(2'000)) {
  }
  EXPECT_EQ(slow.received().find("[DONE]"), std::string::npos);
}

TEST(HttpLimits, EngineFailuresBeforeAndDuringTheStream) {
  {
    const TestServer server({.faults = {.fail_at_step = 0}});
    const HttpAnswer early = server.chat(R"("stream":true,"max_tokens":9)");
    EXPECT_GE(early.status, 500);
    EXPECT_TRUE(early.json()["error"].is_object());
    EXPECT_EQ(call(server.port(), "GET", "/health").status, 503);
    EXPECT_EQ(call(server.port(), "GET", "/health_generate").status, 503);
    EXPECT_EQ(server.chat(R"("max_tokens":9)").status, 503);
  }
  const TestServer server({.faults = {.fail_at_step = 3, .delay_ms = 20}});
  const HttpAnswer late = server.chat(R"("stream":true,"max_tokens":9,"ignore_eos":true)");
  EXPECT_EQ(late.status, 200);
  const std::vector<std::string> events = late.events();
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_TRUE((*parse_json(events[events.size() - 2]))["error"].is_object()) << events[events.size() - 2];
}

// Whatever one client makes the server tokenise, the others are answered meanwhile.
TEST(HttpLimits, ALargeBodyDelaysNobodyElse) {
  const TestServer server;
  std::string prompt;
  while (prompt.size() < 6'000'000) prompt += "hello world ";
  RawClient large(server.port());
  const int64_t begin_ns = real_clock().now_ns();
  large.send(http_request("POST", "/v1/completions", str_cat(R"({"prompt":")", prompt, R"("})")));
  int64_t longest_ns = 0;
  while (!large.read_some(1)) {
    const int64_t sent_ns = real_clock().now_ns();
    ASSERT_EQ(server.completion(R"("prompt":"x","max_tokens":1)").status, 200);
    longest_ns = std::max(longest_ns, real_clock().now_ns() - sent_ns);
  }
  EXPECT_EQ(read_answer(large).status, 400);
  EXPECT_LT(longest_ns, (real_clock().now_ns() - begin_ns) / 2);
}

TEST(HttpLimits, AFullQueueIs429) {
  const TestServer server({.faults = {.delay_ms = 20}, .max_running_requests = 1, .max_queued_requests = 1});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(
        http_request("POST", "/v1/completions", R"({"prompt":"x","max_tokens":20,"ignore_eos":true})"));
  }
  int refused = 0;
  for (auto& client : clients) {
    const HttpAnswer answer = read_answer(*client);
    if (answer.status != 429) continue;
    ++refused;
    EXPECT_THAT(answer.head, HasSubstr("Retry-After: 1\r\n"));
    EXPECT_THAT(answer.body, HasSubstr("max_queued_requests"));
  }
  EXPECT_GE(refused, 1);
  EXPECT_LE(refused, 7);
}

TEST(HttpLimits, LoadingAnswers503AndABusyPortFailsAtOnce) {
  TestServer server({.start = false});
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 503);
  EXPECT_EQ(server.completion(R"("prompt":"x")").status, 503);
  const auto second = HttpServer::bind({.port = server.port()});
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().ToString(), HasSubstr(str_cat(server.port())));
  EXPECT_FALSE(HttpServer::bind({.host = "no.such.host.invalid", .port = 0}).ok());
  EXPECT_FALSE(HttpServer::bind({.host = "203.0.113.7", .port = 0}).ok());
  server.start();
  EXPECT_EQ(call(server.port(), "GET", "/health").status, 200);
}

TEST(HttpLimits, ConnectionsAreBounded) {
  const TestServer server({.http = {.max_connections = 3}});
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(http_request("GET", "/health"));
    EXPECT_EQ(read_answer(*clients.back()).status, 200);
  }
  RawClient fourth(server.port());
  EXPECT_EQ(read_answer(fourth).status, 503);
  EXPECT_TRUE(fourth.closed_within(5'000));
  clients.clear();
  EXPECT_TRUE(eventually([&] { return call(server.port(), "GET", "/health").status == 200; }));
}

TEST(HttpLimits, DrainFinishesStreamsAndRefusesNewOnes) {
  TestServer server({.faults = {.delay_ms = 5}});
  RawClient idle(server.port());
  idle.send(http_request("GET", "/health"));
  read_answer(idle);
  RawClient client(server.port());
  client.send(
      http_request("POST", "/v1/completions", R"({"prompt":"x","max_tokens":60,"stream":true,"ignore_eos":true})"));
  ASSERT_TRUE(client.read_until("data: "));
  {
    const Thread stopper("stopper", [&] { server.server->stop(30'000); });
    EXPECT_TRUE(idle.closed_within(5'000));
    const std::vector<std::string> events = read_answer(client).events();
    EXPECT_EQ(events.back(), "[DONE]");
    EXPECT_THAT(events[events.size() - 2], HasSubstr("\"finish_reason\":\"length\""));
  }
  EXPECT_TRUE(client.closed_within(5'000));
}

TEST(HttpLimits, DrainOutOfPatienceEndsStreamsWithAnError) {
  TestServer server({.faults = {.delay_ms = 20}});
  RawClient client(server.port());
  client.send(http_request("POST", "/v1/completions", kLongStream));
  ASSERT_TRUE(client.read_until("data: "));
  server.server->stop(50);
  const std::vector<std::string> events = read_answer(client).events();
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_THAT(events[events.size() - 2], HasSubstr("\"error\""));
  EXPECT_TRUE(at_rest(*server.engine));
}

TEST(HttpLimits, ARequestThatWaitedTooLongIs408) {
  const TestServer server({.faults = {.delay_ms = 10}, .max_running_requests = 1, .queue_timeout_ms = 50});
  RawClient running(server.port());
  running.send(http_request("POST", "/v1/completions", R"({"prompt":"x","max_tokens":100,"ignore_eos":true})"));
  ASSERT_TRUE(eventually([&] { return server.engine->stats().num_running == 1; }));
  const HttpAnswer late = server.completion(R"("prompt":"x","max_tokens":4)");
  EXPECT_EQ(late.status, 408);
  EXPECT_THAT(late.body, HasSubstr("queued"));
  EXPECT_EQ(read_answer(running).status, 200);
  EXPECT_TRUE(at_rest(*server.engine));
}

TEST(HttpLimits, RequestsHaveADeadline) {
  const TestServer server({.http = {.request_timeout_ms = 100}, .faults = {.delay_ms = 10}});
  EXPECT_EQ(server.completion(R"("prompt":"x","max_tokens":400,"ignore_eos":true)").status, 504);
  EXPECT_TRUE(at_rest(*server.engine));
}

}  // namespace
}  // namespace moesaic
