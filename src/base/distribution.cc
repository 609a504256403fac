#include "base/distribution.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/check.h"

namespace moesaic {

double percentile(std::span<const double> sorted, double percent) {
  MOESAIC_CHECK(!sorted.empty());
  const double rank = percent / 100.0 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(std::floor(rank));
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (rank - std::floor(rank)) * (sorted[above] - sorted[below]);
}

Distribution distribution(std::vector<double> values, std::span<const double> percents) {
  Distribution out;
  if (values.empty()) values = {0.0};
  std::sort(values.begin(), values.end());
  const auto count = static_cast<double>(values.size());
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0.0;
  for (const double value : values) squares += (value - out.mean) * (value - out.mean);
  out.std = std::sqrt(squares / count);
  out.median = percentile(values, 50.0);
  for (const double percent : percents) out.percentiles.emplace_back(percent, percentile(values, percent));
  return out;
}

}  // namespace moesaic
