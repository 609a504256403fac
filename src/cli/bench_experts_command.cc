#include "base/thread.h"
#include "cli/command.h"
#include "plan/experts_bench.h"

namespace moesaic {
namespace {

void declare(ConfigFields& fields, ExpertsBenchOptions& options) {
  options.num_threads = 0;
  fields.add("json", &options.json).doc("One JSON line a figure");
  fields.add("small", &options.small).doc("Few loads");
  fields.add("threads", &options.num_threads).alias("t").range(0, 4096).default_text("one a CPU").doc("Threads");
}

absl::Status run(ExpertsBenchOptions& options) {
  if (options.num_threads == 0) options.num_threads = num_cpus();
  options.command = str_cat("moesaic bench experts --threads ", options.num_threads, options.small ? " --small" : "");
  run_experts_bench(options, [](const std::string& line) {
    std::fputs(str_cat(line, "\n").c_str(), stdout);
    std::fflush(stdout);
  });
  return absl::OkStatus();
}

}  // namespace

Command bench_experts_command() {
  return make_command<ExpertsBenchOptions, declare, run>(
      "bench experts", "Measures expert placement, and compares it with the published algorithm.");
}

}  // namespace moesaic
