#include "cli/command.h"

#include <algorithm>

#include "base/log.h"
#include "cli/plan_command.h"

namespace moesaic {
namespace {

constexpr char kVersion[] = "moesaic 0.1.0\n";
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;

std::string overview() {
  std::string out = "usage: moesaic COMMAND [settings]\n\n";
  for (const Command& command : all_commands()) {
    out +=
        str_cat("  ", command.name, std::string(16 - std::string_view(command.name).size(), ' '), command.about, "\n");
  }
  return out + "\nmoesaic COMMAND --help shows the settings of a command; docs/settings.md lists them all.\n";
}

int fail(std::string_view message, int exit_code) {
  std::fputs(str_cat("moesaic: ", message, "\n").c_str(), stderr);
  return exit_code;
}

int fail_unknown(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : all_commands()) names.push_back(command.name);
  const std::string match = closest_match(name, names);
  const std::string hint =
      match.empty() ? std::string("see moesaic --help") : str_cat("did you mean moesaic ", match, "?");
  return fail(str_cat("unknown command ", name, "; ", hint), kExitUsage);
}

int run_command(const Command& command, const std::vector<std::string>& args) {
  const absl::Status status = command.run(command, args);
  log_flush();
  if (std::fflush(stdout) != 0) return fail("cannot write to standard output", kExitFailure);
  if (status.ok()) return 0;
  const bool is_usage = status.code() == absl::StatusCode::kInvalidArgument;
  return fail(str_cat(command.name, ": ", status.message()), is_usage ? kExitUsage : kExitFailure);
}

}  // namespace

std::vector<Command> all_commands() {
  std::vector<Command> commands = {serve_command(),         generate_command(),       eval_command(),
                                   tokenize_command(),      inspect_command(),        bench_ops_command(),
                                   bench_kernels_command(), bench_generate_command(), bench_sched_command(),
                                   bench_experts_command(), bench_serve_command(),    bench_steps_command(),
                                   simulate_command()};
  for (const Command& command : plan_commands()) commands.push_back(command);
  return commands;
}

std::string settings_page() {
  std::string out =
      "# Settings\n\n"
      "Every command reads its settings from the command line (`--name value` or `--name=value`) and from the TOML "
      "file\n"
      "that `--config` names (`name = value`); flags win. `moesaic COMMAND --help` shows the same. This page is made "
      "by\n"
      "`moesaic settings-page` and checked by a test.\n";
  for (const Command& command : all_commands()) out += str_cat("\n", command.docs(command));
  return out;
}

int run_cli(const std::vector<std::string>& args) {
  if (args.empty()) {
    std::fputs(overview().c_str(), stderr);
    return kExitUsage;
  }
  const std::string& first = args[0];
  if (first == "--help" || first == "-h" || first == "help" || first == "--version" || first == "settings-page") {
    const bool is_help = first == "--help" || first == "-h" || first == "help";
    const std::string text = is_help ? overview() : first == "--version" ? std::string(kVersion) : settings_page();
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  const std::string two_words = args.size() > 1 ? str_cat(first, " ", args[1]) : first;
  for (const Command& command : all_commands()) {
    if (first == command.name) return run_command(command, {args.begin() + 1, args.end()});
    if (two_words == command.name) return run_command(command, {args.begin() + 2, args.end()});
  }
  return fail_unknown(first == "bench" || first == "plan" ? two_words : first);
}

}  // namespace moesaic
