// The subcommands of `moesaic plan`: one file each (plan_*.cc). A new one is declared here and listed in
// plan_command.cc; help, settings page and "did you mean" follow.
#pragma once

#include <vector>

#include "cli/command.h"

namespace moesaic {

Command plan_predict_command();
Command plan_roofline_command();
Command plan_deploy_command();
Command plan_experts_command();
Command plan_day_command();
Command plan_validate_command();

// All of them, in the order of the help.
std::vector<Command> plan_commands();

}  // namespace moesaic
