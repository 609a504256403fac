#include "cli/plan_command.h"

namespace moesaic {

// One line each, so that additions do not collide.
std::vector<Command> plan_commands() {
  return {
      plan_predict_command(),  //
      plan_day_command(),
      plan_validate_command(),  //
  };
}

}  // namespace moesaic
