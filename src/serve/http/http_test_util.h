// Helpers of this folder's tests: a server over a scripted engine on a free loopback port, and a raw-socket client that
// sees every byte.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine_test_util.h"
#include "serve/http/http_server.h"
#include "serve/http/json.h"

namespace moesaic {

// Blocking, with a deadline on each read.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer_bytes = 0);  // 0: the system's default, which may grow to many MB
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void send(std::string_view bytes);            // what the peer refuses is dropped
  bool try_send(std::string_view bytes);        // false once the peer is gone
  bool read_some(int64_t timeout_ms = 20'000);  // false at the end or on time-out; appends to received()
  bool read_until(std::string_view text, int64_t timeout_ms = 20'000);
  bool closed_within(int64_t timeout_ms);
  std::string& received() { return received_; }
  void shutdown_send();
  void reset();  // closes with RST

 private:
  int fd_ = -1;
  std::string received_;
};

struct HttpAnswer {
  int status = 0;
  std::string head;
  std::string body;  // without chunk framing
  Json json() const;
  // The payloads of "data: " lines.
  std::vector<std::string> events() const;
};

// Takes one answer off the front of the client's bytes, reading as needed.
HttpAnswer read_answer(RawClient& client, bool head_only = false);
std::string http_request(std::string_view method, std::string_view path, std::string_view body = "",
                         std::string_view headers = "");
HttpAnswer call(int port, std::string_view method, std::string_view path, std::string_view body = "",
                std::string_view headers = "");
// Waits until `condition` holds; false after 20 s.
bool eventually(const std::function<bool()>& condition);

// The demo checkpoint's template, and tokenizer unless another is given, over the engine tests' FakeExecutor.
class TestServer {
 public:
  struct Options {
    HttpServerOptions http;
    std::unique_ptr<Tokenizer> tokenizer;  // null: the demo checkpoint's
    std::string script;                    // text of every answer; empty: what the fake model says
    FaultOptions faults;
    int max_draft_depth = 0;  // guesses that are right with 0.7; always where there is a script
    int64_t context_length = 512;
    int num_kv_blocks = 256;
    int max_running_requests = 16;
    int max_queued_requests = 64;
    int64_t queue_timeout_ms = 0;
    bool start = true;
  };
  TestServer() : TestServer(Options()) {}
  explicit TestServer(Options options);

  int port() const { return server->port(); }
  HttpAnswer chat(std::string_view fields) const;        // e.g. R"("stream":true)", added to a user message "hi"
  HttpAnswer completion(std::string_view fields) const;  // to nothing
  void start();

  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ChatTemplate> chat_template;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<HttpServer> server;  // dies first
};

}  // namespace moesaic
