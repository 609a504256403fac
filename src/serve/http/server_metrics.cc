#include "serve/http/server_metrics.h"

#include "base/strings.h"

namespace moesaic {
namespace {

using Names = std::vector<std::string>;
using Bounds = std::vector<double>;

// The defaults of the two systems, so that figures and quantiles compare (python/sglang/srt/metrics/collector.py,
// vllm/v1/metrics/loggers.py).
const Bounds kSglangTtft = {0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400};
const Bounds kSglangTokenTime = {0.002, 0.004, 0.006, 0.008, 0.010, 0.015, 0.020, 0.025, 0.030, 0.035, 0.040, 0.060,
                                 0.080, 0.100, 0.200, 0.400, 0.600, 0.800, 1,     2,     4,     6,     8};
const Bounds kSglangRequestTime = {0.1, 0.2, 0.4, 0.6, 0.8, 1,   2,   4,   6,    8,    10,
                                   20,  40,  60,  80,  100, 200, 400, 600, 1200, 1800, 2400};
const Bounds kSglangQueueTime = {0,   0.001, 0.005, 0.01, 0.05, 0.1,  0.2,  0.5,  1,    2,    3,    4,   5,   10,
                                 15,  20,    30,    40,   50,   60,   70,   80,   90,   100,  200,  300, 400, 500,
                                 600, 700,   800,   900,  1000, 1200, 1400, 1600, 1800, 2000, 2500, 3000};
const Bounds kVllmTtft = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                          1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const Bounds kVllmTokenTime = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                               0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80};
const Bounds kVllmRequestTime = {0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                 30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680};

// 1, 2, 5, 10, ... up to max, as vLLM has it for the model's context.
Bounds token_bounds(int64_t max) {
  Bounds bounds;
  for (int64_t power = 1; power <= max; power *= 10) {
    for (const int64_t digit : {1, 2, 5}) {
      if (digit * power <= max) bounds.push_back(static_cast<double>(digit * power));
    }
  }
  return bounds;
}

double seconds(int64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

double ratio(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

}  // namespace

ServerMetrics::ServerMetrics(const std::string& model_name, const EngineOptions& engine)
    : registry_({{.name_begin = "", .labels = {{"model_name", model_name}}},
                 {.name_begin = "sglang:", .labels = {{"engine_type", "unified"}, {"tp_rank", "0"}, {"pp_rank", "0"}}},
                 {.name_begin = "vllm:", .labels = {{"engine", "0"}}}}),
      block_tokens_(engine.kv_block_tokens) {
  register_engine_state(engine);
  register_requests();
  register_latencies();
  const Bounds bounds = token_bounds(engine.context_length);
  request_prompt_tokens_ =
      &registry_.histogram(Names{"vllm:request_prompt_tokens"}, "Prompt tokens of a request.", bounds);
  request_generation_tokens_ =
      &registry_.histogram(Names{"vllm:request_generation_tokens", "vllm:request_max_num_generation_tokens"},
                           "Tokens generated for a request; each of n choices is one.", bounds);
  request_max_tokens_ =
      &registry_.histogram(Names{"vllm:request_params_max_tokens"}, "max_tokens of a request.", bounds);
}

void ServerMetrics::register_engine_state(const EngineOptions& engine) {
  const auto gauge = [&](Names names, std::string_view help) { return &registry_.gauge(names, help); };
  running_ = gauge({"sglang:num_running_reqs", "vllm:num_requests_running"}, "Requests that run.");
  queued_ = gauge({"sglang:num_queue_reqs", "vllm:num_requests_waiting"}, "Requests that wait.");
  kv_usage_ = gauge({"sglang:token_usage", "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
                    "Share of the KV blocks in use, 0 to 1.");
  kv_tokens_used_ = gauge({"sglang:num_used_tokens", "sglang:kv_used_tokens"}, "KV tokens in use, in whole blocks.");
  kv_tokens_free_ = gauge({"sglang:kv_available_tokens"}, "KV tokens that are free, in whole blocks.");
  kv_tokens_cached_ = gauge({"sglang:kv_evictable_tokens"}, "KV tokens of reusable prefixes that nobody uses now.");
  kv_tokens_total_ = gauge({"sglang:max_total_num_tokens"}, "KV tokens that the pool holds.");
  static constexpr const char* kStates[] = {"total", "free", "used", "cached"};
  for (size_t i = 0; i < kv_blocks_.size(); ++i) {
    kv_blocks_[i] = &registry_.gauge(Names{"moesaic:kv_blocks"}, "KV blocks by state.", {{"state", kStates[i]}});
  }
  registry_
      .gauge(Names{"vllm:cache_config_info"}, "Size of the KV cache, as labels.",
             {{"block_size", str_cat(engine.kv_block_tokens)},
              {"num_gpu_blocks", str_cat(int64_t{engine.num_kv_blocks} * engine.dp_size)}})
      .set(1);
  gen_throughput_ = gauge({"sglang:gen_throughput"}, "Tokens generated a second, over the last 10 seconds.");
  cache_hit_rate_ =
      gauge({"sglang:cache_hit_rate"}, "Share of prompt tokens found in the prefix cache, over the last 10 seconds.");
  preemptions_ = &registry_.counter(Names{"vllm:num_preemptions_total"}, "Preemptions of requests.");
  steps_ = &registry_.counter(Names{"moesaic:steps_total"}, "Steps run.");
}

void ServerMetrics::register_requests() {
  const auto counter = [&](Names names, std::string_view help) { return &registry_.counter(names, help); };
  prompt_tokens_ = counter({"sglang:prompt_tokens_total", "vllm:prompt_tokens_total"},
                           "Prompt tokens of requests whose prompt was computed; recomputation does not count.");
  generation_tokens_ = counter({"sglang:generation_tokens_total", "vllm:generation_tokens_total"}, "Tokens generated.");
  cached_tokens_ = counter({"sglang:cached_tokens_total", "vllm:prefix_cache_hits_total"},
                           "Prompt tokens found in the prefix cache; what a preempted request finds again is none.");
  prefix_queries_ = counter({"vllm:prefix_cache_queries_total"}, "Prompt tokens looked up in the prefix cache.");
  requests_ = counter({"sglang:num_requests_total"}, "Requests ended.");
  aborted_ = counter({"sglang:num_aborted_requests_total"}, "Requests aborted.");
  static constexpr const char* kReasons[] = {"stop", "length", "abort", "error"};
  for (size_t i = 0; i < finished_.size(); ++i) {
    finished_[i] = &registry_.counter(Names{"vllm:request_success_total", "moesaic:requests_finished_total"},
                                      "Requests ended, by reason.", {{"finished_reason", kReasons[i]}});
  }
}

void ServerMetrics::register_latencies() {
  const auto histogram = [&](Names names, std::string_view help, const Bounds& bounds) {
    return &registry_.histogram(names, help, bounds);
  };
  const auto both = [&](const std::string& name, std::string_view help, const Bounds& sglang, const Bounds& vllm) {
    return Latency{histogram({str_cat("sglang:", name)}, help, sglang),
                   histogram({str_cat("vllm:", name)}, help, vllm)};
  };
  ttft_ = both("time_to_first_token_seconds", "From arrival to the first token.", kSglangTtft, kVllmTtft);
  constexpr std::string_view kItlHelp = "Time between tokens.";
  itl_ = {
      histogram({"sglang:inter_token_latency_seconds"}, kItlHelp, kSglangTokenTime),
      histogram({"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"}, kItlHelp, kVllmTokenTime)};
  e2e_ = both("e2e_request_latency_seconds", "From arrival to the end.", kSglangRequestTime, kVllmRequestTime);
  constexpr std::string_view kQueueHelp = "From the queue to the first step of a request.";
  queue_ = {histogram({"sglang:queue_time_seconds"}, kQueueHelp, kSglangQueueTime),
            histogram({"vllm:request_queue_time_seconds"}, kQueueHelp, kVllmRequestTime)};
  constexpr std::string_view kTpotHelp = "Mean time per token after the first, one value a request.";
  tpot_ = {histogram({"sglang:time_per_output_token_seconds"}, kTpotHelp, kSglangTokenTime),
           histogram({"vllm:request_time_per_output_token_seconds"}, kTpotHelp, kVllmTokenTime)};
  prefill_ =
      histogram({"vllm:request_prefill_time_seconds"}, "From the first step to the first token.", kVllmRequestTime);
  decode_ = histogram({"vllm:request_decode_time_seconds"}, "From the first token to the last.", kVllmRequestTime);
  inference_ =
      histogram({"vllm:request_inference_time_seconds"}, "From the first step to the last token.", kVllmRequestTime);
}

void ServerMetrics::show_speculation(const SpeculationStats& stats) {
  Speculation& show = speculation_;
  if (show.drafts == nullptr) {
    const auto counter = [&](Names names, std::string_view help) { return &registry_.counter(names, help); };
    show.drafts = counter({"vllm:spec_decode_num_drafts_total"}, "Drafts that were verified.");
    show.draft_tokens = counter({"vllm:spec_decode_num_draft_tokens_total"}, "Draft tokens that were verified.");
    show.accepted_tokens = counter({"vllm:spec_decode_num_accepted_tokens_total"}, "Draft tokens that were kept.");
    show.accept_length = &registry_.gauge(Names{"sglang:spec_accept_length"}, "Tokens a verification yields, mean.");
    show.accept_rate = &registry_.gauge(Names{"sglang:spec_accept_rate"}, "Share of the draft tokens that were kept.");
  }
  show.drafts->advance_to(stats.drafts_total);
  show.draft_tokens->advance_to(stats.draft_tokens_total);
  show.accepted_tokens->advance_to(stats.accepted_tokens_total);
  show.accept_length->set(1.0 + ratio(stats.accepted_tokens_total, stats.drafts_total));
  show.accept_rate->set(ratio(stats.accepted_tokens_total, stats.draft_tokens_total));
}

std::string ServerMetrics::text(const EngineStats& stats, int64_t now_ns) {
  running_->set(stats.num_running);
  queued_->set(stats.num_queued);
  kv_usage_->set(ratio(stats.kv_blocks_used, stats.kv_blocks_total));
  const auto tokens = [&](int blocks) { return static_cast<double>(blocks) * block_tokens_; };
  kv_tokens_used_->set(tokens(stats.kv_blocks_used));
  kv_tokens_free_->set(tokens(stats.kv_blocks_free));
  kv_tokens_cached_->set(tokens(stats.kv_blocks_cached));
  kv_tokens_total_->set(tokens(stats.kv_blocks_total));
  const int blocks[] = {stats.kv_blocks_total, stats.kv_blocks_free, stats.kv_blocks_used, stats.kv_blocks_cached};
  for (size_t i = 0; i < kv_blocks_.size(); ++i) kv_blocks_[i]->set(blocks[i]);
  gen_throughput_->set(generated_.per_second(now_ns));
  cache_hit_rate_->set(ratio(found_.sum(now_ns), looked_up_.sum(now_ns)));
  preemptions_->advance_to(stats.preemptions_total);
  steps_->advance_to(stats.steps_total);
  const std::lock_guard lock(scrape_mutex_);
  if (stats.speculation && stats.speculation->drafts_total > 0) show_speculation(*stats.speculation);
  return registry_.text();
}

void ServerMetrics::Latency::observe(int64_t ns) const {
  sglang->observe(seconds(ns));
  vllm->observe(seconds(ns));
}

void RequestTimer::observe(const RequestOutput& output) {
  ServerMetrics& metrics = *metrics_;
  const RequestTimes& times = output.times;
  if (times.admitted_ns != 0 && !admitted_) {
    admitted_ = true;
    metrics.queue_.observe(times.admitted_ns - times.queued_ns);
    metrics.prefix_queries_->add(output.num_prompt_tokens);
    metrics.cached_tokens_->add(output.num_cached_tokens);
    metrics.looked_up_.add(times.output_ns, output.num_prompt_tokens);
    metrics.found_.add(times.output_ns, output.num_cached_tokens);
  }
  if (times.prompt_done_ns != 0 && !prompt_done_) {
    prompt_done_ = true;
    metrics.prompt_tokens_->add(output.num_prompt_tokens);
  }
  if (!output.token_ids.empty()) observe_tokens(output, static_cast<int64_t>(output.token_ids.size()));
  if (output.finish_reason != FinishReason::kNone) observe_end(output);
}

void RequestTimer::observe_tokens(const RequestOutput& output, int64_t num_tokens) {
  ServerMetrics& metrics = *metrics_;
  const int64_t now_ns = output.times.output_ns;
  metrics.generation_tokens_->add(num_tokens);
  metrics.generated_.add(now_ns, num_tokens);
  if (last_token_ns_ == 0) {
    metrics.ttft_.observe(now_ns - output.times.arrival_ns);
  } else {
    // Several tokens of one step: SGLang spreads the time over them, vLLM counts the step once.
    const double gap = seconds(now_ns - last_token_ns_);
    metrics.itl_.sglang->observe(gap / static_cast<double>(num_tokens), num_tokens);
    metrics.itl_.vllm->observe(gap);
  }
  last_token_ns_ = now_ns;
}

void RequestTimer::observe_end(const RequestOutput& output) {
  ServerMetrics& metrics = *metrics_;
  const RequestTimes& times = output.times;
  metrics.requests_->add();
  if (output.finish_reason == FinishReason::kAbort) metrics.aborted_->add();
  metrics.finished_[static_cast<size_t>(output.finish_reason) - 1]->add();
  metrics.request_prompt_tokens_->observe(output.num_prompt_tokens);
  metrics.request_generation_tokens_->observe(output.num_output_tokens);
  metrics.request_max_tokens_->observe(max_tokens_);
  metrics.e2e_.observe(times.output_ns - times.arrival_ns);
  if (times.prompt_done_ns == 0 || last_token_ns_ == 0) return;
  metrics.prefill_->observe(seconds(times.prompt_done_ns - times.admitted_ns));
  metrics.decode_->observe(seconds(last_token_ns_ - times.prompt_done_ns));
  metrics.inference_->observe(seconds(last_token_ns_ - times.admitted_ns));
  if (output.num_output_tokens > 1) {
    metrics.tpot_.observe((last_token_ns_ - times.prompt_done_ns) / (output.num_output_tokens - 1));
  }
}

}  // namespace moesaic
