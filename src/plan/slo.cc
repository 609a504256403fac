#include "plan/slo.h"

#include <charconv>
#include <cmath>

namespace moesaic {
namespace {

absl::StatusOr<double> parse_number(std::string_view text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0) {
    return absl::InvalidArgumentError(str_cat("expected a number from 0 on, found \"", text, "\""));
  }
  return value;
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" ,", begin), text.size());
    if (end > begin) parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

void add_slo_fields(ConfigFields& fields, std::string* goodput, std::string* percentiles) {
  fields.add("goodput", goodput)
      .list()
      .doc("Bounds in ms, as ttft:200 tpot:50 e2el:5000: also report the rate of requests that keep all");
  fields.add("metric-percentiles", percentiles).doc("Which percentiles to report");
}

absl::StatusOr<Slo> parse_slo(std::string_view text) {
  Slo slo;
  for (const std::string_view part : split(text)) {
    const size_t colon = std::min(part.find(':'), part.size());
    const std::string_view name = part.substr(0, colon);
    std::optional<double>* target = name == "ttft"   ? &slo.ttft_ms
                                    : name == "tpot" ? &slo.tpot_ms
                                    : name == "e2el" ? &slo.e2el_ms
                                                     : nullptr;
    if (target == nullptr || colon == part.size()) {
      return absl::InvalidArgumentError(str_cat("--goodput expects ttft:MS, tpot:MS or e2el:MS, found \"", part, "\""));
    }
    if (target->has_value()) return absl::InvalidArgumentError(str_cat("--goodput: ", name, " is given twice"));
    const absl::StatusOr<double> value = parse_number(part.substr(colon + 1));
    if (!value.ok()) return annotate(value.status(), "--goodput");
    *target = *value;
  }
  return slo;
}

absl::StatusOr<std::vector<double>> parse_percents(std::string_view text) {
  std::vector<double> percents;
  for (const std::string_view part : split(text)) {
    const absl::StatusOr<double> value = parse_number(part);
    if (!value.ok()) return annotate(value.status(), "--metric-percentiles");
    if (*value > 100.0) return absl::InvalidArgumentError(str_cat("--metric-percentiles: ", part, " is above 100"));
    percents.push_back(*value);
  }
  return percents;
}

}  // namespace moesaic
