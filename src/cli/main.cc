#include <csignal>
#include <exception>

#include "cli/command.h"

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a client or pipe that is gone is an error of the write, not the end of the process
  try {
    return moesaic::run_cli({argv + 1, argv + argc});
  } catch (const std::exception& error) {  // out of memory
    std::fputs(moesaic::str_cat("moesaic: ", error.what(), "\n").c_str(), stderr);
    return 1;
  }
}
