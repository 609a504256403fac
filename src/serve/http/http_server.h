// HttpServer: the OpenAI-compatible front end of one engine. bind() takes the port and starts answering at once (503
// until start()), so that a busy port is found before the model loads. I/O runs on its own threads; request bodies are
// parsed and tokenised on a worker thread, large ones on another; the engine thread only fills bounded inboxes. bind,
// start and stop are called by one thread. The engine, tokenizer and template are borrowed and must outlive stop().
//
//   MOESAIC_ASSIGN_OR_RETURN(auto server, HttpServer::bind({.host = "127.0.0.1", .port = 30000}));
//   ... load the model ...
//   server->start({.name = "tiny", .engine = engine, .tokenizer = tokenizer, .chat_template = chat_template});
//   ... wait for a signal ...
//   server->stop(/*drain_timeout_ms=*/30'000);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "serve/http/served_model.h"

namespace moesaic {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 30000;     // 0: any free one, see port()
  std::string api_key;  // empty: open. Else every path but /health needs "Authorization: Bearer KEY"
  int num_io_threads = 1;
  int max_connections = 4096;  // further ones get 503 and are closed
  int64_t max_body_bytes = 32 << 20;
  int64_t max_total_body_bytes = 512ll << 20;  // of all requests being received or parsed
  int64_t max_stream_buffer_bytes = 1 << 20;   // unsent output of one request; then it is aborted
  int64_t header_timeout_ms = 10'000;
  int64_t body_timeout_ms = 60'000;
  int64_t idle_timeout_ms = 75'000;   // keep-alive connections without a request
  int64_t write_timeout_ms = 60'000;  // a client that takes nothing for so long is gone
  int64_t request_timeout_ms = 3'600'000;
  int64_t health_generate_timeout_ms = 20'000;
};

class HttpServer {
 public:
  // Listens and answers 503 from now on. Errors: UNAVAILABLE when the port is in use (names it), INVALID_ARGUMENT for a
  // host that is no address of this machine.
  static absl::StatusOr<std::unique_ptr<HttpServer>> bind(HttpServerOptions options, const Clock& clock = real_clock());
  ~HttpServer();  // stop(0)

  int port() const;
  // The model is ready. Once.
  void start(ServedModel model);
  // Accepts no more, refuses new requests on open connections (503), lets running ones finish; aborts what is left
  // after drain_timeout_ms; then closes all. Idempotent.
  void stop(int64_t drain_timeout_ms);

 private:
  struct Impl;
  explicit HttpServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace moesaic
