#include "serve/http/sse_client.h"

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <unordered_set>
#include <utility>

#include "base/strings.h"
#include "base/thread.h"
#include "serve/http/sse_parser.h"

namespace moesaic {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using AnswerParser = http::response_parser<http::buffer_body>;

constexpr size_t kReadBytes = 16 << 10;
constexpr uint32_t kMaxHeaderBytes = 64 << 10;

auto into(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

struct Target {
  std::string host;  // as in the URL, for the Host header
  std::string prefix;
  tcp::resolver::results_type endpoints;
};

absl::StatusOr<Target> resolve(asio::io_context& context, std::string_view url) {
  constexpr std::string_view kScheme = "http://";
  const auto wrong = [&](std::string_view why) {
    return absl::InvalidArgumentError(str_cat("--base-url expects http://HOST[:PORT][/PREFIX], found ", url, why));
  };
  if (url.starts_with("https://")) return wrong(" (TLS is not supported: use a plain address or a local proxy)");
  if (!url.starts_with(kScheme)) return wrong("");
  const std::string_view rest = url.substr(kScheme.size());
  const size_t slash = std::min(rest.find('/'), rest.size());
  Target target{.host = std::string(rest.substr(0, slash)), .prefix = std::string(rest.substr(slash))};
  while (target.prefix.ends_with('/')) target.prefix.pop_back();
  std::string name = target.host, port = "80";
  const size_t bracket = name.rfind(']');  // [::1]:8000
  const size_t colon = name.find(':', bracket == std::string::npos ? 0 : bracket);
  if (colon != std::string::npos) {
    port = name.substr(colon + 1);
    name.resize(colon);
  }
  if (name.starts_with('[') && name.ends_with(']')) name = name.substr(1, name.size() - 2);
  const bool digits = !port.empty() && port.find_first_not_of("0123456789") == std::string::npos;
  if (name.empty() || !digits || port.size() > 5) return wrong("");
  error_code error;
  tcp::resolver resolver(context);
  target.endpoints = resolver.resolve(name, port, error);
  if (error) return absl::UnavailableError(str_cat("--base-url ", url, ": ", name, ": ", error.message()));
  return target;
}

// One request and its answer; lives until its coroutine ends.
class Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(asio::io_context& context, const Target& target, const SseClientOptions& options, const Clock& clock,
           std::string request, SseClient::Callbacks callbacks)
      : target_(target),
        options_(options),
        clock_(clock),
        request_(std::move(request)),
        callbacks_(std::move(callbacks)),
        socket_(context),
        idle_timer_(context),
        total_timer_(context),
        events_(static_cast<size_t>(options.max_answer_bytes)) {}

  asio::awaitable<void> run() {
    if (callbacks_.on_start) callbacks_.on_start(clock_.now_ns());
    arm(total_timer_, options_.request_timeout_ms, "the request took longer than ");
    co_await talk();
    idle_timer_.cancel();
    total_timer_.cancel();
    error_code ignored;
    socket_.close(ignored);
    callbacks_.on_end(std::move(result_), clock_.now_ns());
    callbacks_ = {};
  }

  // The client goes.
  void cancel() { give_up(absl::UnavailableError("the client was closed")); }

 private:
  void give_up(absl::Status why) {
    if (cause_.ok()) cause_ = std::move(why);
    error_code ignored;
    socket_.close(ignored);
  }

  void arm(asio::steady_timer& timer, int64_t ms, const char* what) {
    timer.expires_after(std::chrono::milliseconds(ms));
    timer.async_wait([weak = weak_from_this(), what, ms](error_code error) {
      const auto self = weak.lock();
      if (error || !self) return;
      self->give_up(absl::DeadlineExceededError(str_cat(what, ms, " ms")));
    });
  }

  // True: go on. Keeps the first thing that went wrong.
  bool check(const error_code& error, std::string_view doing) {
    if (!cause_.ok()) {
      result_.transport = cause_;
    } else if (error) {
      result_.transport = absl::UnavailableError(str_cat(doing, ": ", error.message()));
    }
    return result_.transport.ok();
  }

  asio::awaitable<void> talk() {
    error_code error;
    arm(idle_timer_, options_.connect_timeout_ms, "no connection within ");
    co_await asio::async_connect(socket_, target_.endpoints, into(error));
    if (!check(error, "cannot connect")) co_return;
    socket_.set_option(tcp::no_delay(true), error);
    arm(idle_timer_, options_.idle_timeout_ms, "the server took nothing for ");
    co_await asio::async_write(socket_, asio::buffer(request_), into(error));
    if (!check(error, "the request could not be sent")) co_return;
    request_ = {};

    AnswerParser parser;
    parser.header_limit(kMaxHeaderBytes);
    parser.body_limit(boost::none);
    arm(idle_timer_, options_.idle_timeout_ms, "no answer for ");
    co_await http::async_read_header(socket_, buffer_, parser, into(error));
    if (!check(error, "no valid answer")) co_return;
    result_.status = static_cast<int>(parser.get().result_int());
    const auto type = parser.get()[http::field::content_type];
    const bool streams =
        result_.status == 200 && std::string_view(type.data(), type.size()).starts_with("text/event-stream");
    co_await read_body(parser, streams);
  }

  asio::awaitable<void> read_body(AnswerParser& parser, bool streams) {
    char bytes[kReadBytes];
    while (!parser.is_done()) {
      parser.get().body().data = bytes;
      parser.get().body().size = sizeof bytes;
      error_code error;
      arm(idle_timer_, options_.idle_timeout_ms, "nothing came for ");
      co_await http::async_read_some(socket_, buffer_, parser, into(error));
      if (error == http::error::need_buffer) error = {};
      const std::string_view got(bytes, sizeof bytes - parser.get().body().size);
      if (!take(got, streams)) co_return;
      if (!check(error, "the answer broke off")) co_return;
    }
  }

  bool take(std::string_view bytes, bool streams) {
    bool fits = true;
    if (streams) {
      const int64_t now_ns = clock_.now_ns();
      fits = events_.feed(bytes, [&](std::string_view data) { callbacks_.on_event(data, now_ns); });
    } else {
      fits = static_cast<int64_t>(result_.body.size() + bytes.size()) <= options_.max_answer_bytes;
      if (fits) result_.body += bytes;
    }
    if (!fits) result_.transport = absl::InternalError(str_cat("more than ", options_.max_answer_bytes, " bytes came"));
    return fits;
  }

  const Target& target_;
  const SseClientOptions& options_;
  const Clock& clock_;
  std::string request_;
  SseClient::Callbacks callbacks_;
  tcp::socket socket_;
  asio::steady_timer idle_timer_;
  asio::steady_timer total_timer_;
  beast::flat_buffer buffer_{kMaxHeaderBytes + kReadBytes};
  SseParser events_;
  absl::Status cause_;  // why the socket was closed from here
  HttpResult result_;
};

}  // namespace

