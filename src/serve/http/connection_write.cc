// What a connection sends: answers, refusals, and completions while the engine makes them; and how it notices meanwhile
// that the client leaves.
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>

#include "base/log.h"
#include "serve/http/connection.h"

namespace moesaic {
namespace {

constexpr int64_t kLingerMs = 2'000;
constexpr size_t kMaxPipelinedBytes = 64 << 10;  // kept while a request runs; beyond, the socket is left unread

}  // namespace

asio::awaitable<bool> Connection::write(std::string bytes) {
  error_code error;
  arm(shared_.options.write_timeout_ms);
  co_await asio::async_write(socket_, asio::buffer(bytes), into(error));
  disarm();
  co_return !error;
}

asio::awaitable<bool> Connection::reply(ApiReply answer) {
  const bool keep_alive = keep_alive_ && !shared_.api.draining();
  const bool sent = co_await write(format_reply(answer, {.keep_alive = keep_alive, .head_only = head_only_}));
  co_return sent&& keep_alive;
}

// Closing at once would make the kernel reset the connection and could take the answer back from the client: what
// still comes is read and dropped for a while.
asio::awaitable<void> Connection::refuse(ApiReply answer) {
  keep_alive_ = false;
  co_await reply(std::move(answer));
  error_code error;
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, error);
  arm(kLingerMs);
  while (!error) {
    buffer_.consume(buffer_.size());
    co_await socket_.async_read_some(buffer_.prepare(16 << 10), into(error));
  }
  disarm();
}

asio::awaitable<void> Connection::refuse(int status, std::string message) {
  co_await refuse(error_reply(status, message));
}

// Reads while a request runs, to notice the client leaving; keeps what a pipelining client sends.
void Connection::watch() {
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

asio::awaitable<void> Connection::stop_watching() {
  stop_watching_ = true;
  watch_cancel_.emit(asio::cancellation_type::terminal);
  while (watching_) co_await wait_event();
  stop_watching_ = false;
}

// From the engine thread through post(): new output, or too much of it.
void Connection::on_wake() {
  close_if_overflowed();  // now: a blocked write has to end
  signal();
}

void Connection::close_if_overflowed() {
  if (!job_ || !job_->overflowed() || !socket_.is_open()) return;
  log_warn("http: a client reads too slowly; its request is aborted (max_stream_buffer_bytes)");
  close();
}

asio::awaitable<bool> Connection::serve_job(Endpoint endpoint, std::string body, BodyBudget& budget,
                                            int64_t arrival_ns) {
  auto made = std::make_shared<absl::StatusOr<std::unique_ptr<CompletionJob>>>(absl::UnknownError("not made"));
  auto wake = [weak = weak_from_this(), executor = io_.context.get_executor()] {
    asio::post(executor, [weak] {
      if (const auto self = weak.lock()) self->on_wake();
    });
  };
  const size_t body_bytes = body.size();
  std::function<void()> work = [this, made, endpoint, arrival_ns, wake, body = std::move(body)] {
    *made = shared_.api.make_job(endpoint, body, arrival_ns, wake);
  };
  co_await on_worker(body_bytes, std::move(work));
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

asio::awaitable<bool> Connection::deliver(bool health) {
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

asio::awaitable<bool> Connection::write_events(std::string events, bool first) {
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

}  // namespace moesaic
