#include "base/thread.h"
#include "cli/command.h"
#include "kernels/ops_bench.h"

namespace moesaic {
namespace {

void declare(ConfigFields& fields, OpsBenchOptions& options) {
  options.num_threads = 0;
  fields.add("json", &options.json).doc("One JSON line a figure");
  fields.add("small", &options.small).doc("Few shapes, one short repetition");
  fields.add("threads", &options.num_threads).alias("t").range(0, 4096).default_text("one a CPU").doc("Threads");
  fields.add("filter", &options.filter).doc("Only figures whose name holds this text");
  fields.add("isa", &options.isa)
      .choices({"", "plain", "avx2", "avx512"})
      .default_text("the best")
      .doc("Instruction set to measure");
}

absl::Status run(OpsBenchOptions& options) {
  if (options.num_threads == 0) options.num_threads = num_cpus();
  options.command = str_cat("moesaic bench ops --threads ", options.num_threads, options.small ? " --small" : "",
                            options.isa.empty() ? "" : str_cat(" --isa ", options.isa));
  return run_ops_bench(options, [](const std::string& line) {
    std::fputs(str_cat(line, "\n").c_str(), stdout);
    std::fflush(stdout);
  });
}

}  // namespace

Command bench_ops_command() {
  return make_command<OpsBenchOptions, declare, run>("bench ops", "Measures every CPU operation on this machine.");
}

}  // namespace moesaic
