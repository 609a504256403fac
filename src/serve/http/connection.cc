#include "serve/http/connection.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/log.h"

namespace moesaic {

namespace http = boost::beast::http;
using asio::ip::tcp;

namespace {

constexpr uint32_t kMaxHeaderBytes = 64 << 10;
constexpr int kSendBufferBytes = 256 << 10;  // small, so that a slow reader shows
constexpr size_t kLargeBodyBytes = 1 << 20;  // some 0.2 s of tokenising

std::string_view text_of(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

struct Connection::Parser : http::request_parser<http::string_body> {};

Connection::Connection(tcp::socket socket, IoThread& io, ServerState& shared)
    : socket_(std::move(socket)),
      io_(io),
      shared_(shared),
      deadline_(io.context),
      request_deadline_(io.context),
      event_(io.context, asio::steady_timer::time_point::max()) {
  io_.connections.insert(this);
}

Connection::~Connection() {
  job_.reset();
  io_.connections.erase(this);
  shared_.connection_closed();
}

void Connection::start() {
  error_code ignored;
  socket_.set_option(tcp::no_delay(true), ignored);
  socket_.set_option(asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
  asio::co_spawn(io_.context, run(shared_from_this()), [](std::exception_ptr failure) {
    if (failure) log_error("http: a connection ended with an exception");
  });
}

void Connection::drain() {
  if (idle_) close();
}

void Connection::abort_request() {
  aborted_ = true;
  signal();
}

void Connection::close() {
  error_code ignored;
  socket_.close(ignored);
  signal();
}

asio::awaitable<void> Connection::run(std::shared_ptr<Connection> self) {
  bool first = true;
  while (co_await self->serve_one(std::exchange(first, false))) {
  }
  self->disarm();
  self->close();
  co_await self->stop_watching();
}

void Connection::arm(int64_t ms) {
  const uint64_t armed = ++deadline_generation_;
  deadline_.expires_after(std::chrono::milliseconds(ms));
  deadline_.async_wait([self = shared_from_this(), armed](error_code error) {
    if (!error && armed == self->deadline_generation_) self->close();
  });
}

void Connection::disarm() {
  ++deadline_generation_;
  deadline_.cancel();
}

void Connection::signal() {
  signalled_ = true;
  event_.cancel();
}

asio::awaitable<void> Connection::wait_event() {
  error_code ignored;
  if (!signalled_) co_await event_.async_wait(into(ignored));
  signalled_ = false;
}

asio::awaitable<bool> Connection::read_head(Parser& parser, bool first) {
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

std::string Connection::too_large() const {
  return str_cat("the body is larger than ", shared_.options.max_body_bytes, " bytes");
}

asio::awaitable<bool> Connection::read_body(Parser& parser, BodyBudget& budget) {
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

asio::awaitable<bool> Connection::serve_one(bool first) {
  Parser parser;
  parser.header_limit(kMaxHeaderBytes);
  parser.body_limit(static_cast<uint64_t>(shared_.options.max_body_bytes));
  if (!co_await read_head(parser, first)) co_return false;
  const auto& head = parser.get();
  head_only_ = head.method() == http::verb::head;
  keep_alive_ = head.keep_alive();
  http_1_1_ = head.version() >= 11;
  const std::string path = decode_percent(path_of(text_of(head.target())));
  const RouteMatch route = match_route(path);
  const RequestHead asked = {.method = text_of(head.method_string()),
                             .path = path,
                             .authorization = text_of(head[http::field::authorization])};
  if (auto denied = refusal(asked, route, shared_.options.api_key)) {
    if (parser.is_done()) co_return co_await reply(*std::move(denied));
    co_await refuse(*std::move(denied));
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
  const size_t body_bytes = parser.get().body().size();
  std::function<void()> work = [this, answer, endpoint = route.endpoint, body = std::move(parser.get().body())] {
    *answer = shared_.api.answer(endpoint, "", body);
  };
  co_await on_worker(body_bytes, std::move(work));
  co_return co_await reply(std::move(*answer));
}

asio::awaitable<void> Connection::on_worker(size_t body_bytes, std::function<void()> work) {
  auto done = std::make_shared<bool>(false);
  IoThread& worker = body_bytes > kLargeBodyBytes ? shared_.large_worker : shared_.worker;
  asio::post(worker.context, [self = shared_from_this(), work = std::move(work), done]() mutable {
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

}  // namespace moesaic
