// SseClient: many HTTP requests at once to one server, their answers as they stream. One I/O thread of its own runs all
// sockets; post() and get() may be called from any thread, callbacks come on the I/O thread and must not block. Every
// wait has a deadline. One connection a request; http:// only.
//
//   MOESAIC_ASSIGN_OR_RETURN(const auto client, SseClient::connect("http://127.0.0.1:30000", {.api_key = key}));
//   client->post("/v1/completions", body, {.on_event = ..., .on_end = ...});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace moesaic {

struct SseClientOptions {
  std::string api_key;                     // empty: none is sent
  int64_t connect_timeout_ms = 10'000;     // of one attempt
  int64_t idle_timeout_ms = 600'000;       // between two pieces of an answer, and until its head
  int64_t request_timeout_ms = 3'600'000;  // of the whole exchange
  int64_t max_answer_bytes = 64ll << 20;   // of an answer that is not a stream, and of one event
};

struct HttpResult {
  // OK: an answer came whole, whatever its status. UNAVAILABLE: no connection, or it broke. DEADLINE_EXCEEDED: one of
  // the timeouts. INTERNAL: no HTTP, or too large.
  absl::Status transport;
  int status = 0;    // HTTP
  std::string body;  // of an answer that is not an event stream
};

class SseClient {
 public:
  struct Callbacks {
    std::function<void(int64_t now_ns)> on_start;                         // about to connect; may be empty
    std::function<void(std::string_view data, int64_t now_ns)> on_event;  // of a 200 text/event-stream; [DONE] too
    std::function<void(HttpResult result, int64_t now_ns)> on_end;        // exactly once, and last
  };

  // Resolves the address; does not connect yet. `base_url`: http://HOST[:PORT][/PREFIX], the prefix going before every
  // path. Errors: INVALID_ARGUMENT for another form, UNAVAILABLE for a name that is not found.
  static absl::StatusOr<std::unique_ptr<SseClient>> connect(const std::string& base_url, SseClientOptions options,
                                                            const Clock& clock = real_clock());
  // Open requests end with UNAVAILABLE; their callbacks have come when it returns.
  ~SseClient();

  void post(std::string path, std::string json_body, Callbacks callbacks);
  // Waits for the whole answer.
  HttpResult get(std::string path);
  HttpResult post_and_wait(std::string path, std::string json_body);

 private:
  struct Impl;
  explicit SseClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
