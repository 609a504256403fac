// The plan commands as a user runs them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/cli_test_util.h"

namespace moesaic {
namespace {

using test::Ran;
using test::run_line;
using ::testing::HasSubstr;
using Json = nlohmann::json;

TEST(Plan, PredictPrintsWhatItPromises) {
  for (const char* args :
       {"--model deepseek-r1 --hardware h200 --phase decode --ep 96 --dp 96 --tp 1 --batch 480 --kv-len 2100 --draft 0 "
        "--acceptance 0.6 --overlap two-batch --balancedness 0.85 --comm deepep --gpus-per-node 8",
        "--model v2-lite --hardware h20 --phase prefill --ep 8 --dp 4 --tp 2 --prompt-len 3000 --chunk-tokens 8192 "
        "--overlap none --comm moesaic",
        "--model kimi-k2 --hardware gb200-nvl72 --ep 64 --batch 64 --comm pplx --overlap dispatch"}) {
    const Ran output = run_line(str_cat("plan predict --json ", args));
    ASSERT_EQ(output.exit_code, 0) << output.err;
    const Json json = Json::parse(output.out);
    EXPECT_GT(json["step_ms"].get<double>(), 0);
    EXPECT_GT(json["tokens_per_s_per_node"].get<double>(), 0);
    EXPECT_TRUE(json["tokens_per_s_per_user"].is_number());
    for (const char* part : {"qkv", "attention", "output", "shared", "experts", "dispatch", "combine", "total"}) {
      EXPECT_GT(json["layer_us"][part].get<double>(), 0) << part;
    }
    EXPECT_GT(json["memory_bytes"]["buffers"]["routed experts"].get<double>(), 0);
    EXPECT_TRUE(json["in_calibrated_range"].is_boolean());
    EXPECT_EQ(json["in_calibrated_range"].get<bool>(), json["out_of_range"].empty());
    EXPECT_EQ(json["in_calibrated_range"].get<bool>(), json.contains("error_of_published_systems"));
  }
}

TEST(Plan, BadInputIsRefusedWithTheArithmetic) {
  const Ran layout = run_line("plan predict --ep 72 --dp 8 --tp 8");
  EXPECT_EQ(layout.exit_code, 2);
  EXPECT_THAT(layout.err, HasSubstr("8 x tp_size 8 = 64"));
  EXPECT_THAT(run_line("plan predict --ep 288").err, HasSubstr("256 experts and 0 redundant ones = 256"));
  EXPECT_THAT(run_line("plan predict --hardware h199").err,
              HasSubstr("known: b200, gb200-nvl72, h100, h20, h200, h800"));
  EXPECT_THAT(run_line("plan predict --model deepseek-v9").err, HasSubstr("did you mean deepseek-v"));
  EXPECT_THAT(run_line("plan predict --batch 0").err, HasSubstr("--batch"));
  EXPECT_THAT(run_line("plan predict --phase prefill --prompt-len 10 --cached-len 10").err, HasSubstr("cached_len 10"));
  EXPECT_THAT(run_line("plan predict --kernels /nowhere.json").err, HasSubstr("/nowhere.json"));
  EXPECT_THAT(run_line("plan deploy --ep 8,x").err, HasSubstr("found x"));
  EXPECT_THAT(run_line("plan deploy --hardware h100 --ep 8").err, HasSubstr("of 80 GB"));
  EXPECT_THAT(run_line("plan predcit").err, HasSubstr("did you mean moesaic plan predict?"));
}

TEST(Plan, DeployWritesSettingsThatServeKnows) {
  const Ran output =
      run_line("plan deploy --json --requests-per-s 500 --input-len 3000 --output-len 300 --ep 32,64,72");
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const Json json = Json::parse(output.out);
  const std::string known = serve_command().docs(serve_command());
  for (const char* phase : {"decode", "prefill"}) {
    EXPECT_GE(json[phase]["instances"].get<int>(), 1);
    EXPECT_FALSE(json[phase]["neighbours"].empty());
    std::istringstream lines(json["serve_config"][phase].get<std::string>());
    int num_settings = 0;
    for (std::string line; std::getline(lines, line);) {
      if (line.empty() || line[0] == '#') continue;
      ++num_settings;
      EXPECT_THAT(known, HasSubstr(str_cat("`--", line.substr(0, line.find(' ')), "`")));
    }
    EXPECT_GE(num_settings, 8);
  }
  EXPECT_EQ(json["frontiers"].size(), 3u);
  EXPECT_THAT(run_line("plan deploy --ep 64").out, HasSubstr("what binds"));
}

TEST(Plan, ValidatePrintsBothSetsApart) {
  const Json json = Json::parse(run_line("plan validate --json").out);
  EXPECT_EQ(json["calibration"]["all"]["rows"].get<size_t>(), json["calibration"]["rows"].size());
  EXPECT_LT(json["other"]["in_range"]["mean_abs_error"].get<double>(), 0.08);
  EXPECT_THAT(run_line("plan validate").out, HasSubstr("SGLang: decode"));
}

TEST(Plan, RooflineOfAMeasuredTable) {
  const std::string table = ::testing::TempDir() + "kernels.json", svg = ::testing::TempDir() + "roofline.svg";
  std::ofstream(table)
      << R"({"rows": [{"op": "gemm_dense", "m": 2, "n": 7168, "k": 16384, "dtype": "fp8", "us": 40}]})";
  const Ran output = run_line(str_cat("plan roofline --json --kernels ", table, " --svg ", svg));
  ASSERT_EQ(output.exit_code, 0) << output.err;
  const Json json = Json::parse(output.out);
  int num_measured = 0;
  for (const Json& row : json["rows"]) num_measured += row["kind"] == "measured" ? 1 : 0;
  EXPECT_EQ(num_measured, 1);
  std::ifstream file(svg);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr("measured</title>"));
}

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Plan, ReportsAreWrittenAsPageAndJson) {
  const std::string path = ::testing::TempDir() + "plan_report";
  for (const std::string line : {"plan deploy --ep 64,72", "plan roofline --hardware h20", "plan validate"}) {
    ASSERT_EQ(run_line(str_cat(line, " --report ", path, ".html")).exit_code, 0) << line;
    EXPECT_THAT(text_of(path + ".html"), HasSubstr(str_cat("moesaic ", line, " --report"))) << line;
    ASSERT_EQ(run_line(str_cat(line, " --report ", path, ".json")).exit_code, 0) << line;
    EXPECT_FALSE(Json::parse(text_of(path + ".json"))["sections"].empty()) << line;
    EXPECT_EQ(run_line(str_cat(line, " --report /nowhere/x.html")).exit_code, 1) << line;
  }
}

TEST(Plan, ReportOfErrorsKeepsTheSetsApart) {
  const std::string path = ::testing::TempDir() + "errors.json";
  const Json printed = Json::parse(run_line(str_cat("plan validate --json --report ", path)).out);
  const Json sections = Json::parse(text_of(path))["sections"];
  ASSERT_EQ(sections.size(), 2u);
  for (const Json& section : sections) {
    const Json& rows = printed[section["title"].get<std::string>()]["rows"];
    const Json& shown = section["tables"][1]["rows"];
    ASSERT_EQ(shown.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(shown[i][2], rows[i]["published"]);
      EXPECT_EQ(shown[i][3], rows[i]["predicted"]);
    }
  }
}

}  // namespace
}  // namespace moesaic
