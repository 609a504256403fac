// AllToAllCost: seconds of dispatch and combine by bytes and latency for each class of link. Host-only.
#pragma once

#include "cost/cost_model.h"

namespace moesaic {

struct AllToAllShape {
  double tokens = 0;      // that one rank sends
  double received = 1.0;  // tokens that the fullest rank receives, relative to the mean
  int64_t ranks = 1;
  int64_t topk = 0;
  int64_t hidden = 0;
  bool fp8_dispatch = true;
  bool low_latency = true;  // a copy for each expert (decode); otherwise one for each node (prefill)
};

struct AllToAllTime {
  double dispatch = 0;
  double combine = 0;
};

AllToAllTime all_to_all_time(const HardwareSpec& hardware, CommFamily family, const AllToAllShape& shape);

}  // namespace moesaic
