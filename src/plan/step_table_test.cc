#include "plan/step_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moesaic {
namespace {

using testing::HasSubstr;

StepTable sample() {
  return {.device = "a machine",
          .model = "tiny",
          .layout = "EP1",
          .num_threads = 2,
          .decode_tokens = {0, 1, 4},
          .prefill_tokens = {0, 100},
          .step_s = {0.0, 1.0, 0.5, 1.5, 1.1, 2.1},
          .decode_pair_s = {0.0, 1e-3, 4e-3},
          .prefill_pair_s = 1e-5,
          .prefill_cached_s = 1e-4,
          .host_step_s = 0.01,
          .host_logit_row_s = 0.001};
}

StepWork work_of(std::vector<GroupWork> groups, std::vector<int64_t> logit_rows) {
  return {.groups = std::move(groups), .logit_rows = std::move(logit_rows)};
}

TEST(StepTable, InterpolatesAndExtrapolates) {
  const StepTable table = sample();
  GroupWork decode;
  for (int i = 0; i < 2; ++i) decode.add_decode(1, 10);
  EXPECT_NEAR(table.step_seconds(work_of({decode}, {2})), 0.7 + 20 * 2e-3 + 0.012, 1e-12);
  GroupWork many;
  for (int i = 0; i < 7; ++i) many.add_decode(1, 10);  // beyond 4, on as between 1 and 4
  EXPECT_NEAR(table.step_seconds(work_of({many}, {7})), 1.7 + 70 * 4e-3 + 0.017, 1e-12);
  GroupWork mixed = decode;
  mixed.add_prefill(50, 30);
  const double pairs = 50 * 30 + 50 * 51 / 2;
  EXPECT_NEAR(table.step_seconds(work_of({mixed}, {2})), 0.7 + 0.5 + 0.04 + pairs * 1e-5 + 30 * 1e-4 + 0.012, 1e-12);
  // Groups run side by side; an idle one costs nothing.
  EXPECT_NEAR(table.step_seconds(work_of({decode, mixed, {}}, {2, 2, 0})), table.step_seconds(work_of({mixed}, {4})),
              1e-12);
}

TEST(StepTable, ReadsWhatItWrites) {
  const auto read = StepTable::parse(sample().to_json());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->to_json(), sample().to_json());
}

TEST(StepTable, RefusesWhatIsBroken) {
  const std::string good = sample().to_json();
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string json = good;
    const size_t at = json.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    json.replace(at, from.size(), to);
    return std::string(StepTable::parse(json).status().message());
  };
  EXPECT_THAT(error_with("\"decode_tokens\":[0,1,4]", "\"decode_tokens\":[0,4,1]"), HasSubstr("\"decode_tokens\""));
  EXPECT_THAT(error_with("\"decode_tokens\":[0,1,4]", "\"decode_tokens\":[0,1]"), HasSubstr("\"step_s\": expected 4"));
  EXPECT_THAT(error_with("\"prefill_cached_s\":0.0001", "\"prefill_cached_s\":-1"), HasSubstr("\"prefill_cached_s\""));
  EXPECT_THAT(error_with("\"decode_pair_s\":[0.0,", "\"decode_pair_s\":["), HasSubstr("\"decode_pair_s\": expected 3"));
  EXPECT_THAT(error_with("\"device\":\"a machine\"", "\"device\":3"), HasSubstr("\"device\""));
  EXPECT_FALSE(StepTable::parse("[]").ok());
  EXPECT_FALSE(StepTable::parse(good.substr(0, good.size() / 2)).ok());
}

}  // namespace
}  // namespace moesaic
