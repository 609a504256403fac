// Api: the endpoints without the sockets. Answers the simple ones and prepares jobs for the ones that generate. start()
// and set_draining() may run while others are called; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "serve/http/completion_job.h"
#include "serve/http/routing.h"
#include "serve/http/served_model.h"
#include "serve/http/server_metrics.h"

namespace moesaic {

class Api {
 public:
  Api(const Clock& clock, size_t max_stream_buffer_bytes)
      : clock_(clock), max_stream_buffer_bytes_(max_stream_buffer_bytes) {}

  void start(ServedModel model);
  void set_draining() { draining_.store(true); }
  bool draining() const { return draining_.load(); }

  ApiReply answer(Endpoint endpoint, std::string_view path, std::string_view body) const;
  // Parses, renders, tokenises and submits. On error nothing runs.
  absl::StatusOr<std::unique_ptr<CompletionJob>> make_job(Endpoint endpoint, std::string_view body, int64_t arrival_ns,
                                                          std::function<void()> wake);

 private:
  struct Loaded {
    ServedModel model;
    std::shared_ptr<ServerMetrics> metrics;
    int64_t created = 0;
  };
  std::shared_ptr<const Loaded> loaded() const;
  ApiReply health() const;
  ApiReply models(const Loaded& loaded) const;
  ApiReply model(const Loaded& loaded, std::string_view path) const;
  ApiReply profile(Endpoint endpoint, const Loaded& loaded) const;

  const Clock& clock_;
  const size_t max_stream_buffer_bytes_;
  std::atomic<bool> draining_{false};
  std::atomic<RequestId> next_request_id_{1};
  mutable std::mutex mutex_;
  std::shared_ptr<const Loaded> loaded_;
};

// /tokenize and /detokenize in the shapes of vLLM and SGLang (token_api.cc).
absl::StatusOr<std::string> tokenize_json(std::string_view body, const ServedModel& model);
absl::StatusOr<std::string> detokenize_json(std::string_view body, const ServedModel& model);

}  // namespace moesaic
