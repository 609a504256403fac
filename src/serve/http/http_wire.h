// HTTP answers and their bytes. Pure functions, no sockets.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace moesaic {

struct ApiReply {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::string extra_headers;  // whole lines
};

ApiReply error_reply(const absl::Status& status);
ApiReply error_reply(int http_status, std::string_view message);

struct WireOptions {
  bool keep_alive = true;
  bool head_only = false;  // HEAD
};

// A whole answer.
std::string format_reply(const ApiReply& reply, WireOptions options);
// The head of an event stream. `chunked`: HTTP/1.1; else the body ends with the connection.
std::string format_stream_head(bool chunked, bool keep_alive);
// One chunk of a chunked body; an empty one ends it.
void append_chunk(std::string_view body, std::string* out);

}  // namespace moesaic
