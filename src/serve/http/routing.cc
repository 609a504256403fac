#include "serve/http/routing.h"

#include <charconv>

namespace moesaic {
namespace {

struct Entry {
  std::string_view path;
  Endpoint endpoint;
};

constexpr Entry kEntries[] = {
    {"/v1/chat/completions", Endpoint::kChat},
    {"/v1/completions", Endpoint::kCompletion},
    {"/health_generate", Endpoint::kHealthGenerate},
    {"/tokenize", Endpoint::kTokenize},
    {"/v1/tokenize", Endpoint::kTokenize},
    {"/detokenize", Endpoint::kDetokenize},
    {"/v1/detokenize", Endpoint::kDetokenize},
    {"/start_profile", Endpoint::kStartProfile},
    {"/stop_profile", Endpoint::kStopProfile},
    {"/v1/models", Endpoint::kModels},
    {"/health", Endpoint::kHealth},
    {"/ping", Endpoint::kHealth},
    {"/metrics", Endpoint::kMetrics},
    {"/version", Endpoint::kVersion},
    {"/", Endpoint::kIndex},
};

bool is_post(Endpoint endpoint) {
  return is_slow(endpoint) && endpoint != Endpoint::kHealthGenerate;
}

}  // namespace

std::string_view path_of(std::string_view target) {
  if (const size_t scheme = target.find("://"); scheme != target.npos && target.front() != '/') {
    const size_t path = target.find('/', scheme + 3);  // the form that proxies are asked in
    target = path == target.npos ? "/" : target.substr(path);
  }
  return target.substr(0, target.find_first_of("?#"));
}

std::string decode_percent(std::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    unsigned value = 0;
    const char* digits = path.data() + i + 1;
    if (path[i] == '%' && i + 2 < path.size() && std::from_chars(digits, digits + 2, value, 16).ptr == digits + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += path[i];
    }
  }
  return out;
}

RouteMatch match_route(std::string_view path) {
  for (const Entry& entry : kEntries) {
    if (entry.path == path) return {entry.endpoint, true, is_post(entry.endpoint) ? "POST" : "GET, HEAD"};
  }
  if (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size()) {
    return {Endpoint::kModel, true, "GET, HEAD"};
  }
  return {};
}

bool is_authorized(std::string_view header, std::string_view api_key) {
  constexpr std::string_view kScheme = "bearer ";
  if (header.size() < kScheme.size()) return false;
  for (size_t i = 0; i < kScheme.size(); ++i) {
    if ((header[i] | 0x20) != (kScheme[i] | 0x20)) return false;
  }
  const std::string_view given = header.substr(kScheme.size());
  unsigned difference = given.size() != api_key.size();
  for (size_t i = 0; i < api_key.size(); ++i) {
    difference |= static_cast<unsigned char>(api_key[i]) ^ static_cast<unsigned char>(i < given.size() ? given[i] : 0);
  }
  return difference == 0;
}

std::optional<ApiReply> refusal(const RequestHead& head, const RouteMatch& route, std::string_view api_key) {
  if (head.method == "OPTIONS") {
    return ApiReply{.status = 204,
                    .extra_headers =
                        "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\n"
                        "Access-Control-Allow-Headers: Authorization, Content-Type\r\n"
                        "Access-Control-Max-Age: 86400\r\n"};
  }
  const bool open = api_key.empty() || (route.found && route.endpoint == Endpoint::kHealth);
  if (!open && !is_authorized(head.authorization, api_key)) {
    ApiReply reply = error_reply(401, "a valid API key is needed: Authorization: Bearer KEY (--api-key)");
    reply.extra_headers = "WWW-Authenticate: Bearer\r\n";
    return reply;
  }
  if (!route.found) return error_reply(404, str_cat("no such path: ", head.path.substr(0, 256)));
  const bool reads = head.method == "GET" || head.method == "HEAD";
  if (route.methods == "POST" ? head.method == "POST" : reads) return std::nullopt;
  ApiReply reply = error_reply(405, str_cat("this path takes ", route.methods));
  reply.extra_headers = str_cat("Allow: ", route.methods, "\r\n");
  return reply;
}

}  // namespace moesaic
