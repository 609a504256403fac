// The parts of `bench serve`: data sets, records, statistics.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "base/strings.h"
#include "cli/load_dataset.h"
#include "cli/load_record.h"
#include "cli/load_report.h"

namespace moesaic {
namespace {

using testing::DoubleNear;
using testing::HasSubstr;

constexpr int64_t kMs = 1'000'000;

TEST(LoadDataset, RandomLengthsAreInTheirRange) {
  const DatasetOptions options{.num_prompts = 500,
                               .seed = 3,
                               .vocab_size = 300,
                               .random_input_len = 20,
                               .random_output_len = 10,
                               .random_range_ratio = 0.5};
  const auto prompts = load_dataset(options);
  ASSERT_TRUE(prompts.ok());
  ASSERT_EQ(prompts->size(), 500);
  std::set<size_t> inputs, outputs;
  for (const LoadPrompt& prompt : *prompts) {
    inputs.insert(prompt.ids.size());
    outputs.insert(prompt.output_len);
    for (const int32_t id : prompt.ids) ASSERT_TRUE(id >= 0 && id < 300) << id;
  }
  EXPECT_EQ(*inputs.begin(), 10);
  EXPECT_EQ(*inputs.rbegin(), 30);
  EXPECT_EQ(*outputs.begin(), 5);
  EXPECT_EQ(*outputs.rbegin(), 15);
  EXPECT_EQ((*load_dataset(options))[7].ids, (*prompts)[7].ids);
  EXPECT_NE((*prompts)[6].ids, (*prompts)[7].ids);
}

TEST(LoadDataset, SharedPrefixesAreShared) {
  const auto prompts = load_dataset({.name = "generated-shared-prefix",
                                     .num_prompts = 12,
                                     .gsp_num_groups = 3,
                                     .gsp_system_prompt_len = 40,
                                     .gsp_question_len = 5,
                                     .gsp_output_len = 9});
  ASSERT_TRUE(prompts.ok());
  std::map<std::vector<int32_t>, int> prefixes;
  std::set<std::vector<int32_t>> whole;
  for (const LoadPrompt& prompt : *prompts) {
    ASSERT_EQ(prompt.ids.size(), 45);
    EXPECT_EQ(prompt.output_len, 9);
    ++prefixes[{prompt.ids.begin(), prompt.ids.begin() + 40}];
    whole.insert(prompt.ids);
  }
  EXPECT_EQ(prefixes.size(), 3);
  for (const auto& [prefix, count] : prefixes) EXPECT_EQ(count, 4);
  EXPECT_EQ(whole.size(), 12);
}

TEST(LoadDataset, CustomAndMooncakeLines) {
  const auto custom = parse_custom("{\"prompt\":\"hi\"}\n\n{\"prompt\":[5,6],\"output_tokens\":3,\"x\":1}\r\n",
                                   {.custom_output_len = 77});
  ASSERT_TRUE(custom.ok()) << custom.status();
  ASSERT_EQ(custom->size(), 2);
  EXPECT_EQ((*custom)[0].text, "hi");
  EXPECT_EQ((*custom)[0].output_len, 77);
  EXPECT_EQ((*custom)[1].ids, (std::vector<int32_t>{5, 6}));
  EXPECT_EQ((*custom)[1].output_len, 3);
  const auto trace = parse_mooncake(
      "{\"timestamp\":1000,\"input_length\":1100,\"output_length\":4,\"hash_ids\":[1,2,3]}\n"
      "{\"timestamp\":1500,\"input_length\":600,\"output_length\":5,\"hash_ids\":[1,2]}\n"
      "{\"timestamp\":4000,\"input_length\":513,\"output_length\":6,\"hash_ids\":[9]}\n",
      {.num_prompts = 3, .mooncake_slowdown_factor = 2.0});
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 3);
  const std::vector<int32_t>& first = (*trace)[0].ids;
  const std::vector<int32_t>& second = (*trace)[1].ids;
  ASSERT_EQ(first.size(), 1100);
  ASSERT_EQ(second.size(), 600);
  EXPECT_TRUE(std::equal(second.begin(), second.end(), first.begin()));
  EXPECT_EQ((*trace)[2].ids.size(), 513);
  EXPECT_NE((*trace)[2].ids[0], first[0]);
  EXPECT_EQ((*trace)[0].due_s, 0.0);
  EXPECT_EQ((*trace)[1].due_s, 1.0);
  EXPECT_EQ((*trace)[2].due_s, 6.0);
  EXPECT_EQ(
      parse_mooncake("{\"timestamp\":0,\"input_length\":1,\"output_length\":1}\n{bad", {.num_prompts = 1})->size(), 1);
  for (const char* bad : {"", "x", "[]", "{}", "{\"prompt\":\"\"}", "{\"prompt\":[]}", "{\"prompt\":[\"a\"]}",
                          "{\"prompt\":\"a\",\"output_tokens\":0}"}) {
    EXPECT_FALSE(parse_custom(bad, {}).ok()) << bad;
  }
  EXPECT_THAT(std::string(parse_custom("{\"prompt\":\"a\"}\n{}", {}).status().message()), HasSubstr("line 2"));
  for (const char* bad :
       {"{\"timestamp\":0,\"input_length\":0,\"output_length\":1}", "{\"input_length\":1,\"output_length\":1}",
        "{\"timestamp\":0,\"input_length\":9,\"output_length\":1,\"hash_ids\":[\"a\"]}"}) {
    EXPECT_FALSE(parse_mooncake(bad, {}).ok()) << bad;
  }
  EXPECT_THAT(std::string(load_dataset({.name = "custom"}).status().message()), HasSubstr("--dataset-path"));
}

TEST(LoadDataset, WordsKeepPrefixes) {
  EXPECT_EQ(words_of({}), "");
  const std::string whole = words_of({200, 201, 202});
  EXPECT_EQ(std::count(whole.begin(), whole.end(), ' '), 2);
  EXPECT_TRUE(whole.starts_with(words_of({200, 201})));
}

RequestRecord record_of(const std::vector<std::pair<std::string, int64_t>>& events, int status = 200,
                        const std::string& body = "", const absl::Status& transport = absl::OkStatus()) {
  StreamRecorder recorder;
  recorder.on_start(10 * kMs);
  for (const auto& [data, ms] : events) recorder.on_event(data, ms * kMs);
  recorder.on_end(transport, status, body);
  return recorder.record();
}

TEST(LoadRecord, CompletionsAndChats) {
  const RequestRecord text = record_of({{R"({"choices":[{"text":"a","finish_reason":null}]})", 20},
                                        {R"({"choices":[{"text":"","finish_reason":null}],"usage":null})", 25},
                                        {R"({"choices":[{"text":"b","finish_reason":"length"}]})", 40},
                                        {R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":5,
                                             "prompt_tokens_details":{"cached_tokens":4}}})",
                                         50},
                                        {"[DONE]", 51}});
  EXPECT_TRUE(text.ok()) << text.error_kind << text.error_message;
  EXPECT_EQ(text.start_ns, 10 * kMs);
  EXPECT_EQ(text.first_ns, 20 * kMs);
  EXPECT_EQ(text.last_ns, 40 * kMs);
  EXPECT_EQ(text.gaps_ns, (std::vector<int64_t>{5 * kMs, 15 * kMs}));
  EXPECT_TRUE(text.has_usage);
  EXPECT_EQ(text.prompt_tokens, 7);
  EXPECT_EQ(text.output_tokens, 5);
  EXPECT_EQ(text.cached_tokens, 4);
  const RequestRecord chat = record_of({{R"({"choices":[{"delta":{"role":"assistant","content":""}}]})", 15},
                                        {R"({"choices":[{"delta":{"reasoning_content":"a"}}]})", 30},
                                        {R"({"choices":[{"delta":{"content":"b"}}]})", 40},
                                        {R"({"choices":[{"delta":{},"finish_reason":"stop"}]})", 60},
                                        {"[DONE]", 61}});
  EXPECT_TRUE(chat.ok());
  EXPECT_EQ(chat.first_ns, 30 * kMs);
  EXPECT_EQ(chat.last_ns, 40 * kMs);
  EXPECT_FALSE(chat.has_usage);
  EXPECT_EQ(chat.output_tokens, 2);
  const RequestRecord mute = record_of({{R"({"choices":[{"text":"","finish_reason":"length"}]})", 15}, {"[DONE]", 16}});
  EXPECT_TRUE(mute.ok());
  EXPECT_EQ(mute.first_ns, 15 * kMs);
}

