#include "serve/http/http_server.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/cancellation_signal.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/thread.h"
#include "serve/http/api.h"
#include "serve/http/http_wire.h"
#include "serve/http/openai_error.h"

namespace moesaic {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using RequestParser = http::request_parser<http::string_body>;

constexpr uint32_t kMaxHeaderBytes = 64 << 10;
constexpr size_t kMaxPipelinedBytes = 64 << 10;  // kept while a request runs; beyond, the socket is left unread
constexpr int64_t kLingerMs = 2'000;
constexpr int kSendBufferBytes = 256 << 10;  // small, so that a slow reader shows
constexpr int64_t kAcceptRetryMs = 100;
constexpr int64_t kAbortGraceMs = 2'000;
constexpr int64_t kCloseTimeoutMs = 120'000;

auto into(error_code& error) {
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
struct Shared {
  Shared(HttpServerOptions server_options, const Clock& server_clock)
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
  IoThread worker;  // parses and tokenises
  std::atomic<int64_t> body_bytes{0};
  std::mutex mutex;
  std::condition_variable closed;
  int num_connections = 0;
};

// Body bytes held on behalf of a request, counted against the server's total.
class BodyBudget {
 public:
  explicit BodyBudget(Shared& shared) : shared_(shared) {}
  ~BodyBudget() { shared_.body_bytes.fetch_sub(bytes_); }
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  // False when the server holds too much already.
  bool grow_to(int64_t bytes) {
    const int64_t more = bytes - std::exchange(bytes_, bytes);
    return shared_.body_bytes.fetch_add(more) + more <= shared_.options.max_total_body_bytes;
  }

 private:
  Shared& shared_;
  int64_t bytes_ = 0;
};

// One client connection: a coroutine that reads a request, answers it, and again. Everything that happens meanwhile
// (outputs, the client leaving, time running out, shutdown) sets a flag and signals it.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(tcp::socket socket, IoThread& io, Shared& shared)
      : socket_(std::move(socket)),
        io_(io),
        shared_(shared),
        deadline_(io.context),
        request_deadline_(io.context),
        event_(io.context, asio::steady_timer::time_point::max()) {
    io_.connections.insert(this);
  }
  ~Connection() {
    job_.reset();
    io_.connections.erase(this);
    shared_.connection_closed();
  }

  void start() {
    error_code ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    socket_.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
    asio::co_spawn(io_.context, run(shared_from_this()), [](std::exception_ptr failure) {
      if (failure) log_error("http: a connection ended with an exception");
    });
  }

  // Shutdown: an idle connection closes now, a busy one after its answer.
  void drain() {
    if (idle_) close();
  }
  // Shutdown, out of patience: what runs ends with an error.
  void abort_request() {
    aborted_ = true;
    signal();
  }
  void close() {
    error_code ignored;
    socket_.close(ignored);
    signal();
  }

 private:
  static asio::awaitable<void> run(std::shared_ptr<Connection> self) {
    bool first = true;
    while (co_await self->serve_one(std::exchange(first, false))) {
    }
    self->disarm();
    self->close();
    co_await self->stop_watching();
  }

  // --- time and events ---

  void arm(int64_t ms) {
    const uint64_t armed = ++deadline_generation_;
    deadline_.expires_after(std::chrono::milliseconds(ms));
    deadline_.async_wait([self = shared_from_this(), armed](error_code error) {
      if (!error && armed == self->deadline_generation_) self->close();
    });
  }
  void disarm() {
    ++deadline_generation_;
    deadline_.cancel();
  }

  void signal() {
    signalled_ = true;
    event_.cancel();
  }
  asio::awaitable<void> wait_event() {
    error_code ignored;
    if (!signalled_) co_await event_.async_wait(into(ignored));
    signalled_ = false;
  }

  // --- reading ---

  // True: a head is in the parser. False: close.
  asio::awaitable<bool> read_head(RequestParser& parser, bool first) {
    error_code error;
    if (buffer_.size() == 0) {
      idle_ = true;
      if (shared_.api.draining()) co_return false;
      arm(first ? shared_.options.header_timeout_ms : shared_.options.idle_timeout_ms);
      co_await socket_.async_wait(tcp::socket::wait_read, into(error));
      idle_ = false;
      if (error) co_return false;
    }
    arm(shared_.options.header_timeout_ms);
    co_await http::async_read_header(socket_, buffer_, parser, into(error));
    disarm();
    if (!error) co_return true;
    if (error == http::error::body_limit) {
      co_await refuse(413, too_large());
    } else if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      co_await refuse(431, str_cat("the request head is larger than ", kMaxHeaderBytes, " bytes"));
    } else if (error.category() == http::make_error_code(http::error::bad_version).category() &&
               error != http::error::end_of_stream && error != http::error::partial_message) {
      co_await refuse(400, str_cat("not a valid HTTP request: ", error.message()));
    }
    co_return false;
  }

