#include <fstream>

#include "base/thread.h"
#include "cli/command.h"
#include "kernels/kernel_table.h"

namespace moesaic {
namespace {

struct BenchKernelsConfig {
  std::string out;
  KernelTableOptions table;
};

void declare(ConfigFields& fields, BenchKernelsConfig& config) {
  config.table.num_threads = 0;
  fields.add("out", &config.out)
      .required()
      .doc("File for the table: time by operation and shape, device, clocks (JSON)");
  fields.add("threads", &config.table.num_threads)
      .alias("t")
      .range(0, 1024)
      .default_text("one a CPU")
      .doc("Threads, where the table is the CPU's");
  fields.add("small", &config.table.small).doc("A few small shapes, where the table is the CPU's");
}

absl::Status run(BenchKernelsConfig& config) {
  if (config.table.num_threads == 0) config.table.num_threads = num_cpus();
  std::ofstream file(config.out);  // before the work: a wrong path is known at once
  if (!file) return absl::NotFoundError(str_cat("cannot write ", config.out, " (--out)"));
  MOESAIC_ASSIGN_OR_RETURN(const KernelTable table, measure_kernel_table(config.table, [](const std::string& line) {
                             std::fputs(str_cat(line, "\n").c_str(), stdout);
                             std::fflush(stdout);
                           }));
  file << to_json(table);
  file.close();
  if (!file) return absl::DataLossError(str_cat("writing ", config.out, " failed (--out)"));
  return absl::OkStatus();
}

}  // namespace

Command bench_kernels_command() {
  return make_command<BenchKernelsConfig, declare, run>(
      "bench kernels", "Measures the operations of this build's device and writes the table that plans are made from.");
}

}  // namespace moesaic
