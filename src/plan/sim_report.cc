#include "plan/sim_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCurvePoints = 100;  // of a cumulative distribution

double ttft_ms(const SimRecord& record) {
  return static_cast<double>(record.first_ns - record.start_ns) * 1e-6;
}
double e2el_ms(const SimRecord& record) {
  return static_cast<double>(record.last_ns - record.start_ns) * 1e-6;
}
double tpot_ms(const SimRecord& record) {
  if (record.num_output < 2) return 0.0;
  return static_cast<double>(record.last_ns - record.first_ns) * 1e-6 / (record.num_output - 1);
}

bool is_good(const SimRecord& record, const Slo& slo) {
  return ttft_ms(record) <= slo.ttft_ms.value_or(INFINITY) && tpot_ms(record) <= slo.tpot_ms.value_or(INFINITY) &&
         e2el_ms(record) <= slo.e2el_ms.value_or(INFINITY);
}

double ratio(double a, double b) {
  return b > 0 ? a / b : 0.0;
}

void fill_engine_figures(const SimResult& result, SimFigures* figures) {
  const SimTotals& totals = result.totals;
  for (const SimTimeline::Interval& interval : result.timeline.intervals()) {
    const double share = ratio(interval.busy_s, result.duration_s);
    figures->mean_running += interval.num_running * share;
    figures->mean_queued += interval.num_queued * share;
    figures->mean_kv_use += interval.kv_use * share;
  }
  figures->busy_share = ratio(totals.busy_s, result.duration_s);
  figures->max_queued = totals.max_queued;
  figures->max_kv_use = totals.max_kv_use;
  figures->token_balancedness = ratio(totals.mean_step_tokens, totals.max_step_tokens);
  figures->kv_balancedness = ratio(totals.mean_kv_rows, totals.max_kv_rows);
  figures->mean_step_ms = ratio(totals.busy_s, static_cast<double>(totals.num_steps)) * 1e3;
  figures->prefill_throughput = ratio(static_cast<double>(totals.prefill_tokens), result.duration_s);
  if (!result.stats.speculation) return;
  figures->acceptance = ratio(static_cast<double>(result.stats.speculation->accepted_tokens_total),
                              static_cast<double>(result.stats.speculation->draft_tokens_total));
}

// In the order of the answer.
struct Line {
  const char* name;
  double value;
  const char* unit;
};

std::vector<Line> load_lines(const SimFigures& f, const Slo& slo) {
  std::vector<Line> lines = {{"Requests completed", static_cast<double>(f.completed), ""},
                             {"Requests refused or failed", static_cast<double>(f.failed), ""},
                             {"Duration", f.duration_s, "s"},
                             {"Input tokens", static_cast<double>(f.total_input_tokens), ""},
                             {"of them cached", static_cast<double>(f.total_cached_tokens), ""},
                             {"Output tokens", static_cast<double>(f.total_output_tokens), ""},
                             {"Request throughput", f.request_throughput, "1/s"},
                             {"Output token throughput", f.output_throughput, "tok/s"},
                             {"Total token throughput", f.total_token_throughput, "tok/s"}};
  if (slo.any()) lines.push_back({"Request goodput", f.request_goodput, "1/s"});
  return lines;
}

std::vector<Line> engine_lines(const SimFigures& f, const SimResult& result) {
  std::vector<Line> lines = {{"Steps", static_cast<double>(result.totals.num_steps), ""},
                             {"Mean step", f.mean_step_ms, "ms"},
                             {"Time inside steps", f.busy_share * 100, "%"},
                             {"Running sequences, mean", f.mean_running, ""},
                             {"Queue, mean", f.mean_queued, ""},
                             {"Queue, most", f.max_queued, ""},
                             {"KV blocks in use, mean", f.mean_kv_use * 100, "%"},
                             {"KV blocks in use, most", f.max_kv_use * 100, "%"},
                             {"Preemptions", static_cast<double>(result.stats.preemptions_total), ""},
                             {"Balancedness of tokens over DP ranks", f.token_balancedness, ""},
                             {"Balancedness of KV rows over DP ranks", f.kv_balancedness, ""},
                             {"Prompt tokens computed", f.prefill_throughput, "tok/s"}};
  if (result.stats.speculation) lines.push_back({"Guesses that were right", f.acceptance * 100, "%"});
  return lines;
}

struct NamedDistribution {
  const char* name;
  const char* json;
  const Distribution* values;
};

std::vector<NamedDistribution> distributions(const SimFigures& f) {
  return {{"TTFT", "ttft", &f.ttft_ms}, {"TPOT", "tpot", &f.tpot_ms}, {"E2EL", "e2el", &f.e2el_ms}};
}

