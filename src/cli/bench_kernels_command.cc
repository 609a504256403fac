#include <filesystem>
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
  // Before the work, so that a wrong path is known at once; a table that is there stays until there is a new one.
  const bool is_new = !std::filesystem::exists(config.out);
  if (!std::ofstream(config.out, std::ios::app)) {
    return absl::NotFoundError(str_cat("cannot write ", config.out, " (--out)"));
  }
  const auto table = measure_kernel_table(config.table, [](const std::string& line) {
    std::fputs(str_cat(line, "\n").c_str(), stdout);
    std::fflush(stdout);
  });
  if (!table.ok()) {
    if (is_new) std::filesystem::remove(config.out);
    return table.status();
  }
  std::ofstream file(config.out);
  file << to_json(*table);
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
