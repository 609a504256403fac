// Connection: one client of the HTTP server, and what all connections share. Private to the server. A connection lives
// on the thread of its IoThread alone and owns itself through shared_ptrs that its handlers hold; the server reaches it
// by posting to that thread. It reads one request after the other, each with limits and deadlines, and answers it.
#pragma once

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/streambuf.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/thread.h"
#include "serve/http/api.h"
#include "serve/http/http_server.h"

namespace moesaic {

namespace asio = boost::asio;
using boost::system::error_code;

// The completion token of coroutines here: errors come in `error`, nothing throws.
inline auto into(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

class Connection;

// One I/O thread. Its connections live on it alone, so they need no locks.
struct IoThread {
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  std::unordered_set<Connection*> connections;
  Thread thread;
};

// What all connections share.
struct ServerState {
  ServerState(HttpServerOptions server_options, const Clock& server_clock)
      : options(std::move(server_options)),
        clock(server_clock),
        api(server_clock, static_cast<size_t>(options.max_stream_buffer_bytes)) {}

  void connection_closed() {
    const std::lock_guard lock(mutex);
    --num_connections;
    closed.notify_all();
  }

  const HttpServerOptions options;
  const Clock& clock;
  Api api;
  // Parse and tokenise; a large body takes seconds, for which the others do not wait.
  IoThread worker;
  IoThread large_worker;
  std::atomic<int64_t> body_bytes{0};
  std::mutex mutex;
  std::condition_variable closed;
  int num_connections = 0;
};

// Body bytes held on behalf of a request, counted against the server's total.
class BodyBudget {
 public:
  explicit BodyBudget(ServerState& shared) : shared_(shared) {}
  ~BodyBudget() { shared_.body_bytes.fetch_sub(bytes_); }
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  // False when the server holds too much already.
  bool grow_to(int64_t bytes) {
    const int64_t more = bytes - std::exchange(bytes_, bytes);
    return shared_.body_bytes.fetch_add(more) + more <= shared_.options.max_total_body_bytes;
  }

 private:
  ServerState& shared_;
  int64_t bytes_ = 0;
};

// A coroutine that reads a request, answers it, and again. Everything that happens meanwhile (outputs, the client
// leaving, time running out, shutdown) sets a flag and signals it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::ip::tcp::socket socket, IoThread& io, ServerState& shared);
  ~Connection();

  void start();
  // Shutdown: an idle connection closes now, a busy one after its answer.
  void drain();
  // Shutdown, out of patience: what runs ends with an error.
  void abort_request();
  void close();

 private:
  struct Parser;  // Beast's; only connection.cc sees it

  static asio::awaitable<void> run(std::shared_ptr<Connection> self);

  // Time and events.
  void arm(int64_t ms);  // closes the socket then, unless disarmed
  void disarm();
  void signal();
  asio::awaitable<void> wait_event();

  // Reading.
  asio::awaitable<bool> read_head(Parser& parser, bool first);  // true: a head is in the parser. False: close
  asio::awaitable<bool> read_body(Parser& parser, BodyBudget& budget);
  std::string too_large() const;

  // Writing (connection_write.cc). False: close.
  asio::awaitable<bool> write(std::string bytes);
  asio::awaitable<bool> reply(ApiReply answer);
  // Answers although the request was not read to its end; then closes.
  asio::awaitable<void> refuse(ApiReply answer);
  asio::awaitable<void> refuse(int status, std::string message);

  // A request. False: close.
  asio::awaitable<bool> serve_one(bool first);
  asio::awaitable<void> on_worker(size_t body_bytes, std::function<void()> work);

  // Generation (connection_write.cc). False: close.
  asio::awaitable<bool> serve_job(Endpoint endpoint, std::string body, BodyBudget& budget, int64_t arrival_ns);
  asio::awaitable<bool> deliver(bool health);
  asio::awaitable<bool> write_events(std::string events, bool first);
  void watch();
  asio::awaitable<void> stop_watching();
  void on_wake();
  void close_if_overflowed();

  asio::ip::tcp::socket socket_;
  IoThread& io_;
  ServerState& shared_;
  asio::streambuf buffer_;       // bytes that came and belong to no request yet
  asio::steady_timer deadline_;  // of one read or write; closes the socket
  uint64_t deadline_generation_ = 0;
  asio::steady_timer request_deadline_;
  asio::steady_timer event_;
  bool signalled_ = false;
  bool idle_ = false;
  bool aborted_ = false;
  bool expired_ = false;
  bool watching_ = false;
  bool stop_watching_ = false;
  asio::cancellation_signal watch_cancel_;
  bool head_only_ = false;  // the request is a HEAD
  bool keep_alive_ = true;
  bool http_1_1_ = true;
  std::unique_ptr<CompletionJob> job_;
};

}  // namespace moesaic