TEST(LoadRecord, EveryFailureHasItsKind) {
  const std::string piece = R"({"choices":[{"text":"a"}]})";
  EXPECT_EQ(record_of({}, 429, R"({"error":{"message":"the queue is full"}})").error_kind, "http 429");
  EXPECT_EQ(record_of({}, 429, R"({"error":{"message":"the queue is full"}})").error_message, "the queue is full");
  EXPECT_EQ(record_of({}, 502, "<html>").error_message, "<html>");
  EXPECT_EQ(record_of({}, 400, R"({"object":"error","message":"flat"})").error_message, "flat");
  EXPECT_EQ(record_of({{piece, 20}}, 200, "", absl::UnavailableError("reset")).error_kind, "connection");
  EXPECT_EQ(record_of({{piece, 20}}, 200, "", absl::DeadlineExceededError("late")).error_kind, "timeout");
  EXPECT_EQ(record_of({{piece, 20}}).error_kind, "incomplete");
  EXPECT_EQ(record_of({}, 200, "{}").error_kind, "incomplete");
  EXPECT_EQ(record_of({{piece, 20}, {R"({"error":{"message":"boom"}})", 30}, {"[DONE]", 31}}).error_message, "boom");
  EXPECT_EQ(record_of({{"{broken", 20}, {"[DONE]", 31}}).error_kind, "stream");
  EXPECT_EQ(record_of({{"[DONE]", 31}}).error_kind, "empty");
}

