#include "cli/command.h"
#include "sched/sched_bench.h"

namespace moesaic {
namespace {

void declare(ConfigFields& fields, SchedBenchOptions& options) {
  fields.add("json", &options.json).doc("One JSON line a figure");
  fields.add("small", &options.small).doc("Few steps");
}

absl::Status run(SchedBenchOptions& options) {
  if (options.small) options.command += " --small";
  run_sched_bench(options, [](const std::string& line) {
    std::fputs(str_cat(line, "\n").c_str(), stdout);
    std::fflush(stdout);
  });
  return absl::OkStatus();
}

}  // namespace

Command bench_sched_command() {
  return make_command<SchedBenchOptions, declare, run>(
      "bench sched", "Measures the planning of a step and the lookup of a prompt in the prefix cache.");
}

}  // namespace moesaic