  std::string too_large() const {
    return str_cat("the body is larger than ", shared_.options.max_body_bytes, " bytes");
  }

  asio::awaitable<bool> read_body(RequestParser& parser, BodyBudget& budget) {
    error_code error;
    if (parser.get()[http::field::expect] == "100-continue") {
      static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      if (!co_await write(std::string(kContinue))) co_return false;
    }
    arm(shared_.options.body_timeout_ms);
    while (!parser.is_done() && !error) {
      co_await http::async_read_some(socket_, buffer_, parser, into(error));
      if (!budget.grow_to(static_cast<int64_t>(parser.get().body().size()))) {
        disarm();
        co_await refuse(503, "the server holds too many large requests; try again soon");
        co_return false;
      }
    }
    disarm();
    if (error == http::error::body_limit) co_await refuse(413, too_large());
    if (error && error != http::error::body_limit && socket_.is_open() &&
        error.category() == http::make_error_code(http::error::bad_chunk).category() &&
        error != http::error::partial_message) {
      co_await refuse(400, str_cat("not a valid HTTP request: ", error.message()));
    }
    co_return !error;
  }

  // --- writing ---

  asio::awaitable<bool> write(std::string bytes) {
    error_code error;
    arm(shared_.options.write_timeout_ms);
    co_await asio::async_write(socket_, asio::buffer(bytes), into(error));
    disarm();
    co_return !error;
  }

  // False: close.
  asio::awaitable<bool> reply(ApiReply answer) {
    const bool keep_alive = keep_alive_ && !shared_.api.draining();
    const bool sent =
        co_await write(format_reply(answer, {.keep_alive = keep_alive, .head_only = method_ == http::verb::head}));
    co_return sent&& keep_alive;
  }

  // Answers although the request was not read to its end. Closing at once would make the kernel reset the connection
  // and could take the answer back from the client: what still comes is read and dropped for a while.
  asio::awaitable<void> refuse(ApiReply answer) {
    keep_alive_ = false;
    co_await reply(std::move(answer));
    error_code error;
    socket_.shutdown(tcp::socket::shutdown_send, error);
    arm(kLingerMs);
    while (!error) {
      buffer_.clear();
      co_await socket_.async_read_some(buffer_.prepare(16 << 10), into(error));
    }
    disarm();
  }
  asio::awaitable<void> refuse(int status, std::string message) { co_await refuse(error_reply(status, message)); }

  // --- a request ---

  // False: close the connection.
  asio::awaitable<bool> serve_one(bool first) {
    RequestParser parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(static_cast<uint64_t>(shared_.options.max_body_bytes));
    if (!co_await read_head(parser, first)) co_return false;
    const auto& head = parser.get();
    method_ = head.method();
    keep_alive_ = head.keep_alive();
    http_1_1_ = head.version() >= 11;
    const std::string path = decode_percent(path_of(std::string_view(head.target().data(), head.target().size())));
    const RouteMatch route = match_route(path);
    if (ApiReply denied; !admit(head, path, route, &denied)) {
      if (parser.is_done()) co_return co_await reply(std::move(denied));
      co_await refuse(std::move(denied));
      co_return false;
    }
    BodyBudget budget(shared_);
    if (!co_await read_body(parser, budget)) co_return false;
    const int64_t arrival_ns = shared_.clock.now_ns();
    if (is_job(route.endpoint)) {
      co_return co_await serve_job(route.endpoint, std::move(parser.get().body()), budget, arrival_ns);
    }
    if (!is_slow(route.endpoint)) {
      co_return co_await reply(shared_.api.answer(route.endpoint, path, parser.get().body()));
    }
    auto answer = std::make_shared<ApiReply>();
    std::function<void()> work = [this, answer, endpoint = route.endpoint, body = std::move(parser.get().body())] {
      *answer = shared_.api.answer(endpoint, "", body);
    };
    co_await on_worker(std::move(work));
    co_return co_await reply(std::move(*answer));
  }

