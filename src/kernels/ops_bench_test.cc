#include "kernels/ops_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "kernels/cpu/simd.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::vector<std::string> lines_of(const OpsBenchOptions& options) {
  std::vector<std::string> lines;
  EXPECT_TRUE(run_ops_bench(options, [&](const std::string& line) { lines.push_back(line); }).ok());
  return lines;
}

TEST(OpsBench, JsonLinesCarryEveryField) {
  const auto lines =
      lines_of({.json = true, .small = true, .filter = "linear_e4m3", .command = "a \"quoted\" command"});
  ASSERT_FALSE(lines.empty());
  for (const std::string& line : lines) {
    EXPECT_THAT(line, StartsWith("{\"name\":\""));
    for (const char* field : {"value", "unit", "ratio", "baseline", "hash", "command"}) {
      EXPECT_THAT(line, HasSubstr("\"" + std::string(field) + "\":"));
    }
    EXPECT_THAT(line, HasSubstr("a \\\"quoted\\\" command --json --filter "));
  }
}

// Time differs from run to run, results do not: not with threads, not with the instruction set.
TEST(OpsBench, HashesDependOnTheOperationOnly) {
  const auto hashes = [](int threads, const std::string& isa) {
    std::map<std::string, std::string> result;
    for (const std::string& line :
         lines_of({.json = true, .small = true, .num_threads = threads, .filter = "linear_", .isa = isa})) {
      result[line.substr(0, line.find(','))] = line.substr(line.find("\"hash\""), 25);
    }
    return result;
  };
  const auto expected = hashes(1, "plain");
  EXPECT_GT(expected.size(), 6u);
  if (active_isa() == Isa::kAmx) {  // sums in an order of its own
    EXPECT_EQ(hashes(1, "avx512"), expected);
    EXPECT_EQ(hashes(1, ""), hashes(2, ""));
  } else {
    EXPECT_EQ(hashes(1, ""), expected);
    EXPECT_EQ(hashes(2, ""), expected);
  }
}

TEST(OpsBench, NamesTheWrongOption) {
  const auto ignore = [](const std::string&) {};
  EXPECT_THAT(std::string(run_ops_bench({.small = true, .isa = "neon"}, ignore).message()), HasSubstr("found 'neon'"));
  EXPECT_THAT(std::string(run_ops_bench({.small = true, .num_threads = 0}, ignore).message()), HasSubstr("--threads"));
  EXPECT_THAT(std::string(run_ops_bench({.small = true, .filter = "nothing"}, ignore).message()),
              HasSubstr("holds 'nothing'"));
}

}  // namespace
}  // namespace moesaic
