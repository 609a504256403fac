#include "cli/load_record.h"

#include <nlohmann/json.hpp>

#include "base/strings.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxMessage = 300;

const Json* find(const Json& json, const char* name) {
  if (!json.is_object()) return nullptr;
  const auto found = json.find(name);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

bool has_text(const Json& json, const char* name) {
  const Json* found = find(json, name);
  return found != nullptr && found->is_string() && !found->get_ref<const std::string&>().empty();
}

bool ends(const Json& chunk) {
  const Json* choices = find(chunk, "choices");
  return choices != nullptr && choices->is_array() && !choices->empty() &&
         find(choices->front(), "finish_reason") != nullptr;
}

// Output, as opposed to a role, a finish reason alone or a usage report. A text completion's piece without text is a
// token too (its text is held back) unless it only ends the stream.
bool is_output(const Json& chunk) {
  const Json* choices = find(chunk, "choices");
  if (choices == nullptr || !choices->is_array() || choices->empty()) return false;
  const Json& choice = choices->front();
  if (const Json* delta = find(choice, "delta")) {
    return has_text(*delta, "content") || has_text(*delta, "reasoning_content") || has_text(*delta, "reasoning") ||
           find(*delta, "tool_calls") != nullptr;
  }
  return has_text(choice, "text") || find(choice, "finish_reason") == nullptr;
}

int64_t count_of(const Json& usage, const char* name) {
  const Json* found = find(usage, name);
  return found != nullptr && found->is_number_integer() ? found->get<int64_t>() : 0;
}

std::string error_text(const Json& json) {
  const Json* error = find(json, "error");
  const Json* message = error != nullptr ? find(*error, "message") : find(json, "message");
  if (message != nullptr && message->is_string()) return message->get<std::string>();
  if (error != nullptr) return error->dump(-1, ' ', false, Json::error_handler_t::replace);
  return "";
}

}  // namespace

void StreamRecorder::fail(std::string kind, std::string message) {
  if (!record_.ok()) return;  // the first counts
  record_.error_kind = std::move(kind);
  record_.error_message = message.substr(0, kMaxMessage);
}

void StreamRecorder::on_event(std::string_view data, int64_t now_ns) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const Json chunk = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!chunk.is_object()) return fail("stream", str_cat("not JSON: ", data));
  if (find(chunk, "error") != nullptr) return fail("stream", error_text(chunk));
  // Where no token has text of its own, the end is the first thing to see.
  if (is_output(chunk) || (record_.first_ns == 0 && ends(chunk))) {
    if (record_.first_ns == 0) {
      record_.first_ns = now_ns;
    } else {
      record_.gaps_ns.push_back(now_ns - record_.last_ns);
    }
    record_.last_ns = now_ns;
  }
  if (const Json* usage = find(chunk, "usage")) {
    record_.has_usage = true;
    record_.prompt_tokens = count_of(*usage, "prompt_tokens");
    record_.output_tokens = count_of(*usage, "completion_tokens");
    if (const Json* details = find(*usage, "prompt_tokens_details")) {
      record_.cached_tokens = count_of(*details, "cached_tokens");
    }
  }
}

void StreamRecorder::on_end(const absl::Status& transport, int http_status, std::string_view body) {
  if (!transport.ok()) {
    fail(transport.code() == absl::StatusCode::kDeadlineExceeded ? "timeout" : "connection",
         str_cat(transport.message()));
  } else if (http_status != 200) {
    const std::string text = error_text(Json::parse(body, nullptr, /*allow_exceptions=*/false));
    fail(str_cat("http ", http_status), text.empty() ? std::string(body) : text);
  } else if (!done_) {
    fail("incomplete", record_.first_ns == 0 ? "the answer is no event stream" : "the stream ended without [DONE]");
  } else if (record_.first_ns == 0) {
    fail("empty", "the stream had no output");
  }
  if (!record_.has_usage && record_.first_ns != 0) {
    record_.output_tokens = static_cast<int64_t>(record_.gaps_ns.size()) + 1;
  }
}

}  // namespace moesaic
