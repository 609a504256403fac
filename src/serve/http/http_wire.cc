#include "serve/http/http_wire.h"

#include "serve/http/openai_error.h"

namespace moesaic {
namespace {

constexpr std::string_view kCors = "Access-Control-Allow-Origin: *\r\n";

std::string_view connection_line(bool keep_alive) {
  return keep_alive ? "Connection: keep-alive\r\n" : "Connection: close\r\n";
}

}  // namespace

ApiReply error_reply(const absl::Status& status) {
  return {.status = http_status(status), .body = error_json(status)};
}

ApiReply error_reply(int http_status, std::string_view message) {
  return {.status = http_status, .body = error_json(http_status, message)};
}

std::string format_reply(const ApiReply& reply, WireOptions options) {
  std::string out = str_cat("HTTP/1.1 ", reply.status, " ", reason_phrase(reply.status), "\r\n");
  if (reply.status != 204) {
    out += str_cat("Content-Type: ", reply.content_type, "\r\nContent-Length: ", reply.body.size(), "\r\n");
  }
  // Overload passes; official clients wait as long as this says and try again.
  if (reply.status == 429 || reply.status == 503) out += "Retry-After: 1\r\n";
  out += str_cat(kCors, reply.extra_headers, connection_line(options.keep_alive), "\r\n");
  if (!options.head_only && reply.status != 204) out += reply.body;
  return out;
}

std::string format_stream_head(bool chunked, bool keep_alive) {
  return str_cat(
      "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
      "X-Accel-Buffering: no\r\n",  // proxies pass tokens on at once
      kCors, chunked ? "Transfer-Encoding: chunked\r\n" : "", connection_line(keep_alive), "\r\n");
}

void append_chunk(std::string_view body, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string size;
  for (size_t rest = body.size(); rest > 0; rest >>= 4) size.insert(size.begin(), kHex[rest & 15]);
  *out += str_cat(size.empty() ? "0" : size, "\r\n", body, "\r\n");
}

}  // namespace moesaic
