// How failures look to an OpenAI client: {"error":{"message","type","param","code"}}, and the one table from Status to
// HTTP. A Status made by invalid_param names the field in a payload.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace moesaic {

// INVALID_ARGUMENT about one field; `code` is OpenAI's machine-readable code, may be empty.
absl::Status invalid_param(std::string_view param, std::string_view message, std::string_view code = "");
// NOT_FOUND with code model_not_found.
absl::Status unknown_model(std::string_view asked, std::string_view served);

int http_status(const absl::Status& status);
// The body of an error answer.
std::string error_json(const absl::Status& status);
// For errors below the API (401, 404, 405, 413 ...), which are no Status.
std::string error_json(int http_status, std::string_view message, std::string_view param = "",
                       std::string_view code = "");
// "Not Found" ...
std::string_view reason_phrase(int http_status);

}  // namespace moesaic