  // Path, method and key. False: *denied is the answer.
  bool admit(const http::request<http::string_body>& head, std::string_view path, const RouteMatch& route,
             ApiReply* denied) const {
    if (head.method() == http::verb::options) {
      *denied = {.status = 204,
                 .extra_headers =
                     "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
                     "Access-Control-Allow-Headers: Authorization, Content-Type\r\n"
                     "Access-Control-Max-Age: 86400\r\n"};
      return false;
    }
    const auto authorization = head[http::field::authorization];
    const bool open = shared_.options.api_key.empty() || (route.found && route.endpoint == Endpoint::kHealth);
    if (!open && !is_authorized({authorization.data(), authorization.size()}, shared_.options.api_key)) {
      *denied = error_reply(401, "a valid API key is needed: Authorization: Bearer KEY (--api-key)");
      denied->extra_headers = "WWW-Authenticate: Bearer\r\n";
      return false;
    }
    if (!route.found) {
      *denied = error_reply(404, str_cat("no such path: ", path.substr(0, 256)));
      return false;
    }
    const bool reads = head.method() == http::verb::get || head.method() == http::verb::head;
    const bool allowed = route.methods == "POST" ? head.method() == http::verb::post : reads;
    if (allowed) return true;
    *denied = error_reply(405, str_cat("this path takes ", route.methods));
    denied->extra_headers = str_cat("Allow: ", route.methods, "\r\n");
    return false;
  }

  asio::awaitable<void> on_worker(std::function<void()> work) {
    auto done = std::make_shared<bool>(false);
    asio::post(shared_.worker.context, [self = shared_from_this(), work = std::move(work), done]() mutable {
      work();
      work = nullptr;
      asio::io_context& context = self->io_.context;
      asio::post(context, [self = std::move(self), done] {  // a connection must die on its own thread
        *done = true;
        self->signal();
      });
    });
    while (!*done) co_await wait_event();
  }

  // --- generation ---

  // Reads while a request runs, to notice the client leaving; keeps what a pipelining client sends.
  void watch() {
    watching_ = true;
    socket_.async_read_some(
        buffer_.prepare(4096),
        asio::bind_cancellation_slot(watch_cancel_.slot(), [self = shared_from_this()](error_code error, size_t size) {
          self->watching_ = false;
          self->buffer_.commit(size);
          if (error && error != asio::error::operation_aborted) {
            self->close();
            return;
          }
          self->signal();
          if (error || self->stop_watching_) return;
          if (self->buffer_.size() < kMaxPipelinedBytes) self->watch();
        }));
  }
  asio::awaitable<void> stop_watching() {
    stop_watching_ = true;
    watch_cancel_.emit(asio::cancellation_type::terminal);
    while (watching_) co_await wait_event();
    stop_watching_ = false;
  }

  // From the engine thread through post(): new output, or too much of it.
  void on_wake() {
    close_if_overflowed();  // now: a blocked write has to end
    signal();
  }
  void close_if_overflowed() {
    if (!job_ || !job_->overflowed() || !socket_.is_open()) return;
    log_warn("http: a client reads too slowly; its request is aborted (max_stream_buffer_bytes)");
    close();
  }

  asio::awaitable<bool> serve_job(Endpoint endpoint, std::string body, BodyBudget& budget, int64_t arrival_ns) {
    auto made = std::make_shared<absl::StatusOr<std::unique_ptr<CompletionJob>>>(absl::UnknownError("not made"));
    auto wake = [weak = weak_from_this(), executor = io_.context.get_executor()] {
      asio::post(executor, [weak] {
        if (const auto self = weak.lock()) self->on_wake();
      });
    };
    std::function<void()> work = [this, made, endpoint, arrival_ns, wake, body = std::move(body)] {
      *made = shared_.api.make_job(endpoint, body, arrival_ns, wake);
    };
    co_await on_worker(std::move(work));
    budget.grow_to(0);
    if (!made->ok()) co_return co_await reply(error_reply(made->status()));
    job_ = *std::move(*made);
    const bool health = endpoint == Endpoint::kHealthGenerate;
    expired_ = false;
    request_deadline_.expires_after(std::chrono::milliseconds(health ? shared_.options.health_generate_timeout_ms
                                                                     : shared_.options.request_timeout_ms));
    request_deadline_.async_wait([self = shared_from_this(), job = job_.get()](error_code error) {
      if (error || self->job_.get() != job) return;
      self->expired_ = true;
      self->signal();
    });
    watch();
    const bool keep = co_await deliver(health);
    job_.reset();  // aborts what still runs
    request_deadline_.cancel();
    co_await stop_watching();
    co_return keep&& socket_.is_open();
  }