TEST(LoadReport, ReadsBoundsAndPercents) {
  const auto slo = parse_slo("ttft:200  tpot:50,e2el:1e3");
  ASSERT_TRUE(slo.ok()) << slo.status();
  EXPECT_EQ(slo->ttft_ms, 200.0);
  EXPECT_EQ(slo->tpot_ms, 50.0);
  EXPECT_EQ(slo->e2el_ms, 1000.0);
  EXPECT_FALSE(parse_slo("")->any());
  for (const char* bad : {"ttft", "ttft:", "ttft:-1", "ttft:x", "itl:3", "ttft:1 ttft:2"}) {
    EXPECT_FALSE(parse_slo(bad).ok()) << bad;
  }
  EXPECT_EQ(*parse_percents("50,99.9"), (std::vector<double>{50.0, 99.9}));
  EXPECT_FALSE(parse_percents("101").ok());
}

RequestRecord made(int64_t start_ms, int64_t first_ms, std::vector<int64_t> gaps_ms, int64_t prompt, int64_t output) {
  RequestRecord record{.start_ns = start_ms * kMs, .first_ns = first_ms * kMs, .last_ns = first_ms * kMs};
  for (const int64_t gap : gaps_ms) {
    record.gaps_ns.push_back(gap * kMs);
    record.last_ns += gap * kMs;
  }
  record.prompt_tokens = prompt;
  record.output_tokens = output;
  record.has_usage = true;
  return record;
}