struct SseClient::Impl {
  Impl(SseClientOptions client_options, const Clock& client_clock)
      : options(std::move(client_options)), clock(client_clock) {}

  std::string request_text(std::string_view method, std::string_view path, std::string_view body) const {
    std::string text = str_cat(method, " ", target.prefix, path, " HTTP/1.1\r\nHost: ", target.host,
                               "\r\nAccept: text/event-stream, application/json\r\nConnection: close\r\n");
    if (!options.api_key.empty()) text += str_cat("Authorization: Bearer ", options.api_key, "\r\n");
    if (method == "POST") text += str_cat("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
    return str_cat(text, "\r\n", body);
  }

  void start(std::string request, Callbacks callbacks) {
    asio::post(context, [this, request = std::move(request), callbacks = std::move(callbacks)]() mutable {
      auto exchange =
          std::make_shared<Exchange>(context, target, options, clock, std::move(request), std::move(callbacks));
      if (closing) exchange->cancel();
      open.insert(exchange);
      asio::co_spawn(context, exchange->run(), [this, exchange](std::exception_ptr) { open.erase(exchange); });
    });
  }

  HttpResult wait(std::string request) {
    std::mutex mutex;
    std::condition_variable ended;
    bool done = false;
    HttpResult result;
    start(std::move(request), {.on_start = nullptr,
                               .on_event = [](std::string_view, int64_t) {},
                               .on_end =
                                   [&](HttpResult got, int64_t) {
                                     const std::lock_guard lock(mutex);
                                     result = std::move(got);
                                     done = true;
                                     ended.notify_all();
                                   }});
    std::unique_lock lock(mutex);
    ended.wait(lock, [&] { return done; });  // the exchange has deadlines of its own
    return result;
  }

  const SseClientOptions options;
  const Clock& clock;
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{context.get_executor()};
  Target target;
  bool closing = false;                                // the I/O thread's
  std::unordered_set<std::shared_ptr<Exchange>> open;  // the I/O thread's
  Thread thread;
};

SseClient::SseClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

absl::StatusOr<std::unique_ptr<SseClient>> SseClient::connect(const std::string& base_url, SseClientOptions options,
                                                              const Clock& clock) {
  auto impl = std::make_unique<Impl>(std::move(options), clock);
  MOESAIC_ASSIGN_OR_RETURN(impl->target, resolve(impl->context, base_url));
  impl->thread = Thread("sse-client", [context = &impl->context] { context->run(); });
  return std::unique_ptr<SseClient>(new SseClient(std::move(impl)));
}

SseClient::~SseClient() {
  asio::post(impl_->context, [impl = impl_.get()] {
    impl->closing = true;
    for (const auto& exchange : impl->open) exchange->cancel();
    impl->work.reset();  // run() returns when the last exchange has ended
  });
  impl_->thread.join();
}

void SseClient::post(std::string path, std::string json_body, Callbacks callbacks) {
  impl_->start(impl_->request_text("POST", path, json_body), std::move(callbacks));
}

HttpResult SseClient::get(std::string path) {
  return impl_->wait(impl_->request_text("GET", path, ""));
}

HttpResult SseClient::post_and_wait(std::string path, std::string json_body) {
  return impl_->wait(impl_->request_text("POST", path, json_body));
}

}  // namespace moesaic
