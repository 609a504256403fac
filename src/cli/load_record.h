// RequestRecord: what the client saw of one request. StreamRecorder fills it from the events of an OpenAI stream. Pure;
// one thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace moesaic {

struct RequestRecord {
  int64_t start_ns = 0;          // about to connect
  int64_t first_ns = 0;          // the first token came
  int64_t last_ns = 0;           // the last one
  std::vector<int64_t> gaps_ns;  // between pieces of output; a piece may hold several tokens
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  int64_t cached_tokens = 0;
  bool has_usage = false;     // otherwise the counts are pieces
  std::string error_kind;     // empty: it came whole. "http 429", "connection", "timeout", "stream", "incomplete"
  std::string error_message;  // what the server or the transport said

  bool ok() const { return error_kind.empty(); }
};

class StreamRecorder {
 public:
  void on_start(int64_t now_ns) { record_.start_ns = now_ns; }
  // The data of one event.
  void on_event(std::string_view data, int64_t now_ns);
  // The exchange is over: `transport` as in HttpResult, the HTTP status, the body where it was no stream.
  void on_end(const absl::Status& transport, int http_status, std::string_view body);
  const RequestRecord& record() const { return record_; }

 private:
  void fail(std::string kind, std::string message);

  RequestRecord record_;
  bool done_ = false;  // [DONE] came
};

}  // namespace moesaic
