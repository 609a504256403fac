#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/thread.h"
#include "kernels/ops_bench.h"

namespace {

constexpr char kUsage[] =
    "ops_bench [--json] [--small] [--threads N] [--isa plain|avx2|avx512] [--filter TEXT]\n"
    "Measures the CPU operations on this machine, one figure a line.\n";

}  // namespace

int main(int argc, char** argv) {
  moesaic::OpsBenchOptions options;
  options.num_threads = moesaic::num_cpus();
  for (int i = 1; i < argc; ++i) {
    const std::string_view arg = argv[i];
    const bool has_value = i + 1 < argc;
    if (arg == "--json") {
      options.json = true;
    } else if (arg == "--small") {
      options.small = true;
    } else if (arg == "--threads" && has_value) {
      options.num_threads = std::atoi(argv[++i]);
    } else if (arg == "--isa" && has_value) {
      options.isa = argv[++i];
    } else if (arg == "--filter" && has_value) {
      options.filter = argv[++i];
    } else {
      std::fputs(kUsage, stderr);
      return arg == "--help" ? 0 : 2;
    }
  }
  options.command = "ops_bench --threads " + std::to_string(options.num_threads);
  if (options.small) options.command += " --small";
  if (!options.isa.empty()) options.command += " --isa " + options.isa;
  const absl::Status status = moesaic::run_ops_bench(options, [](const std::string& line) {
    std::fputs((line + "\n").c_str(), stdout);
    std::fflush(stdout);
  });
  if (status.ok()) return 0;
  std::fputs(("ops_bench: " + std::string(status.message()) + "\n").c_str(), stderr);
  return 1;
}
