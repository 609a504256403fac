// The part of ops_bench that measures attention, gate, sampling and the small operations at the demo model's shapes.
#pragma once

#include <functional>
#include <string>

#include "kernels/ops_bench.h"
#include "tensor/stream.h"

namespace moesaic {

using PrintLine = std::function<void(const std::string& line)>;

// Ratios are to peak_gflops times the number of threads. Returns the number of figures printed.
int run_attention_bench(const OpsBenchOptions& options, Stream& stream, double peak_gflops, const PrintLine& print);

}  // namespace moesaic
