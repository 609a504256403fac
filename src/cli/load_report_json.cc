#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/load_report.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

void add_distribution(Json& json, const std::string& name, const Distribution& values) {
  json["mean_" + name + "_ms"] = values.mean;
  json["median_" + name + "_ms"] = values.median;
  json["std_" + name + "_ms"] = values.std;
  for (const auto& [percent, value] : values.percentiles) json[fmt::format("p{:g}_{}_ms", percent, name)] = value;
}

void add_details(Json& json, std::span<const RequestRecord> records) {
  const auto list = [&](const char* name, const auto& value_of) {
    Json values = Json::array();
    for (const RequestRecord& record : records) values.push_back(value_of(record));
    json[name] = std::move(values);
  };
  const auto seconds = [](int64_t ns) { return static_cast<double>(ns) * 1e-9; };
  list("input_lens", [](const RequestRecord& record) { return record.prompt_tokens; });
  list("output_lens", [](const RequestRecord& record) { return record.output_tokens; });
  list("ttfts",
       [&](const RequestRecord& record) { return record.ok() ? seconds(record.first_ns - record.start_ns) : 0; });
  list("itls", [&](const RequestRecord& record) {
    Json gaps = Json::array();
    for (const int64_t gap_ns : record.gaps_ns) gaps.push_back(seconds(gap_ns));
    return gaps;
  });
  const int64_t begin_ns = records.empty() ? 0 : records.front().start_ns;
  list("start_times", [&](const RequestRecord& record) { return seconds(record.start_ns - begin_ns); });
  list("errors", [](const RequestRecord& record) {
    return record.ok() ? std::string() : record.error_kind + ": " + record.error_message;
  });
}

}  // namespace

std::string report_json(const LoadReport& report, std::span<const RequestRecord> records) {
  const LoadSettings& settings = report.settings;
  Json json;
  json["date"] = fmt::format("{:%Y%m%d-%H%M%S}", fmt::gmtime(static_cast<std::time_t>(settings.date_unix_s)));
  json["endpoint_type"] = settings.backend;
  json["backend"] = settings.backend;
  json["model_id"] = settings.model;
  json["num_prompts"] = report.num_prompts;
  json["request_rate"] = std::isfinite(settings.request_rate) ? Json(settings.request_rate) : Json("inf");
  json["burstiness"] = std::isfinite(settings.burstiness) ? Json(settings.burstiness) : Json("inf");
  json["max_concurrency"] = settings.max_concurrency > 0 ? Json(settings.max_concurrency) : Json(nullptr);
  json["duration"] = report.duration_s;
  json["completed"] = report.completed;
  json["failed"] = report.failed;
  json["total_input_tokens"] = report.total_input_tokens;
  json["total_output_tokens"] = report.total_output_tokens;
  json["total_cached_tokens"] = report.total_cached_tokens;
  json["without_usage"] = report.without_usage;
  json["request_throughput"] = report.request_throughput;
  json["request_goodput"] = settings.slo.any() ? Json(report.request_goodput) : Json(nullptr);
  json["output_throughput"] = report.output_throughput;
  json["total_token_throughput"] = report.total_token_throughput;
  json["max_output_tokens_per_s"] = report.max_output_tokens_per_s;
  json["max_concurrent_requests"] = report.max_concurrent_requests;
  add_distribution(json, "ttft", report.ttft_ms);
  add_distribution(json, "tpot", report.tpot_ms);
  add_distribution(json, "itl", report.itl_ms);
  add_distribution(json, "e2el", report.e2el_ms);
  json["error_kinds"] = Json::object();
  for (const auto& [kind, errors] : report.errors) {
    json["error_kinds"][kind] = {{"count", errors.count}, {"first", errors.first}};
  }
  if (!records.empty()) add_details(json, records);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace moesaic
