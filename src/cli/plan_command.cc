#include "cli/plan_command.h"

namespace moesaic {

std::vector<Command> plan_commands() {
  std::vector<Command> commands;
  commands.push_back(plan_predict_command());
  commands.push_back(plan_roofline_command());
  commands.push_back(plan_deploy_command());
  commands.push_back(plan_experts_command());
  commands.push_back(plan_day_command());
  commands.push_back(plan_validate_command());
  return commands;
}

}  // namespace moesaic
