#include "engine/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "engine/engine_test_util.h"

namespace moesaic {
namespace {

using Json = nlohmann::json;

Json parsed(const absl::StatusOr<std::string>& trace) {
  EXPECT_TRUE(trace.ok()) << trace.status();
  const Json json = trace.ok() ? Json::parse(*trace, nullptr, /*allow_exceptions=*/false) : Json();
  EXPECT_TRUE(json.is_object() && json["traceEvents"].is_array()) << (trace.ok() ? trace->substr(0, 500) : "");
  return json;
}

// Spans by name, of one request or of the steps; begins and ends must pair up.
using Spans = std::multimap<std::string, std::pair<double, double>>;

std::map<int64_t, Spans> request_spans(const Json& trace) {
  std::map<int64_t, Spans> spans;
  std::map<int64_t, std::vector<std::pair<std::string, double>>> open;
  for (const Json& event : trace["traceEvents"]) {
    if (event["pid"] != 2 || event["ph"] == "M") continue;
    const auto id = event["id"].get<int64_t>();
    const auto name = event["name"].get<std::string>();
    const double at = event["ts"].get<double>();
    if (event["ph"] == "n") spans[id].emplace(name, std::pair(at, at));
    if (event["ph"] == "b") open[id].emplace_back(name, at);
    if (event["ph"] != "e") continue;
    EXPECT_FALSE(open[id].empty());
    EXPECT_EQ(open[id].back().first, name) << id;
    EXPECT_LE(open[id].back().second, at) << name;
    spans[id].emplace(name, std::pair(open[id].back().second, at));
    open[id].pop_back();
  }
  for (const auto& [id, names] : open) EXPECT_TRUE(names.empty()) << id;
  return spans;
}

class StepTraceTest : public testing::Test {
 protected:
  StepTraceTest() : engine(options, std::make_unique<FakeExecutor>(options), nullptr, real_clock()) {}

  void submit(RequestId first, RequestId last) {
    for (RequestId id = first; id <= last; ++id) {
      Request request = make_request(id, make_prompt(id, 20), 20);
      request.ignore_eos = true;
      ASSERT_TRUE(engine.submit(std::move(request), collector.sink()).ok());
    }
  }

  EngineOptions options = small_options();
  Collector collector;
  Engine engine;
};

TEST_F(StepTraceTest, ShowsStepsAndRequestsThatFitTogether) {
  ASSERT_TRUE(engine.start_profile().ok());
  submit(1, 8);
  collector.wait(8);
  const EngineStats stats = engine.stats();
  ASSERT_GT(stats.preemptions_total, 0);
  const Json trace = parsed(engine.stop_profile());
  EXPECT_EQ(trace["otherData"]["dropped_events"], 0);

  int64_t num_steps = 0, prompt_tokens = 0;
  double phases = 0.0, steps = 0.0;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X") continue;
    ASSERT_GE(event["dur"].get<double>(), 0.0);
    const bool is_step = event["name"] == "step";
    (is_step ? steps : phases) += event["dur"].get<double>();
    num_steps += is_step ? 1 : 0;
    if (is_step) prompt_tokens += event["args"]["prompt_tokens"].get<int64_t>();
  }
  EXPECT_GE(num_steps, stats.steps_total - 1);  // stop() may come before the end of the last one
  EXPECT_NEAR(phases, steps, 1e-3 * static_cast<double>(num_steps) * 4);
  EXPECT_GE(prompt_tokens, 8 * 20);  // preempted ones again

  size_t preemptions = 0;
  const auto requests = request_spans(trace);
  EXPECT_EQ(requests.size(), 8);
  for (const auto& [id, spans] : requests) {
    const auto one = [&](const std::string& name) {
      EXPECT_EQ(spans.count(name), 1) << id << " " << name;
      return spans.find(name)->second;
    };
    const auto whole = one(str_cat("request ", id));
    const auto queued = one("queued");
    const auto decode = one("decode");
    EXPECT_EQ(whole.first, queued.first);
    EXPECT_LE(queued.second, decode.first);
    EXPECT_EQ(decode.second, whole.second);
    EXPECT_EQ(one("end").first, whole.second);
    EXPECT_GE(spans.count("prefill"), 1);
    preemptions += spans.count("preempted");
  }
  EXPECT_EQ(preemptions, stats.preemptions_total);
}

TEST_F(StepTraceTest, StartsAndStopsOnceAndHoldsNothingOld) {
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.stop_profile().status()));
  ASSERT_TRUE(engine.start_profile().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine.start_profile()));
  submit(1, 2);
  collector.wait(2);
  EXPECT_EQ(request_spans(parsed(engine.stop_profile())).size(), 2);
  submit(3, 4);
  collector.wait(4);
  ASSERT_TRUE(engine.start_profile().ok());
  EXPECT_TRUE(request_spans(parsed(engine.stop_profile())).empty());
}

// Cut anywhere, the trace stays one that pairs up.
TEST_F(StepTraceTest, AnyCutIsWhole) {
  submit(1, 60);
  for (int cut = 0; cut < 40; ++cut) {
    ASSERT_TRUE(engine.start_profile().ok());
    collector.wait(cut);
    request_spans(parsed(engine.stop_profile()));
  }
  collector.wait(60);
}

TEST(StepTrace, TheBufferIsBounded) {
  StepTrace trace(real_clock(), /*max_events=*/10);
  ASSERT_TRUE(trace.start().ok());
  for (RequestId id = 1; id <= 25; ++id) trace.admitted(id, {.queued_ns = 1, .admitted_ns = real_clock().now_ns()});
  const Json json = parsed(trace.stop());
  EXPECT_EQ(json["otherData"]["dropped_events"], 15);
  EXPECT_EQ(request_spans(json).size(), 10);
}

}  // namespace
}  // namespace moesaic
