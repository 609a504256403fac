// When the requests of a load are due. Pure.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "base/config_fields.h"

namespace moesaic {

struct ArrivalOptions {
  double request_rate = std::numeric_limits<double>::infinity();  // a second; infinite: all at once
  // Gaps are gamma-distributed with this shape and the mean 1 / request_rate, as in `vllm bench serve`: 1 is a Poisson
  // process, below it burstier, above it more even, infinite: fixed gaps.
  double burstiness = 1.0;
  uint64_t seed = 0;
};

// --request-rate and --burstiness.
void add_arrival_fields(ConfigFields& fields, ArrivalOptions* options);
// Seconds from the start, ascending; the first is one gap after it (0 at an infinite rate).
std::vector<double> arrival_times(const ArrivalOptions& options, int64_t count);

}  // namespace moesaic
