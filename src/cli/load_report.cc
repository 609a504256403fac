#include "cli/load_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/strings.h"

namespace moesaic {
namespace {

constexpr double kMsPerNs = 1e-6;
constexpr int64_t kNsPerSecond = 1'000'000'000;

double ttft_ms(const RequestRecord& record) {
  return static_cast<double>(record.first_ns - record.start_ns) * kMsPerNs;
}
double e2el_ms(const RequestRecord& record) {
  return static_cast<double>(record.last_ns - record.start_ns) * kMsPerNs;
}
double tpot_ms(const RequestRecord& record) {
  if (record.output_tokens < 2) return 0.0;
  return static_cast<double>(record.last_ns - record.first_ns) * kMsPerNs /
         static_cast<double>(record.output_tokens - 1);
}

bool is_good(const RequestRecord& record, const Slo& slo) {
  return record.ok() && ttft_ms(record) <= slo.ttft_ms.value_or(INFINITY) &&
         tpot_ms(record) <= slo.tpot_ms.value_or(INFINITY) && e2el_ms(record) <= slo.e2el_ms.value_or(INFINITY);
}

// The most output of any second, counted from the load's start. A piece stands for its share of the request's tokens.
double best_second(std::span<const RequestRecord> records) {
  int64_t begin_ns = INT64_MAX;
  for (const RequestRecord& record : records) begin_ns = std::min(begin_ns, record.start_ns);
  std::map<int64_t, double> seconds;
  for (const RequestRecord& record : records) {
    if (!record.ok()) continue;
    const double share = static_cast<double>(record.output_tokens) / static_cast<double>(record.gaps_ns.size() + 1);
    int64_t now_ns = record.first_ns;
    seconds[(now_ns - begin_ns) / kNsPerSecond] += share;
    for (const int64_t gap_ns : record.gaps_ns) seconds[((now_ns += gap_ns) - begin_ns) / kNsPerSecond] += share;
  }
  double best = 0.0;
  for (const auto& [second, tokens] : seconds) best = std::max(best, tokens);
  return best;
}

int64_t most_at_once(std::span<const RequestRecord> records) {
  std::vector<std::pair<int64_t, int>> changes;  // an end before a start at the same time
  for (const RequestRecord& record : records) {
    if (!record.ok()) continue;
    changes.emplace_back(record.start_ns, +1);
    changes.emplace_back(record.last_ns, -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, most = 0;
  for (const auto& [time_ns, change] : changes) most = std::max(most, now += change);
  return most;
}

}  // namespace

LoadReport make_report(const LoadSettings& settings, std::span<const RequestRecord> records, double duration_s) {
  LoadReport report{.settings = settings, .duration_s = duration_s};
  report.num_prompts = static_cast<int64_t>(records.size());
  std::vector<double> ttfts, tpots, itls, e2els;
  int64_t good = 0;
  for (const RequestRecord& record : records) {
    if (!record.ok()) {
      ++report.failed;
      LoadReport::Errors& errors = report.errors[record.error_kind];
      if (errors.count++ == 0) errors.first = record.error_message;
      continue;
    }
    ++report.completed;
    report.without_usage += record.has_usage ? 0 : 1;
    report.total_input_tokens += record.prompt_tokens;
    report.total_output_tokens += record.output_tokens;
    report.total_cached_tokens += record.cached_tokens;
    ttfts.push_back(ttft_ms(record));
    e2els.push_back(e2el_ms(record));
    if (record.output_tokens > 1) tpots.push_back(tpot_ms(record));
    for (const int64_t gap_ns : record.gaps_ns) itls.push_back(static_cast<double>(gap_ns) * kMsPerNs);
    good += is_good(record, settings.slo) ? 1 : 0;
  }
  const auto rate = [&](int64_t count) { return duration_s > 0 ? static_cast<double>(count) / duration_s : 0.0; };
  report.request_throughput = rate(report.completed);
  report.request_goodput = rate(good);
  report.output_throughput = rate(report.total_output_tokens);
  report.total_token_throughput = rate(report.total_input_tokens + report.total_output_tokens);
  report.max_output_tokens_per_s = best_second(records);
  report.max_concurrent_requests = most_at_once(records);
  report.ttft_ms = distribution(std::move(ttfts), settings.percents);
  report.tpot_ms = distribution(std::move(tpots), settings.percents);
  report.itl_ms = distribution(std::move(itls), settings.percents);
  report.e2el_ms = distribution(std::move(e2els), settings.percents);
  return report;
}

std::string report_table(const LoadReport& report) {
  const LoadSettings& settings = report.settings;
  std::string out = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  const auto count = [&](const char* name, int64_t value) { out += fmt::format("{:<40} {:<10}\n", name, value); };
  const auto number = [&](std::string_view name, double value) {
    out += fmt::format("{:<40} {:<10.2f}\n", name, value);
  };
  count("Successful requests:", report.completed);
  count("Failed requests:", report.failed);
  if (settings.max_concurrency > 0) count("Maximum request concurrency:", settings.max_concurrency);
  if (std::isfinite(settings.request_rate)) number("Request rate configured (RPS):", settings.request_rate);
  number("Benchmark duration (s):", report.duration_s);
  count("Total input tokens:", report.total_input_tokens);
  count("Total generated tokens:", report.total_output_tokens);
  number("Request throughput (req/s):", report.request_throughput);
  if (settings.slo.any()) number("Request goodput (req/s):", report.request_goodput);
  number("Output token throughput (tok/s):", report.output_throughput);
  number("Peak output token throughput (tok/s):", report.max_output_tokens_per_s);
  number("Peak concurrent requests:", static_cast<double>(report.max_concurrent_requests));
  number("Total token throughput (tok/s):", report.total_token_throughput);
  if (report.total_cached_tokens > 0) count("Total cached input tokens:", report.total_cached_tokens);
  const auto block = [&](const char* title, const char* name, const Distribution& values) {
    out += fmt::format("{:-^50}\n", title);
    number(fmt::format("Mean {} (ms):", name), values.mean);
    number(fmt::format("Median {} (ms):", name), values.median);
    number(fmt::format("Std {} (ms):", name), values.std);
    for (const auto& [percent, value] : values.percentiles) number(fmt::format("P{:g} {} (ms):", percent, name), value);
  };
  block("Time to First Token", "TTFT", report.ttft_ms);
  block("Time per Output Token (excl. 1st token)", "TPOT", report.tpot_ms);
  block("Inter-token Latency", "ITL", report.itl_ms);
  block("End-to-end Latency", "E2EL", report.e2el_ms);
  out += fmt::format("{:=^50}\n", "");
  for (const auto& [kind, errors] : report.errors) {
    out += fmt::format("{} x {}; the first: {}\n", errors.count, kind, errors.first);
  }
  if (report.without_usage > 0) {
    out += fmt::format("warning: {} answers had no usage: their tokens are counted pieces, prompts count as 0\n",
                       report.without_usage);
  }
  return out;
}

}  // namespace moesaic