  asio::awaitable<bool> deliver(bool health) {
    std::string body;
    bool head_sent = false;
    close_if_overflowed();  // may have happened before the job was here
    while (socket_.is_open()) {
      if (expired_) job_->fail(absl::DeadlineExceededError("the request took too long (request_timeout_ms)"), &body);
      if (aborted_) job_->fail(absl::UnavailableError("the server is shutting down"), &body);
      job_->poll(&body);
      if (job_->streams() && !body.empty()) {
        if (!co_await write_events(std::exchange(body, {}), !std::exchange(head_sent, true))) co_return false;
        if (job_->finished()) co_return keep_alive_&& http_1_1_;
        continue;
      }
      if (job_->finished()) {
        ApiReply answer{.status = job_->status(), .body = std::move(body)};
        if (health && answer.status != 200) answer.status = 503;
        if (health && answer.status == 200) answer.body = "{\"status\":\"ok\"}";
        co_return co_await reply(std::move(answer));
      }
      co_await wait_event();
    }
    co_return false;
  }

  asio::awaitable<bool> write_events(std::string events, bool first) {
    std::string bytes;
    if (first) {
      if (!http_1_1_ || shared_.api.draining()) keep_alive_ = false;
      bytes = format_stream_head(/*chunked=*/http_1_1_, keep_alive_);
    }
    if (http_1_1_) {
      append_chunk(events, &bytes);
      if (job_->finished()) append_chunk("", &bytes);
    } else {
      bytes += events;
    }
    co_return co_await write(std::move(bytes));
  }

  tcp::socket socket_;
  IoThread& io_;
  Shared& shared_;
  beast::flat_buffer buffer_;
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
  http::verb method_ = http::verb::get;
  bool keep_alive_ = true;
  bool http_1_1_ = true;
  std::unique_ptr<CompletionJob> job_;
};

absl::StatusOr<tcp::endpoint> resolve(asio::io_context& context, const HttpServerOptions& options) {
  error_code error;
  const auto address = asio::ip::make_address(options.host, error);
  const auto port = static_cast<uint16_t>(options.port);
  if (!error) return tcp::endpoint(address, port);
  tcp::resolver resolver(context);
  const auto found = resolver.resolve(options.host, "", tcp::resolver::passive, error);
  if (error || found.empty()) {
    return absl::InvalidArgumentError(
        str_cat("--host ", options.host, " is no address of this machine: ", error.message()));
  }
  return tcp::endpoint(found.begin()->endpoint().address(), port);
}

absl::Status bind_error(const HttpServerOptions& options, const error_code& error) {
  if (error == asio::error::address_in_use) {
    return absl::UnavailableError(str_cat("port ", options.port, " on ", options.host,
                                          " is in use by another process; choose another with --port"));
  }
  const std::string message =
      str_cat("cannot listen on ", options.host, " port ", options.port, " (--host, --port): ", error.message());
  return error == asio::error::access_denied ? absl::PermissionDeniedError(message)
                                             : absl::InvalidArgumentError(message);
}

}  // namespace

struct HttpServer::Impl {
  Impl(HttpServerOptions options, const Clock& clock) : shared(std::move(options), clock) {}

  // Runs `body(connection)` for all connections, on their threads.
  void each_connection(void (Connection::*body)()) {
    for (auto& io : io_threads) {
      asio::post(io->context, [io = io.get(), body] {
        const std::vector<Connection*> connections(io->connections.begin(), io->connections.end());
        for (Connection* connection : connections) (connection->*body)();
      });
    }
  }

