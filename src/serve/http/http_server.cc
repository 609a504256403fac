#include "serve/http/http_server.h"

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "serve/http/connection.h"

namespace moesaic {
namespace {

using asio::ip::tcp;

constexpr int64_t kAcceptRetryMs = 100;
constexpr int64_t kAbortGraceMs = 2'000;
constexpr int64_t kCloseTimeoutMs = 120'000;

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
    for (auto& io : io_threads) io->thread.join();
    for (IoThread* worker : {&shared.worker, &shared.large_worker}) {
      worker->context.stop();
      worker->thread.join();
    }
  }

  std::atomic<bool> stopping{false};
  std::vector<std::unique_ptr<IoThread>> io_threads;
  ServerState shared;
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
  const auto start = [](IoThread& worker, const char* name) {
    worker.thread = Thread(name, [&worker] { worker.context.run(); });
  };
  start(impl->shared.worker, "http-worker");
  start(impl->shared.large_worker, "http-large");
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
