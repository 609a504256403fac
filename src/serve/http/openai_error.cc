#include "serve/http/openai_error.h"

#include "absl/strings/cord.h"
#include "sched/request.h"
#include "serve/http/json.h"

namespace moesaic {
namespace {

constexpr char kParamUrl[] = "moesaic/param";
constexpr char kCodeUrl[] = "moesaic/code";

std::string payload(const absl::Status& status, const char* url) {
  const auto value = status.GetPayload(url);
  return value.has_value() ? std::string(*value) : std::string();
}

std::string_view error_type(int http_status) {
  switch (http_status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return http_status < 500 ? "invalid_request_error" : "server_error";
  }
}

}  // namespace

absl::Status invalid_param(std::string_view param, std::string_view message, std::string_view code) {
  absl::Status status = absl::InvalidArgumentError(str_cat(param, " ", message));
  status.SetPayload(kParamUrl, absl::Cord(std::string(param)));
  if (!code.empty()) status.SetPayload(kCodeUrl, absl::Cord(std::string(code)));
  return status;
}

absl::Status unknown_model(std::string_view asked, std::string_view served) {
  absl::Status status = absl::NotFoundError(str_cat("the model ", json_string(asked.substr(0, 256)),
                                                    " does not exist; this server serves ", json_string(served),
                                                    " (--served-model-name)"));
  status.SetPayload(kParamUrl, absl::Cord("model"));
  status.SetPayload(kCodeUrl, absl::Cord("model_not_found"));
  return status;
}

int http_status(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kFailedPrecondition:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return status.GetPayload(kNeverStartedPayload).has_value() ? 408 : 504;
    default:
      return 500;
  }
}

std::string error_json(const absl::Status& status) {
  const auto message = status.message();
  return error_json(http_status(status), std::string_view(message.data(), message.size()), payload(status, kParamUrl),
                    payload(status, kCodeUrl));
}

std::string error_json(int http_status, std::string_view message, std::string_view param, std::string_view code) {
  std::string out =
      str_cat("{\"error\":{\"message\":", json_string(message), ",\"type\":", json_string(error_type(http_status)),
              ",\"param\":", param.empty() ? "null" : json_string(param), ",\"code\":");
  // OpenAI's codes are strings; where there is none, the HTTP status stands in, as in vLLM and SGLang.
  out += code.empty() ? str_cat(http_status) : json_string(code);
  out += "}}";
  return out;
}

std::string_view reason_phrase(int http_status) {
  switch (http_status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 413:
      return "Content Too Large";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return "Internal Server Error";
  }
}

}  // namespace moesaic
