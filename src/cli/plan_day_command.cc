#include <cstdio>

#include "cli/plan_command.h"
#include "cli/report_file.h"
#include "cost/embedded_files.h"
#include "plan/day_report.h"

namespace moesaic {
namespace {

constexpr char kPublishedDay[] = "deepseek_diurnal.csv";

struct DayConfig {
  std::string day;
  DayTraffic traffic;
  DayFleet fleet;
  bool json = false;
  std::string report;
};

void declare(ConfigFields& fields, DayConfig& config) {
  DayTraffic& t = config.traffic;
  DayFleet& f = config.fleet;
  fields.add("day", &config.day)
      .default_text("DeepSeek's published day")
      .doc("CSV of 24 hours with the columns of data/deepseek_diurnal.csv");
  fields.add("input-hit-tokens", &t.input_hit_tokens).range(0, 1e18).doc("Input tokens of the day found in the cache");
  fields.add("input-miss-tokens", &t.input_miss_tokens).range(0, 1e18).doc("Other input tokens of the day");
  fields.add("output-tokens", &t.output_tokens).range(0, 1e18).doc("Output tokens of the day");
  fields.add("usd-per-million-hit", &t.usd_per_million_hit).range(0, 1e6).doc("Price of cached input");
  fields.add("usd-per-million-miss", &t.usd_per_million_miss).range(0, 1e6).doc("Price of other input");
  fields.add("usd-per-million-output", &t.usd_per_million_output).range(0, 1e6).doc("Price of output");
  fields.add("usd-per-gpu-hour", &t.usd_per_gpu_hour).range(0, 1e6).doc("Cost of a GPU");
  fields.add("gpus-per-node", &t.gpus_per_node).range(1, 1024).doc("GPUs of a node");
  fields.add("prefill-unit-nodes", &f.prefill_unit_nodes).range(1, 1024).doc("Nodes of a prefill instance");
  fields.add("decode-unit-nodes", &f.decode_unit_nodes).range(1, 1024).doc("Nodes of a decode instance");
  fields.add("prefill-units", &f.prefill_units).range(1, 1 << 16).doc("Prefill instances that there are at most");
  fields.add("decode-units", &f.decode_units).range(1, 1 << 16).doc("Decode instances that there are at most");
  fields.add("prefill-rate", &f.prefill_rate)
      .range(1, 1e9)
      .unit("tokens/s")
      .doc("Input of a node with cache hits, mean of the day");
  fields.add("decode-rate", &f.decode_rate).range(1, 1e9).unit("tokens/s").doc("Output of a node, mean of the day");
  fields.add("capacity", &f.capacity).range(0.1, 10).doc("What a node serves within its SLO over its mean rate");
  fields.add("prefill-load-s", &f.prefill_load_s).range(0, 86400).unit("s").doc("Until a prefill unit serves");
  fields.add("decode-load-s", &f.decode_load_s).range(0, 86400).unit("s").doc("Until a decode unit serves");
  fields.add("slo-wait-s", &f.slo_wait_s).range(0, 3600).unit("s").doc("Tokens that wait longer miss their SLO");
  fields.add("noise", &f.noise).range(0, 1).doc("Deviation of a minute's load from the curve");
  fields.add("day-level", &f.day_level).range(0, 10).doc("Today's load over the usual day's");
  fields.add("seed", &f.seed).doc("Of the noise");
  fields.add("json", &config.json).doc("Prints one JSON object");
  fields.add("report", &config.report).doc("Writes an HTML page, or its JSON if the name ends in .json");
}

absl::Status run(DayConfig& config) {
  std::string text;
  if (config.day.empty()) {
    MOESAIC_ASSIGN_OR_RETURN(text, embedded_text(kPublishedDay));
  } else {
    MOESAIC_ASSIGN_OR_RETURN(text, read_text_file(config.day));
  }
  MOESAIC_ASSIGN_OR_RETURN(std::vector<DayHour> hours,
                           parse_day(text, config.day.empty() ? kPublishedDay : config.day));
  const DayAnswer answer = answer_day(std::move(hours), config.traffic, config.fleet);
  std::fputs((config.json ? day_json(answer) : day_text(answer)).c_str(), stdout);
  return write_report(day_report(answer, "moesaic plan day"), config.report);
}

}  // namespace

Command plan_day_command() {
  return make_command<DayConfig, declare, run>(
      "plan day", "A service's day: cost, income, and nodes that policies give to training at night.");
}

}  // namespace moesaic
