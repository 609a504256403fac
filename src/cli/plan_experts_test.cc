// `plan experts`, `plan day` and `bench experts` as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/cli_test_util.h"

namespace moesaic {
namespace {

using test::Ran;
using test::run_line;
using ::testing::HasSubstr;
using Json = nlohmann::json;

class TempFile {
 public:
  TempFile(const std::string& name, const std::string& text) : path_(::testing::TempDir() + name) {
    std::ofstream(path_) << text;
  }
  ~TempFile() { std::remove(path_.c_str()); }
  const std::string& path() const { return path_; }
  std::string text() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  std::string path_;
};

// A record of DeepSeek-V3's shape whose expert 0 has `hot` tokens.
std::string record(int hot) {
  Json counts = Json::array();
  for (int layer = 0; layer < 61; ++layer) {
    Json row = Json::array();
    for (int e = 0; e < 256; ++e) row.push_back(layer < 3 ? 0 : e == 0 ? hot : 10);
    counts.push_back(std::move(row));
  }
  return Json({{"logical_count", counts}}).dump() + "\n";
}

TEST(PlanExperts, GeneratedLoadsNeedPlacement) {
  TempFile page("experts.html", "");
  const Ran output = run_line("plan experts --phase prefill --json --report " + page.path());
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const Json json = Json::parse(output.out);
  EXPECT_EQ(json["loads"], "simulated");
  EXPECT_EQ(json["ep"], 32);
  ASSERT_EQ(json["layers"].size(), 58u);
  for (const Json& layer : json["layers"]) {
    EXPECT_LT(layer["in"]["natural"].get<double>(), layer["in"]["planned"].get<double>());
    EXPECT_LE(layer["in"]["published"].get<double>(), layer["in"]["planned"].get<double>() + 1e-9);
  }
  EXPECT_THAT(page.text(), HasSubstr("<svg"));
}

TEST(PlanExperts, RecordedCountsAreReplayed) {
  TempFile good("counts.jsonl", record(500) + record(900));
  const Ran output = run_line("plan experts --phase prefill --max-extra-slots 1 --json --recorded " + good.path());
  ASSERT_EQ(output.exit_code, 0) << output.err;
  EXPECT_EQ(Json::parse(output.out)["loads"], "recorded");
  EXPECT_TRUE(Json::parse(output.out)["layers"][0].contains("out"));

  TempFile cut("cut.jsonl", record(500) + record(900).substr(0, 1000));
  const Ran short_file = run_line("plan experts --recorded " + cut.path());
  EXPECT_EQ(short_file.exit_code, 2);
  EXPECT_THAT(short_file.err, HasSubstr("cut.jsonl:2: no JSON object: the file was cut short"));
  const Ran other_model = run_line("plan experts --model kimi-k2 --recorded " + good.path());
  EXPECT_EQ(other_model.exit_code, 2);
  EXPECT_THAT(other_model.err, HasSubstr("counts.jsonl:1: "));
  EXPECT_THAT(other_model.err, HasSubstr("another model"));
}

TEST(PlanDay, PrintsThePublishedTotalsAndThePolicies) {
  const Ran output = run_line("plan day --json");
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const Json json = Json::parse(output.out);
  EXPECT_DOUBLE_EQ(json["totals"]["mean_nodes"].get<double>(), 226.75);
  EXPECT_DOUBLE_EQ(json["totals"]["cost_usd"].get<double>(), 87072);
  EXPECT_NEAR(json["totals"]["income_usd"].get<double>(), 562027, 562);
  EXPECT_NEAR(json["totals"]["margin_percent"].get<double>(), 545, 0.5);
  ASSERT_EQ(json["policies"].size(), 3u);
  EXPECT_EQ(json["policies"][0]["source"], "simulated");
  EXPECT_THAT(run_line("plan day").out, HasSubstr("(simulated)"));
  TempFile bad("day.csv", "hour_utc8,avg_nodes,income_usd,share_of_day\n12:00,x,1,0.04\n");
  EXPECT_THAT(run_line("plan day --day " + bad.path()).err, HasSubstr("day.csv:2: avg_nodes is \"x\""));
}

TEST(BenchExperts, PrintsItsFigures) {
  const Ran output = run_line("bench experts --small --json");
  ASSERT_EQ(output.exit_code, 0) << output.err;
  std::map<std::string, Json> figures;
  std::istringstream lines(output.out);
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line);
    figures[json["name"]] = json;
  }
  EXPECT_GT(figures["experts.plan_ms"]["value"].get<double>(), 0);
  EXPECT_EQ(figures["experts.less_balanced_than_reference"]["value"], 0);
  EXPECT_EQ(figures["experts.stacked_replicas"]["value"], 0);
  EXPECT_LT(figures["experts.moves_ratio"]["value"].get<double>(), 0.5);
}

}  // namespace
}  // namespace moesaic
