#include "serve/http/http_test_util.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace moesaic {

RawClient::RawClient(int port, int receive_buffer_bytes) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  if (receive_buffer_bytes > 0) {
    setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  MOESAIC_CHECK_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
}

RawClient::~RawClient() {
  if (fd_ >= 0) close(fd_);
}

bool RawClient::try_send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void RawClient::send(std::string_view bytes) {
  try_send(bytes);
}

bool RawClient::read_some(int64_t timeout_ms) {
  pollfd waiting{.fd = fd_, .events = POLLIN};
  if (poll(&waiting, 1, static_cast<int>(timeout_ms)) <= 0) return false;
  char bytes[16384];
  const ssize_t size = recv(fd_, bytes, sizeof bytes, 0);
  if (size <= 0) return false;
  received_.append(bytes, static_cast<size_t>(size));
  return true;
}

bool RawClient::read_until(std::string_view text, int64_t timeout_ms) {
  while (received_.find(text) == std::string::npos) {
    if (!read_some(timeout_ms)) return false;
  }
  return true;
}

bool RawClient::closed_within(int64_t timeout_ms) {
  const int64_t end_ns = real_clock().now_ns() + timeout_ms * 1'000'000;
  while (real_clock().now_ns() < end_ns) {
    pollfd waiting{.fd = fd_, .events = POLLIN};
    const int ready = poll(&waiting, 1, static_cast<int>((end_ns - real_clock().now_ns()) / 1'000'000 + 1));
    if (ready > 0 && !read_some(0)) return true;
  }
  return false;
}

void RawClient::shutdown_send() {
  shutdown(fd_, SHUT_WR);
}

void RawClient::reset() {
  const linger hard{.l_onoff = 1, .l_linger = 0};
  setsockopt(fd_, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
  close(std::exchange(fd_, -1));
}

Json HttpAnswer::json() const {
  auto parsed = parse_json(body);
  EXPECT_TRUE(parsed.ok()) << parsed.status() << "\n" << body;
  return parsed.ok() ? *parsed : Json();
}

std::vector<std::string> HttpAnswer::events() const {
  std::vector<std::string> out;
  std::string_view rest = body;
  while (!rest.empty()) {
    const size_t end = rest.find("\n\n");
    EXPECT_TRUE(rest.starts_with("data: ") && end != rest.npos) << rest;
    if (end == rest.npos) break;
    out.emplace_back(rest.substr(6, end - 6));
    rest.remove_prefix(end + 2);
  }
  return out;
}

namespace {

bool need(RawClient& client, size_t size) {
  while (client.received().size() < size) {
    if (!client.read_some()) return false;
  }
  return true;
}

void read_chunks(RawClient& client, std::string* body) {
  for (;;) {
    if (!client.read_until("\r\n")) return;
    const size_t line = client.received().find("\r\n");
    const size_t size = std::stoul(client.received().substr(0, line), nullptr, 16);
    if (!need(client, line + 2 + size + 2)) return;
    body->append(client.received(), line + 2, size);
    client.received().erase(0, line + 2 + size + 2);
    if (size == 0) return;
  }
}

}  // namespace

HttpAnswer read_answer(RawClient& client, bool head_only) {
  HttpAnswer out;
  if (!client.read_until("\r\n\r\n")) return out;
  const size_t end = client.received().find("\r\n\r\n") + 4;
  out.head = client.received().substr(0, end);
  client.received().erase(0, end);
  out.status = std::stoi(out.head.substr(9, 3));
  if (head_only || out.status == 204 || out.status == 100) return out;
  if (out.head.find("Transfer-Encoding: chunked") != std::string::npos) {
    read_chunks(client, &out.body);
  } else if (const size_t at = out.head.find("Content-Length: "); at != std::string::npos) {
    const size_t size = std::stoul(out.head.substr(at + 16));
    if (!need(client, size)) return out;
    out.body = client.received().substr(0, size);
    client.received().erase(0, size);
  } else {
    while (client.read_some()) {
    }
    out.body = std::exchange(client.received(), {});
  }
  return out;
}

std::string http_request(std::string_view method, std::string_view path, std::string_view body,
                         std::string_view headers) {
  std::string out = str_cat(method, " ", path, " HTTP/1.1\r\nHost: test\r\n", headers);
  if (!body.empty()) out += str_cat("Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n");
  return str_cat(out, "\r\n", body);
}

HttpAnswer call(int port, std::string_view method, std::string_view path, std::string_view body,
                std::string_view headers) {
  RawClient client(port);
  client.send(http_request(method, path, body, headers));
  return read_answer(client, method == "HEAD");
}

bool eventually(const std::function<bool()>& condition) {
  const int64_t end_ns = real_clock().now_ns() + 20'000'000'000;
  while (real_clock().now_ns() < end_ns) {
    if (condition()) return true;
    usleep(2'000);
  }
  return condition();
}

TestServer::TestServer(Options options) {
  const std::string dir = MOESAIC_SOURCE_DIR "/models/tiny-deepseek-v3";
  tokenizer = options.tokenizer ? std::move(options.tokenizer) : *Tokenizer::load(dir);
  chat_template = *ChatTemplate::load(dir);
  EngineOptions engine_options;
  engine_options.context_length = options.context_length;
  engine_options.vocab_size = tokenizer->size();
  engine_options.eos_token_ids = {tokenizer->eos_id()};
  engine_options.num_kv_blocks = options.num_kv_blocks;
  engine_options.queue_timeout_ms = options.queue_timeout_ms;
  engine_options.kv_block_tokens = 16;
  engine_options.max_running_requests = options.max_running_requests;
  engine_options.max_queued_requests = options.max_queued_requests;
  if (!options.script.empty()) engine_options.hooks.script = tokenizer->encode(options.script);
  engine_options.hooks.faults = options.faults;
  engine_options.max_draft_depth = options.max_draft_depth;
  engine_options.adaptive_draft_depth = false;
  auto executor = std::make_unique<FakeExecutor>(engine_options);
  if (options.max_draft_depth > 0) {
    executor->enable_drafts(options.max_draft_depth, options.script.empty() ? 0.7 : 1.0);
  }
  engine = std::make_unique<Engine>(engine_options, std::move(executor), tokenizer.get(), real_clock());
  options.http.port = 0;
  auto bound = HttpServer::bind(options.http);
  MOESAIC_CHECK(bound.ok());
  server = *std::move(bound);
  if (options.start) start();
}

void TestServer::start() {
  server->start({.name = "tiny",
                 .root = "models/tiny",
                 .engine = engine.get(),
                 .tokenizer = tokenizer.get(),
                 .chat_template = chat_template.get(),
                 .tool_format = OutputParser::detect_tool_format(chat_template->source()),
                 .defaults = {.temperature = 0.0f}});
}

HttpAnswer TestServer::chat(std::string_view fields) const {
  return call(port(), "POST", "/v1/chat/completions",
              str_cat(R"({"messages":[{"role":"user","content":"hi"}],)", fields, "}"));
}

HttpAnswer TestServer::completion(std::string_view fields) const {
  return call(port(), "POST", "/v1/completions", str_cat("{", fields, "}"));
}

}  // namespace moesaic
