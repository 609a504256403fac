#include "plan/arrivals.h"

#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/rng.h"

namespace moesaic {
namespace {

double uniform_above_0(Rng& rng) {
  return 1.0 - rng.uniform();
}

double normal(Rng& rng) {
  const double radius = std::sqrt(-2.0 * std::log(uniform_above_0(rng)));
  return radius * std::cos(2.0 * std::numbers::pi * rng.uniform());
}

// Mean `shape`. Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; a shape below 1 is drawn
// from shape + 1 and scaled.
double gamma(Rng& rng, double shape) {
  if (shape < 1.0) return gamma(rng, shape + 1.0) * std::pow(uniform_above_0(rng), 1.0 / shape);
  const double d = shape - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * d);
  for (;;) {
    const double x = normal(rng);
    const double v = std::pow(1.0 + c * x, 3.0);
    if (v <= 0.0) continue;
    if (std::log(uniform_above_0(rng)) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

void add_arrival_fields(ConfigFields& fields, ArrivalOptions* options) {
  fields.add("request-rate", &options->request_rate)
      .range(1e-6, INFINITY)
      .unit("a second")
      .doc("Mean rate of arrivals; inf: all at once, or as --max-concurrency lets them");
  fields.add("burstiness", &options->burstiness)
      .range(1e-3, INFINITY)
      .doc("Shape of the gaps between arrivals: 1 is a Poisson process, less is burstier, inf is a fixed gap");
}

std::vector<double> arrival_times(const ArrivalOptions& options, int64_t count) {
  MOESAIC_CHECK(options.request_rate > 0 && options.burstiness > 0);
  std::vector<double> times(count, 0.0);
  if (std::isinf(options.request_rate)) return times;
  Rng rng(options.seed);
  double now = 0.0;
  for (double& time : times) {
    const double gap = std::isinf(options.burstiness) ? 1.0 : gamma(rng, options.burstiness) / options.burstiness;
    time = now += gap / options.request_rate;
  }
  return times;
}

}  // namespace moesaic