  bool wait_closed(int64_t timeout_ms) {
    std::unique_lock lock(shared.mutex);
    return shared.closed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                  [&] { return shared.num_connections == 0; });
  }

  asio::awaitable<void> accept_loop() {
    asio::steady_timer pause(io_threads[0]->context);
    for (size_t turn = 0; !stopping.load(); ++turn) {
      IoThread& io = *io_threads[turn % io_threads.size()];
      error_code error;
      tcp::socket socket(io.context);
      co_await acceptor->async_accept(socket, into(error));
      if (error == asio::error::operation_aborted || error == asio::error::bad_descriptor) break;
      if (error) {  // out of file descriptors, or the client left already
        log_warn(str_cat("http: accept: ", error.message()));
        pause.expires_after(std::chrono::milliseconds(kAcceptRetryMs));
        co_await pause.async_wait(into(error));
        continue;
      }
      take(std::move(socket), io);
    }
  }

  void take(tcp::socket socket, IoThread& io) {
    {
      const std::lock_guard lock(shared.mutex);
      if (stopping.load()) return;
      if (shared.num_connections >= shared.options.max_connections) {
        error_code ignored;
        socket.non_blocking(true, ignored);
        const std::string busy = format_reply(error_reply(503, "too many connections"), {.keep_alive = false});
        socket.send(asio::buffer(busy), 0, ignored);
        return;
      }
      ++shared.num_connections;
    }
    asio::post(io.context, [this, &io, socket = std::move(socket)]() mutable {
      auto connection = std::make_shared<Connection>(std::move(socket), io, shared);
      connection->start();
    });
  }

  void stop(int64_t drain_timeout_ms) {
    if (stopping.exchange(true)) return;
    shared.api.set_draining();
    asio::post(io_threads[0]->context, [this] {
      error_code ignored;
      acceptor->close(ignored);
    });
    each_connection(&Connection::drain);
    if (!wait_closed(drain_timeout_ms)) {
      each_connection(&Connection::abort_request);
      if (!wait_closed(kAbortGraceMs)) each_connection(&Connection::close);
    }
    MOESAIC_CHECK(wait_closed(kCloseTimeoutMs));
    for (auto& io : io_threads) io->context.stop();
    shared.worker.context.stop();
    for (auto& io : io_threads) io->thread.join();
    shared.worker.thread.join();
  }

  std::atomic<bool> stopping{false};
  std::vector<std::unique_ptr<IoThread>> io_threads;
  Shared shared;
  std::optional<tcp::acceptor> acceptor;
  int port = 0;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

HttpServer::~HttpServer() {
  stop(0);
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::bind(HttpServerOptions options, const Clock& clock) {
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(str_cat("--port must be between 0 and 65535, got ", options.port));
  }
  auto impl = std::make_unique<Impl>(std::move(options), clock);
  const HttpServerOptions& kept = impl->shared.options;
  for (int i = 0; i < std::max(kept.num_io_threads, 1); ++i) impl->io_threads.push_back(std::make_unique<IoThread>());
  asio::io_context& context = impl->io_threads[0]->context;
  MOESAIC_ASSIGN_OR_RETURN(const tcp::endpoint endpoint, resolve(context, kept));
  impl->acceptor.emplace(context);
  error_code error;
  impl->acceptor->open(endpoint.protocol(), error);
  // Lets a restart take over a port whose old connections linger; two listeners are still refused.
  if (!error) impl->acceptor->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) impl->acceptor->bind(endpoint, error);
  if (!error) impl->acceptor->listen(tcp::acceptor::max_listen_connections, error);
  if (error) return bind_error(kept, error);
  impl->port = impl->acceptor->local_endpoint(error).port();
  for (size_t i = 0; i < impl->io_threads.size(); ++i) {
    IoThread& io = *impl->io_threads[i];
    io.thread = Thread(str_cat("http-io-", i), [&io] { io.context.run(); });
  }
  IoThread& worker = impl->shared.worker;
  worker.thread = Thread("http-worker", [&worker] { worker.context.run(); });
  asio::co_spawn(context, impl->accept_loop(), [](std::exception_ptr) {});
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

int HttpServer::port() const {
  return impl_->port;
}

void HttpServer::start(ServedModel model) {
  MOESAIC_CHECK(model.engine != nullptr && model.tokenizer != nullptr);
  impl_->shared.api.start(std::move(model));
}

void HttpServer::stop(int64_t drain_timeout_ms) {
  impl_->stop(drain_timeout_ms);
}

}  // namespace moesaic
