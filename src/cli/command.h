// Command: one subcommand of `moesaic`: a name, a sentence, a struct of settings with its declaration, and what runs
// with them. The settings make the command line, --help and its section of docs/settings.md.
#pragma once

#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "base/config_fields.h"

namespace moesaic {

struct Command {
  const char* name;  // may be two words: "bench ops"
  const char* about;
  absl::Status (*run)(const Command& command, const std::vector<std::string>& args);
  std::string (*docs)(const Command& command);
};

template <typename Config, void (*kDeclare)(ConfigFields&, Config&), absl::Status (*kRun)(Config&)>
Command make_command(const char* name, const char* about) {
  const auto run = [](const Command& command, const std::vector<std::string>& args) -> absl::Status {
    Config config;
    ConfigFields fields(str_cat("moesaic ", command.name), command.about);
    kDeclare(fields, config);
    MOESAIC_RETURN_IF_ERROR(fields.parse(args));
    // For answers that repeat how to get them again.
    if constexpr (requires { config.command_line; }) {
      config.command_line = str_cat("moesaic ", command.name, args.empty() ? "" : " ", str_join(args, " "));
    }
    if (!fields.help_wanted()) return kRun(config);
    std::fputs(fields.help().c_str(), stdout);
    return absl::OkStatus();
  };
  const auto docs = [](const Command& command) {
    Config config;
    ConfigFields fields(str_cat("moesaic ", command.name), command.about);
    kDeclare(fields, config);
    return fields.markdown();
  };
  return {name, about, run, docs};
}

Command serve_command();
Command generate_command();
Command eval_command();
Command tokenize_command();
Command inspect_command();
Command bench_ops_command();
Command bench_kernels_command();
Command bench_generate_command();
Command bench_sched_command();
Command bench_experts_command();
Command bench_serve_command();
Command bench_steps_command();
Command simulate_command();

// All of them, in the order of the help.
std::vector<Command> all_commands();
// The text of docs/settings.md.
std::string settings_page();
// The whole program; returns its exit code: 0, 1 on failure, 2 on wrong usage.
int run_cli(const std::vector<std::string>& args);

}  // namespace moesaic
