// Routing: which endpoint a path names, and whether a request may reach it: path, method, API key. Pure functions, no
// sockets; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "serve/http/http_wire.h"

namespace moesaic {

inline constexpr std::string_view kModelPrefix = "/v1/models/";

enum class Endpoint : uint8_t {
  kChat,  // jobs: make_job()
  kCompletion,
  kHealthGenerate,
  kTokenize,  // may take long: answer() on a worker thread
  kDetokenize,
  kStartProfile,
  kStopProfile,
  kModels,  // quick: answer() anywhere
  kModel,
  kHealth,
  kMetrics,
  kVersion,
  kIndex,
};

inline bool is_job(Endpoint endpoint) {
  return endpoint <= Endpoint::kHealthGenerate;
}
inline bool is_slow(Endpoint endpoint) {
  return endpoint <= Endpoint::kStopProfile;
}

struct RouteMatch {
  Endpoint endpoint = Endpoint::kIndex;
  bool found = false;
  std::string_view methods;  // of the path, "GET, HEAD" or "POST"
};

// "/path" of "/path?query" and of "http://host/path?query".
std::string_view path_of(std::string_view target);
// "%2F" becomes "/"; what is no escape stays.
std::string decode_percent(std::string_view path);
// `path` without query, decoded.
RouteMatch match_route(std::string_view path);

// What decides about a request before its body is read.
struct RequestHead {
  std::string_view method;
  std::string_view path;           // without query, decoded
  std::string_view authorization;  // the header, or ""
};

// The answer to a request that must not reach its endpoint (also the one to OPTIONS); nothing if it may. An empty
// `api_key` lets everybody in.
std::optional<ApiReply> refusal(const RequestHead& head, const RouteMatch& route, std::string_view api_key);
// `header` is "Bearer KEY". Time does not depend on where the keys differ.
bool is_authorized(std::string_view header, std::string_view api_key);

}  // namespace moesaic
