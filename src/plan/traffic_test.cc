#include "plan/traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace moesaic {
namespace {

using testing::HasSubstr;

absl::Status trace_error(std::string_view lines) {
  return parse_trace(lines, 100).status();
}

TEST(Traffic, ReadsATrace) {
  const auto requests = parse_trace(
      "{\"time\": 0, \"input\": 5, \"output\": 2}\n\n"
      "{\"time\": 1.5, \"input\": 9, \"output\": 1, \"prefix\": 3}\r\n"
      "{\"time\": 1.5, \"input\": 9, \"output\": 1, \"prefix\": 3, \"prefix_tokens\": 4}",
      100);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[0].prefix_id, -1);
  EXPECT_EQ((*requests)[1].due_ns, 1'500'000'000);
  EXPECT_EQ((*requests)[1].num_prefix, 9);
  EXPECT_EQ((*requests)[2].num_prefix, 4);
  EXPECT_EQ(parse_trace("{\"time\": 0, \"input\": 5, \"output\": 2}\nnot read", 1)->size(), 1u);
}

TEST(Traffic, BadLinesNameLineAndField) {
  const std::string good = "{\"time\": 1, \"input\": 5, \"output\": 2}\n";
  const auto expect = [&](const std::string& line, const std::string& field) {
    const absl::Status status = trace_error(good + line);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr("line 2")) << line;
    EXPECT_THAT(std::string(status.message()), HasSubstr(field)) << line;
  };
  expect("{\"time\": 2, \"input\": 5}", "\"output\": expected an integer from 1");
  expect("{\"time\": 2, \"input\": 0, \"output\": 1}", "\"input\": expected an integer from 1 to 16777216, found 0");
  expect("{\"time\": 2, \"input\": 1.5, \"output\": 1}", "\"input\"");
  expect("{\"time\": 2, \"input\": 99999999999999999999, \"output\": 1}", "\"input\"");
  expect("{\"time\": \"2\", \"input\": 5, \"output\": 1}", "\"time\"");
  expect("{\"time\": -1, \"input\": 5, \"output\": 1}", "\"time\"");
  expect("{\"time\": 1e300, \"input\": 5, \"output\": 1}", "\"time\"");
  expect("{\"time\": 0.5, \"input\": 5, \"output\": 1}", "\"time\": 0.5 is before");
  expect("{\"time\": 2, \"input\": 5, \"output\": 1, \"prefix\": -1}", "\"prefix\"");
  expect("{\"time\": 2, \"input\": 5, \"output\": 1, \"prefix\": 1, \"prefix_tokens\": 6}", "\"prefix_tokens\"");
  expect("{\"time\": 2, \"input\": 5, \"output\": 1, \"prefix_tokens\": 2}", "\"prefix\"");
  expect("{\"time\": 2, \"input\": 5, \"output\": 1, \"prefx\": 2}", "\"prefx\"; known are");
  expect("{\"time\": 2, \"input\": 5, \"output\": 1", "JSON object");
  expect("[1]", "JSON object");
  expect("\xff\xfe", "JSON object");
  EXPECT_FALSE(trace_error("\n\n").ok());
}

TEST(Traffic, ATraceOfTrafficIsThatTraffic) {
  const std::vector<TrafficRequest> made = make_traffic({.num_prompts = 500,
                                                         .arrivals = {.request_rate = 3, .burstiness = 0.5, .seed = 9},
                                                         .input_len = 100,
                                                         .output_len = 20,
                                                         .range_ratio = 0.5,
                                                         .num_prefixes = 4,
                                                         .prefix_len = 64});
  std::string lines;
  for (const TrafficRequest& request : made) lines += trace_line(request);
  const auto read = parse_trace(lines, 1000);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), made.size());
  for (size_t i = 0; i < made.size(); ++i) {
    EXPECT_EQ((*read)[i].due_ns, made[i].due_ns);
    EXPECT_EQ((*read)[i].num_input, made[i].num_input);
    EXPECT_EQ((*read)[i].num_output, made[i].num_output);
    EXPECT_EQ((*read)[i].prefix_id, made[i].prefix_id);
    EXPECT_EQ((*read)[i].num_prefix, made[i].num_prefix);
    EXPECT_GE(made[i].num_input, 64 + 50);
    EXPECT_LE(made[i].num_input, 64 + 150);
  }
}

TEST(Traffic, PromptsShareTheirPrefixAndNothingElse) {
  const TrafficRequest a{.num_input = 100, .prefix_id = 5, .num_prefix = 40},
      b{.num_input = 60, .prefix_id = 5, .num_prefix = 60};
  const std::vector<int32_t> first = prompt_tokens(a, 0, 1, 256), second = prompt_tokens(b, 1, 1, 256);
  ASSERT_EQ(first.size(), 100u);
  ASSERT_EQ(second.size(), 60u);
  EXPECT_TRUE(std::equal(first.begin(), first.begin() + 40, second.begin()));
  EXPECT_FALSE(std::equal(first.begin() + 40, first.begin() + 60, second.begin() + 40));
  EXPECT_EQ(prompt_tokens(a, 0, 1, 256), first);
  EXPECT_NE(prompt_tokens(a, 1, 1, 256), first);
  EXPECT_NE(prompt_tokens(a, 0, 2, 256), first);
  for (const int32_t id : prompt_tokens(a, 0, 1, 2)) EXPECT_TRUE(id == 0 || id == 1);
}

}  // namespace
}  // namespace moesaic
