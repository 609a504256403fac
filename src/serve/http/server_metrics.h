// ServerMetrics: the families that /metrics shows, under SGLang's and vLLM's names, and RequestTimer, which turns one
// request's outputs into latencies. Cells are atomic; a timer belongs to the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/metrics.h"
#include "engine/engine.h"

namespace moesaic {

class ServerMetrics {
 public:
  explicit ServerMetrics(const std::string& model_name);
  // Prometheus text; the engine's numbers are read now.
  std::string text(const Engine& engine);

 private:
  friend class RequestTimer;
  MetricsRegistry registry_;
  Gauge& running_;
  Gauge& queued_;
  Gauge& kv_usage_;
  Gauge& kv_tokens_used_;
  Gauge& kv_tokens_total_;
  std::array<Gauge*, 4> kv_blocks_{};  // total, free, used, cached
  Counter& prompt_tokens_;
  Counter& generation_tokens_;
  Counter& cached_tokens_;
  Counter& preemptions_;
  Counter& steps_;
  Counter& requests_;
  Counter& aborted_;
  std::array<Counter*, 4> finished_{};  // stop, length, abort, error
  Histogram& ttft_;
  Histogram& itl_;
  Histogram& tpot_;
  Histogram& e2e_;
  Histogram& request_prompt_tokens_;
  Histogram& request_generation_tokens_;
};

class RequestTimer {
 public:
  RequestTimer(ServerMetrics* metrics, int64_t arrival_ns) : metrics_(metrics), arrival_ns_(arrival_ns) {}
  // Every output in order.
  void observe(const RequestOutput& output, int64_t now_ns);

 private:
  ServerMetrics* metrics_;
  int64_t arrival_ns_;
  int64_t first_ns_ = 0;
  int64_t last_ns_ = 0;
};

}  // namespace moesaic
