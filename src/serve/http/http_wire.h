// The bytes of HTTP answers, and the small readings of request heads. Pure functions, free of Beast.
#pragma once

#include <string>
#include <string_view>

#include "serve/http/api.h"

namespace moesaic {

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

// "/path" of "/path?query".
std::string_view path_of(std::string_view target);
// "%2F" becomes "/"; what is no escape stays.
std::string decode_percent(std::string_view path);
// `header` is "Bearer KEY". Time does not depend on where the keys differ.
bool is_authorized(std::string_view header, std::string_view api_key);

}  // namespace moesaic