Table lines_table(const std::string& title, const std::vector<Line>& lines) {
  Table table{.title = title, .source = Source::kSimulated, .columns = {{"figure"}, {"value"}, {"unit"}}};
  for (const Line& line : lines) table.rows.push_back({line.name, line.value, line.unit});
  return table;
}

Table latency_table(const SimFigures& f) {
  Table table{.title = "Latency (ms)", .source = Source::kSimulated, .columns = {{""}, {"mean"}, {"median"}}};
  for (const auto& [percent, value] : f.ttft_ms.percentiles) table.columns.push_back({fmt::format("P{:g}", percent)});
  for (const NamedDistribution& each : distributions(f)) {
    std::vector<Cell>& row = table.rows.emplace_back();
    row = {each.name, each.values->mean, each.values->median};
    for (const auto& [percent, value] : each.values->percentiles) row.push_back(value);
  }
  return table;
}

Chart latency_curve(const SimResult& result) {
  Chart chart{
      .title = "Share of requests that are as fast", .x_label = "ms", .y_label = "share of requests", .log_x = true};
  const std::vector<std::pair<const char*, double (*)(const SimRecord&)>> kinds = {
      {"TTFT", ttft_ms}, {"TPOT", tpot_ms}, {"E2EL", e2el_ms}};
  for (const auto& [name, value_of] : kinds) {
    std::vector<double> values;
    for (const SimRecord& record : result.records) {
      if (record.ok() && (value_of != tpot_ms || record.num_output > 1)) values.push_back(value_of(record));
    }
    std::sort(values.begin(), values.end());
    Series series{.name = name, .source = Source::kSimulated};
    for (int i = 0; i <= kCurvePoints && !values.empty(); ++i) {
      series.points.push_back({percentile(values, 100.0 * i / kCurvePoints), static_cast<double>(i) / kCurvePoints});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

// Series over time, one value an interval.
Chart time_chart(
    const SimResult& result, const std::string& title, const std::string& unit,
    const std::vector<std::pair<const char*, std::function<double(const SimTimeline::Interval&)>>>& kinds) {
  Chart chart{.title = title, .x_label = "time (s)", .y_label = unit};
  const std::vector<SimTimeline::Interval> intervals = result.timeline.intervals();
  for (const auto& [name, value_of] : kinds) {
    Series series{.name = name, .source = Source::kSimulated};
    for (size_t i = 0; i < intervals.size(); ++i) {
      series.points.push_back({(static_cast<double>(i) + 0.5) * result.timeline.interval_s(), value_of(intervals[i])});
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

}  // namespace

SimFigures make_figures(const SimResult& result, const Slo& slo, std::span<const double> percents) {
  SimFigures figures{.duration_s = result.duration_s, .num_requests = std::ssize(result.records)};
  std::vector<double> ttfts, tpots, e2els;
  int64_t good = 0;
  for (const SimRecord& record : result.records) {
    if (!record.ok()) continue;
    ++figures.completed;
    figures.total_input_tokens += record.num_input;
    figures.total_output_tokens += record.num_output;
    figures.total_cached_tokens += record.num_cached;
    ttfts.push_back(ttft_ms(record));
    e2els.push_back(e2el_ms(record));
    if (record.num_output > 1) tpots.push_back(tpot_ms(record));
    good += is_good(record, slo) ? 1 : 0;
  }
  figures.failed = figures.num_requests - figures.completed;
  const auto rate = [&](int64_t count) { return ratio(static_cast<double>(count), result.duration_s); };
  figures.request_throughput = rate(figures.completed);
  figures.request_goodput = rate(good);
  figures.output_throughput = rate(figures.total_output_tokens);
  figures.total_token_throughput = rate(figures.total_input_tokens + figures.total_output_tokens);
  figures.ttft_ms = distribution(std::move(ttfts), percents);
  figures.tpot_ms = distribution(std::move(tpots), percents);
  figures.e2el_ms = distribution(std::move(e2els), percents);
  fill_engine_figures(result, &figures);
  return figures;
}

std::string figures_text(const SimFigures& figures, const SimResult& result, const SimSettings& settings) {
  std::string out = fmt::format("Simulated; step times {}\n", settings.timer);
  for (const std::vector<Line>& lines : {load_lines(figures, settings.slo), engine_lines(figures, result)}) {
    for (const Line& line : lines) {
      out += fmt::format("{:<40}{:>14} {}\n", line.name, format_number(line.value), line.unit);
    }
  }
  for (const NamedDistribution& each : distributions(figures)) {
    out += fmt::format("{} (ms): mean {}, median {}", each.name, format_number(each.values->mean),
                       format_number(each.values->median));
    for (const auto& [percent, value] : each.values->percentiles) {
      out += fmt::format(", P{:g} {}", percent, format_number(value));
    }
    out += "\n";
  }
  for (const auto& [message, count] : result.errors) out += fmt::format("{} x {}\n", count, message);
  return out;
}

std::string figures_json(const SimFigures& f, const SimResult& result, const SimSettings& settings) {
  Json json = {{"source", "simulated"},
               {"step_times", settings.timer},
               {"traffic", settings.traffic},
               {"num_prompts", f.num_requests},
               {"duration", f.duration_s},
               {"completed", f.completed},
               {"failed", f.failed},
               {"total_input_tokens", f.total_input_tokens},
               {"total_output_tokens", f.total_output_tokens},
               {"total_cached_tokens", f.total_cached_tokens},
               {"request_throughput", f.request_throughput},
               {"request_goodput", settings.slo.any() ? Json(f.request_goodput) : Json(nullptr)},
               {"output_throughput", f.output_throughput},
               {"total_token_throughput", f.total_token_throughput}};
  for (const NamedDistribution& each : distributions(f)) {
    const std::string name = each.json;
    json["mean_" + name + "_ms"] = each.values->mean;
    json["median_" + name + "_ms"] = each.values->median;
    json["std_" + name + "_ms"] = each.values->std;
    for (const auto& [percent, value] : each.values->percentiles)
      json[fmt::format("p{:g}_{}_ms", percent, name)] = value;
  }
  json["num_steps"] = result.totals.num_steps;
  json["mean_step_ms"] = f.mean_step_ms;
  json["busy_share"] = f.busy_share;
  json["mean_running"] = f.mean_running;
  json["mean_queued"] = f.mean_queued;
  json["max_queued"] = f.max_queued;
  json["mean_kv_use"] = f.mean_kv_use;
  json["max_kv_use"] = f.max_kv_use;
  json["preemptions"] = result.stats.preemptions_total;
  json["token_balancedness"] = f.token_balancedness;
  json["kv_balancedness"] = f.kv_balancedness;
  json["prefill_throughput"] = f.prefill_throughput;
  json["acceptance"] = result.stats.speculation ? Json(f.acceptance) : Json(nullptr);
  json["errors"] = Json::object();
  for (const auto& [message, count] : result.errors) json["errors"][message] = count;
  json["assumptions"] = settings.assumptions;
  json["command"] = settings.command;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Report sim_report(const SimFigures& figures, const SimResult& result, const SimSettings& settings) {
  Report report{.title = "Simulated load", .command = settings.command, .assumptions = settings.assumptions};
  report.summary = fmt::format(
      "Simulated, not measured: {}. The product's engine and scheduler ran in virtual time; step times are {}.",
      settings.traffic, settings.timer);
  report.assumptions.insert(
      report.assumptions.begin(),
      {"step times: " + settings.timer, "traffic: " + settings.traffic,
       "every request makes as many tokens as its traffic says", "no time passes between a client and the engine"});
  Section& latency = report.sections.emplace_back(Section{.title = "Latency"});
  latency.charts.push_back(latency_curve(result));
  latency.tables.push_back(latency_table(figures));
  Section& load = report.sections.emplace_back(Section{.title = "Load"});
  using Interval = SimTimeline::Interval;
  const double width_s = result.timeline.interval_s();
  load.charts.push_back(time_chart(result, "Tokens a second", "tokens / s",
                                   {{"output", [&](const Interval& i) { return i.decode_tokens / width_s; }},
                                    {"prompt", [&](const Interval& i) { return i.prefill_tokens / width_s; }}}));
  load.charts.push_back(time_chart(result, "Requests", "requests",
                                   {{"running", [](const Interval& i) { return i.num_running; }},
                                    {"waiting", [](const Interval& i) { return i.num_queued; }}}));
  load.tables.push_back(lines_table("What was served", load_lines(figures, settings.slo)));
  if (!result.errors.empty()) {
    Table errors{.title = "Refused or failed", .source = Source::kSimulated, .columns = {{"why"}, {"requests"}}};
    for (const auto& [message, count] : result.errors) errors.rows.push_back({message, static_cast<double>(count)});
    load.tables.push_back(std::move(errors));
  }
  // A new section moves those before it: each is finished first.
  Section& engine = report.sections.emplace_back(Section{.title = "Inside the instance"});
  engine.charts.push_back(time_chart(result, "Step time", "ms", {{"mean step", [](const Interval& i) {
                                                                    return ratio(i.busy_s, i.num_steps) * 1e3;
                                                                  }}}));
  engine.charts.push_back(
      time_chart(result, "Use and balance", "share",
                 {{"KV blocks in use", [](const Interval& i) { return i.kv_use; }},
                  {"time inside steps", [&](const Interval& i) { return i.busy_s / width_s; }},
                  {"balancedness of DP ranks", [](const Interval& i) { return i.token_balancedness; }}}));
  engine.tables.push_back(lines_table("The engine", engine_lines(figures, result)));
  return report;
}

}  // namespace moesaic
