// Slo: what a request must keep to be good, and how it is written. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/config_fields.h"
#include "base/status.h"

namespace moesaic {

// Upper bounds in milliseconds; a request is good if it keeps all that are given.
struct Slo {
  std::optional<double> ttft_ms;
  std::optional<double> tpot_ms;
  std::optional<double> e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};
// --goodput and --metric-percentiles, as the functions below read them.
void add_slo_fields(ConfigFields& fields, std::string* goodput, std::string* percentiles);
// "ttft:200 tpot:50", separated by spaces or commas.
absl::StatusOr<Slo> parse_slo(std::string_view text);
// "90,95,99"
absl::StatusOr<std::vector<double>> parse_percents(std::string_view text);

}  // namespace moesaic
