#include "serve/http/sse_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "serve/http/http_test_util.h"
#include "serve/http/sse_parser.h"

namespace moesaic {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> parse_split(std::string_view bytes, const std::vector<size_t>& cuts) {
  SseParser parser;
  std::vector<std::string> events;
  size_t begin = 0;
  const auto feed = [&](size_t end) {
    EXPECT_TRUE(
        parser.feed(bytes.substr(begin, end - begin), [&](std::string_view data) { events.emplace_back(data); }));
    begin = end;
  };
  for (const size_t cut : cuts) feed(cut);
  feed(bytes.size());
  return events;
}

TEST(SseParser, EverySplitGivesTheSameEvents) {
  const std::string bytes =
      ": keep-alive\r\n\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:two\ndata:  lines\n\n:\n\nid: 7\n\ndata\n\n"
      "data: cr\r\rdata: é\n\ndata: [DONE]\n\ndata: never ended\n";
  const auto expected = ElementsAre("{\"a\":1}", "two\n lines", "", "cr", "é", "[DONE]");
  for (size_t a = 0; a <= bytes.size(); ++a) {
    for (size_t b = a; b <= bytes.size(); ++b) ASSERT_THAT(parse_split(bytes, {a, b}), expected) << a << " " << b;
  }
  std::vector<size_t> every;
  for (size_t i = 1; i < bytes.size(); ++i) every.push_back(i);
  EXPECT_THAT(parse_split(bytes, every), expected);
}

TEST(SseParser, AnEventHasABound) {
  SseParser parser(/*max_event_bytes=*/100);
  int events = 0;
  const auto count = [&](std::string_view) { ++events; };
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(parser.feed("data: 0123456789\n\n", count));
  EXPECT_EQ(events, 50);
  bool fits = true;
  for (int i = 0; i < 50 && fits; ++i) fits = parser.feed("data: 0123456789\n", count);
  EXPECT_FALSE(fits);
  EXPECT_FALSE(parser.feed("\n", count));
  EXPECT_EQ(events, 50);
}

// One exchange, waited for.
struct Answer {
  std::vector<std::string> events;
  HttpResult result;
  int num_ends = 0;
};

class Waiter {
 public:
  SseClient::Callbacks callbacks() {
    return {.on_start = nullptr,
            .on_event = [this](std::string_view data, int64_t) { answer_.events.emplace_back(data); },
            .on_end =
                [this](HttpResult result, int64_t) {
                  answer_.result = std::move(result);
                  ++answer_.num_ends;
                  done_.store(true);
                }};
  }
  Answer wait() {
    EXPECT_TRUE(eventually([&] { return done_.load(); }));
    return answer_;
  }

 private:
  Answer answer_;
  std::atomic<bool> done_{false};
};

std::string url_of(const TestServer& server) {
  return str_cat("http://127.0.0.1:", server.port());
}

TEST(SseClient, ReadsAStreamAnAnswerAndAnError) {
  const TestServer server({.script = "abc"});
  const auto client = SseClient::connect(url_of(server), {});
  ASSERT_TRUE(client.ok());
  Waiter waiter;
  (*client)->post("/v1/completions", R"({"prompt":"x","stream":true,"max_tokens":9})", waiter.callbacks());
  const Answer answer = waiter.wait();
  EXPECT_TRUE(answer.result.transport.ok()) << answer.result.transport;
  EXPECT_EQ(answer.result.status, 200);
  ASSERT_GE(answer.events.size(), 2);
  EXPECT_EQ(answer.events.back(), "[DONE]");
  EXPECT_THAT(answer.events.front(), HasSubstr("\"text\":\"a"));
  EXPECT_EQ(answer.num_ends, 1);
  const HttpResult models = (*client)->get("/v1/models");
  EXPECT_EQ(models.status, 200);
  EXPECT_THAT(models.body, HasSubstr("\"tiny\""));
  const HttpResult bad = (*client)->post_and_wait("/v1/completions", "{");
  EXPECT_EQ(bad.status, 400);
  EXPECT_TRUE(bad.transport.ok());
  EXPECT_THAT(bad.body, HasSubstr("error"));
}

TEST(SseClient, SendsTheKey) {
  const TestServer server({.http = {.port = 0, .api_key = "secret"}});
  const auto with = SseClient::connect(url_of(server) + "/", {.api_key = "secret"});
  const auto without = SseClient::connect(url_of(server), {});
  ASSERT_TRUE(with.ok() && without.ok());
  EXPECT_EQ((*with)->get("/v1/models").status, 200);
  EXPECT_EQ((*without)->get("/v1/models").status, 401);
}

TEST(SseClient, SaysWhatWentWrong) {
  int closed_port = 0;
  {
    const TestServer server;
    closed_port = server.port();
  }
  const auto refused = SseClient::connect(str_cat("http://127.0.0.1:", closed_port), {});
  ASSERT_TRUE(refused.ok());
  const HttpResult none = (*refused)->get("/v1/models");
  EXPECT_TRUE(absl::IsUnavailable(none.transport)) << none.transport;
  EXPECT_THAT(std::string(none.transport.message()), HasSubstr("connect"));

  const TestServer slow({.script = "abcdefgh", .faults = {.delay_at_step = 2, .delay_ms = 1'000}});
  const auto hurried = SseClient::connect(url_of(slow), {.idle_timeout_ms = 200});
  ASSERT_TRUE(hurried.ok());
  Waiter waiter;
  (*hurried)->post("/v1/completions", R"({"prompt":"x","stream":true})", waiter.callbacks());
  const Answer answer = waiter.wait();
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.result.transport)) << answer.result.transport;
  EXPECT_THAT(std::string(answer.result.transport.message()), HasSubstr("200 ms"));

  for (const char* url : {"https://a", "ftp://a", "http://", "http://a:b", "http://:80", "127.0.0.1:80"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(SseClient::connect(url, {}).status())) << url;
  }
}

TEST(SseClient, ManyStreamsAtOnce) {
  constexpr int kStreams = 300;
  const TestServer server({.script = "abcdef", .max_queued_requests = kStreams});
  const auto client = SseClient::connect(url_of(server), {});
  ASSERT_TRUE(client.ok());
  std::vector<Waiter> waiters(kStreams);
  for (Waiter& waiter : waiters) {
    (*client)->post("/v1/completions", R"({"prompt":"x","stream":true})", waiter.callbacks());
  }
  for (Waiter& waiter : waiters) {
    const Answer answer = waiter.wait();
    ASSERT_EQ(answer.result.status, 200) << answer.result.transport << answer.result.body;
    EXPECT_EQ(answer.events.back(), "[DONE]");
  }
}

TEST(SseClient, GoingEndsWhatIsOpen) {
  const TestServer slow({.script = "abcdefgh", .faults = {.delay_at_step = 2, .delay_ms = 1'000}});
  auto client = SseClient::connect(url_of(slow), {});
  ASSERT_TRUE(client.ok());
  Waiter waiter;
  (*client)->post("/v1/completions", R"({"prompt":"x","stream":true})", waiter.callbacks());
  client->reset();
  const Answer answer = waiter.wait();
  EXPECT_TRUE(absl::IsUnavailable(answer.result.transport)) << answer.result.transport;
  EXPECT_EQ(answer.num_ends, 1);
}

}  // namespace
}  // namespace moesaic
