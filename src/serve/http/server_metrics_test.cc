// The families of /metrics against a strict reader, and their values against what the requests did.
#include "serve/http/server_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics_test_util.h"
#include "engine/engine_test_util.h"

namespace moesaic {
namespace {

constexpr int64_t kMs = 1'000'000;

EngineOptions options_of(int num_kv_blocks) {
  EngineOptions options = small_options();
  options.num_kv_blocks = num_kv_blocks;
  return options;
}

MetricFamilies read(ServerMetrics& metrics, const EngineStats& stats, int64_t now_ns = 0) {
  const std::string text = metrics.text(stats, now_ns);
  auto families = parse_metrics(text);
  EXPECT_TRUE(families.ok()) << families.status() << "\n" << text;
  return families.ok() ? *std::move(families) : MetricFamilies();
}

TEST(ServerMetrics, DashboardsFindTheirFamiliesLabelsAndBuckets) {
  ServerMetrics metrics("a \"model\"\\", options_of(16));
  const MetricFamilies families = read(metrics, EngineStats());
  for (const char* name : {"sglang:num_running_reqs",
                           "sglang:num_queue_reqs",
                           "sglang:token_usage",
                           "sglang:num_used_tokens",
                           "sglang:max_total_num_tokens",
                           "sglang:gen_throughput",
                           "sglang:cache_hit_rate",
                           "sglang:prompt_tokens_total",
                           "sglang:generation_tokens_total",
                           "sglang:cached_tokens_total",
                           "sglang:num_requests_total",
                           "sglang:num_aborted_requests_total",
                           "sglang:time_to_first_token_seconds",
                           "sglang:inter_token_latency_seconds",
                           "sglang:e2e_request_latency_seconds",
                           "sglang:queue_time_seconds",
                           "vllm:num_requests_running",
                           "vllm:num_requests_waiting",
                           "vllm:kv_cache_usage_perc",
                           "vllm:num_preemptions_total",
                           "vllm:prefix_cache_queries_total",
                           "vllm:prefix_cache_hits_total",
                           "vllm:prompt_tokens_total",
                           "vllm:generation_tokens_total",
                           "vllm:request_success_total",
                           "vllm:time_to_first_token_seconds",
                           "vllm:inter_token_latency_seconds",
                           "vllm:request_time_per_output_token_seconds",
                           "vllm:e2e_request_latency_seconds",
                           "vllm:request_queue_time_seconds",
                           "vllm:request_prefill_time_seconds",
                           "vllm:request_decode_time_seconds",
                           "vllm:request_inference_time_seconds",
                           "vllm:request_prompt_tokens",
                           "vllm:request_generation_tokens",
                           "vllm:request_max_num_generation_tokens",
                           "vllm:cache_config_info"}) {
    ASSERT_TRUE(families.contains(name)) << name;
    for (const MetricSample& sample : families.at(name).samples) {
      EXPECT_EQ(sample.labels.at("model_name"), "a \"model\"\\");
      EXPECT_EQ(sample.labels.contains("engine"), std::string_view(name).starts_with("vllm:"));
      EXPECT_EQ(sample.labels.contains("engine_type"), std::string_view(name).starts_with("sglang:"));
    }
  }
  const auto buckets = [&](const char* name) { return families.at(name).samples.size() - 3; };  // +Inf, sum, count
  EXPECT_EQ(buckets("sglang:time_to_first_token_seconds"), 18);
  EXPECT_EQ(buckets("sglang:inter_token_latency_seconds"), 23);
  EXPECT_EQ(buckets("sglang:e2e_request_latency_seconds"), 22);
  EXPECT_EQ(buckets("vllm:time_to_first_token_seconds"), 22);
  EXPECT_EQ(buckets("vllm:inter_token_latency_seconds"), 19);
  EXPECT_EQ(buckets("vllm:e2e_request_latency_seconds"), 21);
  EXPECT_EQ(buckets("vllm:request_prompt_tokens"), 8);  // 1, 2, 5, ... 200 of a context of 256
}

TEST(ServerMetrics, LatenciesAreTheEnginesTimes) {
  ServerMetrics metrics("m", options_of(16));
  RequestTimer timer(&metrics, 8);
  RequestOutput output{.num_prompt_tokens = 5, .num_cached_tokens = 4};
  output.times = {.arrival_ns = 10 * kMs,
                  .queued_ns = 30 * kMs,
                  .admitted_ns = 130 * kMs,
                  .prompt_done_ns = 1010 * kMs,
                  .output_ns = 1010 * kMs};
  output.token_ids = {1};
  output.num_output_tokens = 1;
  timer.observe(output);
  output.times.output_ns = 1070 * kMs;  // two tokens in one step
  output.token_ids = {2, 3};
  output.num_output_tokens = 3;
  timer.observe(output);
  output.times.output_ns = 1510 * kMs;  // ends without a token
  output.token_ids.clear();
  output.finish_reason = FinishReason::kAbort;
  timer.observe(output);
  const MetricFamilies families = read(metrics, EngineStats(), /*now_ns=*/2000 * kMs);
  const auto value = [&](const char* name) { return metric_value(families, name); };
  for (const std::string prefix : {"sglang:", "vllm:"}) {
    const auto sum = [&](const std::string& name) { return metric_value(families, prefix + name + "_sum"); };
    EXPECT_NEAR(sum("time_to_first_token_seconds"), 1.0, 1e-9);
    EXPECT_NEAR(sum("inter_token_latency_seconds"), 0.06, 1e-9);
    EXPECT_NEAR(sum("e2e_request_latency_seconds"), 1.5, 1e-9);
    EXPECT_NEAR(sum(prefix == "vllm:" ? "request_queue_time_seconds" : "queue_time_seconds"), 0.1, 1e-9);
    EXPECT_EQ(metric_value(families, prefix + "prompt_tokens_total"), 5);
    EXPECT_EQ(metric_value(families, prefix + "generation_tokens_total"), 3);
  }
  EXPECT_EQ(value("sglang:inter_token_latency_seconds_count"), 2);
  EXPECT_EQ(value("vllm:inter_token_latency_seconds_count"), 1);
  EXPECT_NEAR(value("vllm:request_time_per_output_token_seconds_sum"), 0.03, 1e-9);
  EXPECT_NEAR(value("vllm:request_prefill_time_seconds_sum"), 0.88, 1e-9);
  EXPECT_NEAR(value("vllm:request_decode_time_seconds_sum"), 0.06, 1e-9);
  EXPECT_NEAR(value("vllm:request_inference_time_seconds_sum"), 0.94, 1e-9);
  EXPECT_EQ(metric_value(families, "vllm:request_success_total", {{"finished_reason", "abort"}}), 1);
  EXPECT_EQ(metric_value(families, "vllm:request_success_total", {{"finished_reason", "stop"}}), 0);
  EXPECT_EQ(value("sglang:num_aborted_requests_total"), 1);
  EXPECT_EQ(value("vllm:prefix_cache_queries_total"), 5);
  EXPECT_EQ(value("vllm:prefix_cache_hits_total"), 4);
  EXPECT_NEAR(value("sglang:cache_hit_rate"), 0.8, 1e-9);
  EXPECT_NEAR(value("sglang:gen_throughput"), 0.3, 1e-9);
}

TEST(ServerMetrics, ARequestThatNeverRanCountsNoPrompt) {
  ServerMetrics metrics("m", options_of(16));
  RequestTimer timer(&metrics, 8);
  RequestOutput output{.finish_reason = FinishReason::kAbort, .num_prompt_tokens = 5};
  output.times = {.arrival_ns = 1 * kMs, .queued_ns = 1 * kMs, .output_ns = 9 * kMs};
  timer.observe(output);
  const MetricFamilies families = read(metrics, EngineStats());
  EXPECT_EQ(metric_value(families, "vllm:prompt_tokens_total"), 0);
  EXPECT_EQ(metric_value(families, "vllm:prefix_cache_queries_total"), 0);
  EXPECT_EQ(metric_value(families, "vllm:request_queue_time_seconds_count"), 0);
  EXPECT_EQ(metric_value(families, "sglang:num_requests_total"), 1);
}

TEST(ServerMetrics, SpeculationShowsOnlyWhereThereIsSome) {
  ServerMetrics metrics("m", options_of(16));
  EngineStats stats;
  EXPECT_FALSE(read(metrics, stats).contains("vllm:spec_decode_num_drafts_total"));
  stats.speculation = SpeculationStats();
  EXPECT_FALSE(read(metrics, stats).contains("sglang:spec_accept_length"));
  stats.speculation = {.drafts_total = 10, .draft_tokens_total = 20, .accepted_tokens_total = 15};
  for (int scrape = 0; scrape < 2; ++scrape) {
    const MetricFamilies families = read(metrics, stats);
    EXPECT_EQ(metric_value(families, "vllm:spec_decode_num_drafts_total"), 10);
    EXPECT_EQ(metric_value(families, "vllm:spec_decode_num_draft_tokens_total"), 20);
    EXPECT_EQ(metric_value(families, "vllm:spec_decode_num_accepted_tokens_total"), 15);
    EXPECT_EQ(metric_value(families, "sglang:spec_accept_length"), 2.5);
    EXPECT_EQ(metric_value(families, "sglang:spec_accept_rate"), 0.75);
  }
}

// vllm#25780, #25787: requests that are preempted and computed again must not look like prefix hits, nor count twice.
TEST(ServerMetrics, RecomputationAfterPreemptionIsNoHitAndNoSecondPrompt) {
  const EngineOptions options = options_of(16);
  constexpr int kRequests = 8, kPrompt = 20, kOutput = 20;
  ServerMetrics metrics("m", options);
  Collector collector;
  Engine engine(options, std::make_unique<FakeExecutor>(options), nullptr, real_clock());
  const auto send = [&](RequestId id, RequestId prompt, int max_tokens) {
    Request request = make_request(id, make_prompt(prompt, kPrompt), max_tokens);
    request.ignore_eos = true;
    auto sink = [timer = RequestTimer(&metrics, max_tokens), next = collector.sink()](RequestOutput output) mutable {
      EXPECT_LE(output.num_cached_tokens, output.num_prompt_tokens);
      timer.observe(output);
      next(std::move(output));
    };
    EXPECT_TRUE(engine.submit(std::move(request), sink).ok());
  };
  for (RequestId id = 1; id <= kRequests; ++id) send(id, id, kOutput);
  collector.wait(kRequests);
  const EngineStats stats = engine.stats();
  ASSERT_GT(stats.preemptions_total, 0);
  const MetricFamilies families = read(metrics, stats);
  EXPECT_EQ(metric_value(families, "vllm:prefix_cache_hits_total"), 0);
  EXPECT_EQ(metric_value(families, "vllm:prefix_cache_queries_total"), kRequests * kPrompt);
  EXPECT_EQ(metric_value(families, "vllm:prompt_tokens_total"), kRequests * kPrompt);
  EXPECT_EQ(metric_value(families, "sglang:generation_tokens_total"), kRequests * kOutput);
  EXPECT_EQ(metric_value(families, "vllm:request_queue_time_seconds_count"), kRequests);
  EXPECT_EQ(metric_value(families, "vllm:num_preemptions_total"), stats.preemptions_total);
  EXPECT_EQ(metric_value(families, "vllm:request_success_total", {{"finished_reason", "length"}}), kRequests);
  // The same prompts again, those used last first, are.
  for (int i = 0; i < kRequests; ++i) {
    send(100 + i, kRequests - i, 1);
    collector.wait(kRequests + i + 1);
  }
  EXPECT_GT(metric_value(read(metrics, stats), "vllm:prefix_cache_hits_total"), 0);
}

}  // namespace
}  // namespace moesaic
