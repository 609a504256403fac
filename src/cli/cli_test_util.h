// Runs the program in this process, as the shell would. Tests only.
#pragma once

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "cli/command.h"

namespace moesaic::test {

struct Ran {
  int exit_code;
  std::string out;
  std::string err;
};

inline Ran run(const std::vector<std::string>& args) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int exit_code = run_cli(args);
  return {exit_code, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

// Words separated by spaces.
inline Ran run_line(const std::string& line) {
  std::istringstream words(line);
  std::vector<std::string> args;
  for (std::string word; words >> word;) args.push_back(word);
  return run(args);
}

}  // namespace moesaic::test