TEST(LoadReport, FiguresByHand) {
  std::vector<RequestRecord> records = {made(0, 100, {10, 30}, 10, 3), made(50, 450, {}, 20, 1),
                                        made(2000, 2100, {20}, 30, 5)};  // 5 tokens in two pieces
  records.push_back({.start_ns = 60 * kMs, .error_kind = "http 500", .error_message = "boom"});
  records.push_back({.start_ns = 60 * kMs, .error_kind = "http 500", .error_message = "bang"});
  LoadSettings settings{.backend = "openai", .model = "m", .request_rate = INFINITY, .max_concurrency = 4};
  settings.percents = {90, 99};
  settings.slo = {.ttft_ms = 100, .tpot_ms = 10, .e2el_ms = {}};
  const LoadReport report = make_report(settings, records, /*duration_s=*/2.0);
  EXPECT_EQ(report.completed, 3);
  EXPECT_EQ(report.failed, 2);
  EXPECT_EQ(report.errors.at("http 500").count, 2);
  EXPECT_EQ(report.errors.at("http 500").first, "boom");
  EXPECT_EQ(report.total_input_tokens, 60);
  EXPECT_EQ(report.total_output_tokens, 9);
  EXPECT_DOUBLE_EQ(report.request_throughput, 1.5);
  EXPECT_DOUBLE_EQ(report.request_goodput, 0.5);  // the first misses TPOT with 20, the second TTFT
  EXPECT_DOUBLE_EQ(report.output_throughput, 4.5);
  EXPECT_DOUBLE_EQ(report.total_token_throughput, 34.5);
  EXPECT_DOUBLE_EQ(report.ttft_ms.mean, 200.0);
  EXPECT_DOUBLE_EQ(report.tpot_ms.mean, 12.5);  // 20 and 5
  EXPECT_DOUBLE_EQ(report.itl_ms.median, 20.0);
  EXPECT_DOUBLE_EQ(report.e2el_ms.mean, (140.0 + 400.0 + 120.0) / 3);
  EXPECT_DOUBLE_EQ(report.max_output_tokens_per_s, 5.0);
  EXPECT_EQ(report.max_concurrent_requests, 2);
  const std::string table = report_table(report);
  EXPECT_THAT(table, HasSubstr("============ Serving Benchmark Result ============\n"));
  EXPECT_THAT(table, HasSubstr("Successful requests:                     3         \n"));
  EXPECT_THAT(table, HasSubstr("Maximum request concurrency:             4         \n"));
  EXPECT_THAT(table, HasSubstr("Request goodput (req/s):                 0.50      \n"));
  EXPECT_THAT(table, HasSubstr("---------------Time to First Token----------------\n"));
  EXPECT_THAT(table, HasSubstr("Mean TTFT (ms):                          200.00    \n"));
  EXPECT_THAT(table, HasSubstr("P99 ITL (ms):"));
  EXPECT_THAT(table, HasSubstr("2 x http 500; the first: boom\n"));
  EXPECT_THAT(table, testing::Not(HasSubstr("no usage")));
  const auto json = nlohmann::json::parse(report_json(report, records));
  EXPECT_EQ(json["completed"], 3);
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_EQ(json["mean_ttft_ms"], 200.0);
  EXPECT_EQ(json["p90_e2el_ms"], report.e2el_ms.percentiles[0].second);
  EXPECT_EQ(json["error_kinds"]["http 500"]["count"], 2);
  EXPECT_EQ(json["output_lens"], (std::vector<int64_t>{3, 1, 5, 0, 0}));
  EXPECT_DOUBLE_EQ(json["itls"][0][1].get<double>(), 0.03);
  EXPECT_EQ(json["errors"][3], "http 500: boom");
  EXPECT_FALSE(nlohmann::json::parse(report_json(report, {})).contains("itls"));
}

TEST(LoadReport, AnswersWithoutUsageAreSaid) {
  std::vector<RequestRecord> records = {made(0, 100, {10}, 0, 2)};
  records[0].has_usage = false;
  EXPECT_THAT(report_table(make_report({}, records, 1.0)), HasSubstr("1 answers had no usage"));
}

}  // namespace
}  // namespace moesaic
