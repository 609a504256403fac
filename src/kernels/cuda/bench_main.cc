#include <cstdio>

#include "kernels/cuda/bench_util.h"

namespace moesaic::cuda {

int bench_main(absl::Status (*family)(KernelBench& bench)) {
  const auto print = [](const std::string& line) {
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
  };
  auto bench = KernelBench::open(0, print);
  const absl::Status status = bench.ok() ? family(**bench) : bench.status();
  if (status.ok()) return 0;
  std::fputs(str_cat("no figures: ", status.message(), "\n").c_str(), stderr);
  return 1;
}

}  // namespace moesaic::cuda
