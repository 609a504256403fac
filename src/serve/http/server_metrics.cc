#include "serve/http/server_metrics.h"

namespace moesaic {
namespace {

using Names = std::vector<std::string>;

// vLLM's buckets, so that dashboards compare.
std::vector<double> ttft_buckets() {
  return {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25, 0.5,  0.75,
          1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160., 640., 2560.};
}
std::vector<double> token_time_buckets() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,
          0.4,   0.5,    0.75,  1.0,  2.5,   5.0,  7.5,   10., 20.,  40.0, 80.0};
}
std::vector<double> request_time_buckets() {
  return {0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10., 15., 20., 30., 40., 50., 60., 120., 240., 960.};
}
std::vector<double> token_count_buckets() {
  return {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

}  // namespace

ServerMetrics::ServerMetrics(const std::string& model_name)
    : registry_(MetricLabels{{"model_name", model_name}, {"engine", "0"}}),
      running_(registry_.gauge(Names{"sglang:num_running_reqs", "vllm:num_requests_running"}, "Requests that run.")),
      queued_(registry_.gauge(Names{"sglang:num_queue_reqs", "vllm:num_requests_waiting"}, "Requests that wait.")),
      kv_usage_(registry_.gauge(Names{"sglang:token_usage", "vllm:kv_cache_usage_perc"},
                                "Share of the KV blocks in use, 0 to 1.")),
      kv_tokens_used_(registry_.gauge(Names{"sglang:num_used_tokens"}, "KV tokens in use, in whole blocks.")),
      kv_tokens_total_(registry_.gauge(Names{"sglang:max_total_num_tokens"}, "KV tokens that the pool holds.")),
      prompt_tokens_(registry_.counter(Names{"sglang:prompt_tokens_total", "vllm:prompt_tokens_total"},
                                       "Prompt tokens processed.")),
      generation_tokens_(registry_.counter(Names{"sglang:generation_tokens_total", "vllm:generation_tokens_total"},
                                           "Tokens generated.")),
      cached_tokens_(
          registry_.counter(Names{"sglang:cached_tokens_total"}, "Prompt tokens found in the prefix cache.")),
      preemptions_(registry_.counter(Names{"vllm:num_preemptions_total"}, "Requests preempted.")),
      steps_(registry_.counter(Names{"moesaic:steps_total"}, "Steps run.")),
      requests_(registry_.counter(Names{"sglang:num_requests_total"}, "Requests ended.")),
      aborted_(registry_.counter(Names{"sglang:num_aborted_requests_total"}, "Requests aborted.")),
      ttft_(registry_.histogram(Names{"sglang:time_to_first_token_seconds", "vllm:time_to_first_token_seconds"},
                                "Time to the first token.", ttft_buckets())),
      itl_(registry_.histogram(Names{"sglang:inter_token_latency_seconds", "vllm:inter_token_latency_seconds"},
                               "Time between tokens.", token_time_buckets())),
      tpot_(registry_.histogram(
          Names{"sglang:time_per_output_token_seconds", "vllm:request_time_per_output_token_seconds"},
          "Mean time per token after the first, one value a request.", token_time_buckets())),
      e2e_(registry_.histogram(Names{"sglang:e2e_request_latency_seconds", "vllm:e2e_request_latency_seconds"},
                               "Time from arrival to the end.", request_time_buckets())),
      request_prompt_tokens_(registry_.histogram(Names{"vllm:request_prompt_tokens"}, "Prompt tokens of a request.",
                                                 token_count_buckets())),
      request_generation_tokens_(registry_.histogram(Names{"vllm:request_generation_tokens"},
                                                     "Tokens generated for a request.", token_count_buckets())) {
  static constexpr const char* kStates[] = {"total", "free", "used", "cached"};
  for (size_t i = 0; i < kv_blocks_.size(); ++i) {
    kv_blocks_[i] = &registry_.gauge(Names{"moesaic:kv_blocks"}, "KV blocks by state.", {{"state", kStates[i]}});
  }
  static constexpr const char* kReasons[] = {"stop", "length", "abort", "error"};
  for (size_t i = 0; i < finished_.size(); ++i) {
    finished_[i] = &registry_.counter(Names{"vllm:request_success_total", "moesaic:requests_finished_total"},
                                      "Requests ended, by reason.", {{"finished_reason", kReasons[i]}});
  }
}

std::string ServerMetrics::text(const Engine& engine) {
  const EngineStats stats = engine.stats();
  const int block_tokens = engine.options().kv_block_tokens;
  running_.set(stats.num_running);
  queued_.set(stats.num_queued);
  kv_usage_.set(stats.kv_blocks_total > 0 ? static_cast<double>(stats.kv_blocks_used) / stats.kv_blocks_total : 0.0);
  kv_tokens_used_.set(static_cast<double>(stats.kv_blocks_used) * block_tokens);
  kv_tokens_total_.set(static_cast<double>(stats.kv_blocks_total) * block_tokens);
  const int blocks[] = {stats.kv_blocks_total, stats.kv_blocks_free, stats.kv_blocks_used, stats.kv_blocks_cached};
  for (size_t i = 0; i < kv_blocks_.size(); ++i) kv_blocks_[i]->set(blocks[i]);
  prompt_tokens_.advance_to(stats.prompt_tokens_total);
  generation_tokens_.advance_to(stats.output_tokens_total);
  preemptions_.advance_to(stats.preemptions_total);
  steps_.advance_to(stats.steps_total);
  return registry_.text();
}

void RequestTimer::observe(const RequestOutput& output, int64_t now_ns) {
  ServerMetrics& metrics = *metrics_;
  const auto num_tokens = static_cast<int64_t>(output.token_ids.size());
  if (num_tokens > 0 && first_ns_ == 0) {
    first_ns_ = now_ns;
    metrics.ttft_.observe(seconds(now_ns - arrival_ns_));
  } else if (num_tokens > 0) {
    metrics.itl_.observe(seconds(now_ns - last_ns_) / static_cast<double>(num_tokens), num_tokens);
  }
  if (num_tokens > 0) last_ns_ = now_ns;
  if (output.finish_reason == FinishReason::kNone) return;
  metrics.requests_.add();
  if (output.finish_reason == FinishReason::kAbort) metrics.aborted_.add();
  metrics.finished_[static_cast<size_t>(output.finish_reason) - 1]->add();
  metrics.cached_tokens_.add(output.num_cached_tokens);
  metrics.request_prompt_tokens_.observe(output.num_prompt_tokens);
  metrics.request_generation_tokens_.observe(output.num_output_tokens);
  metrics.e2e_.observe(seconds(now_ns - arrival_ns_));
  if (output.num_output_tokens > 1 && first_ns_ != 0) {
    metrics.tpot_.observe(seconds(last_ns_ - first_ns_) / (output.num_output_tokens - 1));
  }
}

}  // namespace moesaic
