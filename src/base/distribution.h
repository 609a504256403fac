// Distribution: what a report says of many values. Pure.
#pragma once

#include <span>
#include <utility>
#include <vector>

namespace moesaic {

struct Distribution {
  double mean = 0.0;
  double median = 0.0;
  double std = 0.0;                                    // of the population
  std::vector<std::pair<double, double>> percentiles;  // which -> value
};

// Linear between the two nearest ranks, as numpy has it. `sorted` ascending, not empty; `percent` 0 to 100.
double percentile(std::span<const double> sorted, double percent);
// All zero without values.
Distribution distribution(std::vector<double> values, std::span<const double> percents);

}  // namespace moesaic
