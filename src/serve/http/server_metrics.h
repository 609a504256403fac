// ServerMetrics: the families that /metrics shows, under SGLang's and vLLM's names with their labels and buckets, and
// RequestTimer, which turns one request's outputs into latencies. All times are the engine's (RequestTimes): what a
// slow client or a full socket adds is not in them. Cells are atomic; a timer belongs to the engine thread.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <string>

#include "base/metrics.h"
#include "engine/engine.h"

namespace moesaic {

class ServerMetrics {
 public:
  ServerMetrics(const std::string& model_name, const EngineOptions& engine);
  // Prometheus text, with the engine's state as given. Any thread.
  std::string text(const EngineStats& stats, int64_t now_ns);

 private:
  friend class RequestTimer;
  void register_engine_state(const EngineOptions& engine);
  void register_requests();
  void register_latencies();
  void show_speculation(const SpeculationStats& stats);

  MetricsRegistry registry_;
  const int block_tokens_;

  // State of the engine, filled by text().
  Gauge* running_ = nullptr;
  Gauge* queued_ = nullptr;
  Gauge* kv_usage_ = nullptr;
  Gauge* kv_tokens_used_ = nullptr;
  Gauge* kv_tokens_free_ = nullptr;
  Gauge* kv_tokens_cached_ = nullptr;
  Gauge* kv_tokens_total_ = nullptr;
  std::array<Gauge*, 4> kv_blocks_{};  // total, free, used, cached
  Gauge* gen_throughput_ = nullptr;
  Gauge* cache_hit_rate_ = nullptr;
  Counter* preemptions_ = nullptr;
  Counter* steps_ = nullptr;

  // Filled by the timers.
  Counter* prompt_tokens_ = nullptr;
  Counter* generation_tokens_ = nullptr;
  Counter* cached_tokens_ = nullptr;
  Counter* prefix_queries_ = nullptr;  // tokens
  RateWindow generated_;
  RateWindow looked_up_;
  RateWindow found_;
  Counter* requests_ = nullptr;
  Counter* aborted_ = nullptr;
  std::array<Counter*, 4> finished_{};  // stop, length, abort, error
  Histogram* request_prompt_tokens_ = nullptr;
  Histogram* request_generation_tokens_ = nullptr;
  Histogram* request_max_tokens_ = nullptr;

  // The two systems' buckets differ, so that most latencies are two families.
  struct Latency {
    Histogram* sglang = nullptr;
    Histogram* vllm = nullptr;
    void observe(int64_t ns) const;
  };
  Latency ttft_;
  Latency itl_;
  Latency e2e_;
  Latency queue_;
  Latency tpot_;
  Histogram* prefill_ = nullptr;
  Histogram* decode_ = nullptr;
  Histogram* inference_ = nullptr;

  // Null until there is speculation: dashboards take zeros for a broken drafter.
  struct Speculation {
    Counter* drafts = nullptr;
    Counter* draft_tokens = nullptr;
    Counter* accepted_tokens = nullptr;
    Gauge* accept_length = nullptr;
    Gauge* accept_rate = nullptr;
  };
  Speculation speculation_;
  std::mutex scrape_mutex_;  // one scrape at a time: it may add families
};

class RequestTimer {
 public:
  RequestTimer(ServerMetrics* metrics, int32_t max_tokens) : metrics_(metrics), max_tokens_(max_tokens) {}
  // Every output in order.
  void observe(const RequestOutput& output);

 private:
  void observe_tokens(const RequestOutput& output, int64_t num_tokens);
  void observe_end(const RequestOutput& output);

  ServerMetrics* metrics_;
  int32_t max_tokens_;
  bool admitted_ = false;
  bool prompt_done_ = false;
  int64_t last_token_ns_ = 0;
};

}  // namespace moesaic
