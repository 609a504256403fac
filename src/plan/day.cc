#include "plan/day.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"

namespace moesaic {
namespace {

constexpr int kHours = 24;

absl::StatusOr<double> parse_number(std::string_view text, std::string_view field, double max,
                                    const std::string& where) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= max)) {
    return absl::InvalidArgumentError(
        str_cat(where, ": ", field, " is \"", text, "\"; expected a number from 0 to ", max));
  }
  return value;
}

std::vector<std::string_view> split(std::string_view line) {
  std::vector<std::string_view> fields;
  for (size_t begin = 0; begin <= line.size();) {
    const size_t end = std::min(line.find(',', begin), line.size());
    fields.push_back(line.substr(begin, end - begin));
    begin = end + 1;
  }
  return fields;
}

}  // namespace

absl::StatusOr<std::vector<DayHour>> parse_day(std::string_view csv, const std::string& source) {
  constexpr std::string_view kHeader = "hour_utc8,avg_nodes,income_usd,share_of_day";
  std::vector<DayHour> hours;
  int line_number = 0;
  double total = 0;
  while (!csv.empty()) {
    const size_t end = csv.find('\n');
    std::string_view line = csv.substr(0, end);
    csv.remove_prefix(end == std::string_view::npos ? csv.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const std::string where = str_cat(source, ":", ++line_number);
    if (line_number == 1) {
      if (line != kHeader) return absl::InvalidArgumentError(str_cat(where, ": expected the header ", kHeader));
      continue;
    }
    if (line.empty()) continue;
    const std::vector<std::string_view> fields = split(line);
    if (fields.size() != 4) {
      return absl::InvalidArgumentError(str_cat(where, ": ", fields.size(), " fields; expected 4"));
    }
    DayHour hour{.label = std::string(fields[0])};
    MOESAIC_ASSIGN_OR_RETURN(hour.nodes, parse_number(fields[1], "avg_nodes", 1e6, where));
    MOESAIC_ASSIGN_OR_RETURN(hour.income_usd, parse_number(fields[2], "income_usd", 1e12, where));
    MOESAIC_ASSIGN_OR_RETURN(hour.share, parse_number(fields[3], "share_of_day", 1, where));
    total += hour.share;
    hours.push_back(std::move(hour));
  }
  if (hours.size() != kHours) {
    return absl::InvalidArgumentError(str_cat(source, ":", line_number, ": ", hours.size(), " hours; expected 24"));
  }
  if (std::abs(total - 1) > 0.005) {
    return absl::InvalidArgumentError(str_cat(source, ": share_of_day adds up to ", total, "; expected 1"));
  }
  return hours;
}

DayTotals day_totals(const std::vector<DayHour>& hours, const DayTraffic& traffic) {
  DayTotals out;
  for (const DayHour& hour : hours) {
    out.node_hours += hour.nodes;
    out.income_usd += hour.income_usd;
  }
  out.mean_nodes = out.node_hours / static_cast<double>(hours.size());
  out.cost_usd = out.node_hours * traffic.gpus_per_node * traffic.usd_per_gpu_hour;
  out.income_tokens_usd = (traffic.input_hit_tokens * traffic.usd_per_million_hit +
                           traffic.input_miss_tokens * traffic.usd_per_million_miss +
                           traffic.output_tokens * traffic.usd_per_million_output) /
                          1e6;
  out.margin = out.cost_usd > 0 ? (out.income_usd - out.cost_usd) / out.cost_usd : 0;
  return out;
}

}  // namespace moesaic
