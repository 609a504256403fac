// A strict reader of Prometheus' text form, for tests: what promtool and the servers that scrape insist on.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/metrics.h"
#include "base/status.h"

namespace moesaic {

struct MetricSample {
  std::string name;  // with _bucket, _sum, _count
  std::map<std::string, std::string> labels;
  double value = 0.0;
};

struct MetricFamily {
  std::string type;
  std::string help;
  std::vector<MetricSample> samples;
};

using MetricFamilies = std::map<std::string, MetricFamily>;

// Errors name the line: HELP and TYPE once a family and before its samples, families in one piece, legal names, values
// and escapes, no series twice, counters not negative, histograms cumulative with ascending bounds, +Inf equal to
// _count, and a _sum.
absl::StatusOr<MetricFamilies> parse_metrics(std::string_view text);

// The value of the one series with this name and (at least) these labels; NaN if there is none or several.
double metric_value(const MetricFamilies& families, const std::string& name,
                    const std::map<std::string, std::string>& labels = {});

}  // namespace moesaic
