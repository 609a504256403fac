// Measures the operations on this machine: `ops_bench` and `moesaic bench ops`. One figure a line, as text or as JSON
// {name, value, unit, ratio, baseline, hash, command}. The ratio is to the FMA peak that a register-only loop reaches
// in the same run; the hash is of the operation's output, equal on every machine and thread count.
#pragma once

#include <functional>
#include <string>

#include "base/status.h"

namespace moesaic {

struct OpsBenchOptions {
  bool json = false;
  bool small = false;  // few shapes, one short repetition: for tests
  int num_threads = 1;
  std::string filter;                 // only figures whose name holds this text
  std::string isa;                    // "plain", "avx2", "avx512", "amx"; empty = the best that this CPU has
  std::string command = "ops_bench";  // as printed, without the filter
};

// `print` gets each line without its end. Errors: unknown or unsupported isa, no figure with the filter's text.
absl::Status run_ops_bench(const OpsBenchOptions& options, const std::function<void(const std::string& line)>& print);

// GFLOP/s of one thread in a loop of independent FMAs on registers, in the active instruction set.
double measure_fma_peak_gflops(double seconds);

}  // namespace moesaic
