#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/metrics_test_util.h"
#include "base/strings.h"
#include "base/thread.h"

namespace moesaic {
namespace {

TEST(Metrics, WritesThePrometheusTextForm) {
  MetricsRegistry registry({{"", {{"model_name", "a\"b\\c\nd"}}}});
  registry.counter({"x_total", "y_total"}, "Two names.\nOne cell.").add(3);
  registry.gauge({"g"}, "A gauge.", {{"kind", "free"}}).set(0.25);
  registry.gauge({"g"}, "A gauge.", {{"kind", "used"}}).set(2);
  Histogram& seconds = registry.histogram({"h_seconds"}, "A histogram.", {0.1, 1});
  for (const double value : {0.05, 0.1, 0.5, 7.0}) seconds.observe(value);
  const std::string label = R"(model_name="a\"b\\c\nd")";
  EXPECT_EQ(registry.text(), "# HELP x_total Two names.\\nOne cell.\n# TYPE x_total counter\nx_total{" + label +
                                 "} 3\n"
                                 "# HELP y_total Two names.\\nOne cell.\n# TYPE y_total counter\ny_total{" +
                                 label +
                                 "} 3\n"
                                 "# HELP g A gauge.\n# TYPE g gauge\ng{" +
                                 label + ",kind=\"free\"} 0.25\ng{" + label +
                                 ",kind=\"used\"} 2\n"
                                 "# HELP h_seconds A histogram.\n# TYPE h_seconds histogram\n"
                                 "h_seconds_bucket{" +
                                 label + ",le=\"0.1\"} 2\nh_seconds_bucket{" + label +
                                 ",le=\"1\"} 3\nh_seconds_bucket{" + label + ",le=\"+Inf\"} 4\nh_seconds_sum{" + label +
                                 "} 7.65\nh_seconds_count{" + label + "} 4\n");
}

TEST(Metrics, CountsFromManyThreads) {
  MetricsRegistry registry;
  Counter& counter = registry.counter({"c_total"}, "Count.");
  Histogram& histogram = registry.histogram({"h"}, "Values.", {1, 2, 3});
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back("adder", [&] {
        for (int i = 0; i < 10000; ++i) {
          counter.add();
          histogram.observe(i % 5);
        }
      });
    }
    for (int i = 0; i < 50; ++i) EXPECT_FALSE(registry.text().empty());
  }
  EXPECT_EQ(counter.value(), 40000);
  EXPECT_EQ(histogram.count(), 40000);
  EXPECT_THAT(registry.text(), testing::HasSubstr("h_bucket{le=\"2\"} 24000\n"));
  EXPECT_THAT(registry.text(), testing::HasSubstr("h_sum 80000\n"));
}

TEST(Metrics, ReadBackByAStrictReader) {
  const std::string model = "a\"b\\c\nd";
  MetricsRegistry registry({{"", {{"model_name", model}}}, {"vllm:", {{"engine", "0"}}}});
  registry.counter({"sglang:n_total", "vllm:m_total"}, "Things.\nMany.").add(1234567890123);
  registry.counter({"vllm:ended_total"}, "Ends.", {{"reason", "stop"}}).add(2);
  registry.counter({"vllm:ended_total"}, "Ends.", {{"reason", "abort"}});
  Histogram& seconds = registry.histogram({"sglang:s_seconds", "vllm:s_seconds"}, "Times.", {0.001, 0.25, 1});
  for (const double value : {0.0005, 0.25, 0.3, 99.0}) seconds.observe(value, 3);
  const auto read = parse_metrics(registry.text());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->size(), 5);
  EXPECT_EQ(metric_value(*read, "vllm:m_total", {{"model_name", model}, {"engine", "0"}}), 1234567890123);
  EXPECT_EQ(read->at("sglang:n_total").samples[0].labels.count("engine"), 0);
  EXPECT_EQ(metric_value(*read, "vllm:ended_total", {{"reason", "stop"}}), 2);
  EXPECT_EQ(metric_value(*read, "vllm:ended_total", {{"reason", "abort"}}), 0);
  EXPECT_EQ(metric_value(*read, "vllm:s_seconds_bucket", {{"le", "0.25"}}), 6);
  EXPECT_EQ(metric_value(*read, "vllm:s_seconds_bucket", {{"le", "+Inf"}}), 12);
  EXPECT_NEAR(metric_value(*read, "sglang:s_seconds_sum"), 3 * (0.0005 + 0.25 + 0.3 + 99.0), 1e-9);
}

// The reader itself must be able to fail.
TEST(Metrics, TheStrictReaderRefusesWhatServersRefuse) {
  const std::string head = "# HELP a_total A.\n# TYPE a_total counter\n";
  EXPECT_TRUE(parse_metrics(head + "a_total{x=\"1\"} 1\n").ok());
  const std::string histogram = "# HELP h H.\n# TYPE h histogram\n";
  const std::string good = "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n";
  EXPECT_TRUE(parse_metrics(histogram + good).ok());
  for (const std::string& text :
       {std::string("a_total 1\n"), head + "a_total 1", head + "a_total -1\n", head + "a_total x\n",
        head + "a_total{x=\"1\",x=\"2\"} 1\n", head + "a_total{x=\"\\q\"} 1\n", head + "a_total 1\na_total 2\n",
        head + "a_total{1x=\"1\"} 1\n", head + head + "a_total 1\n", head + "b_total 1\n", head,
        std::string("# HELP a A.\n# TYPE a counter\na 1\n"), histogram + "h_bucket{le=\"1\"} 1\nh_sum 3\nh_count 1\n",
        histogram + "h_bucket{le=\"1\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
        histogram + "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 3\n",
        histogram + "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_count 2\n"}) {
    EXPECT_FALSE(parse_metrics(text).ok()) << text;
  }
}

TEST(Metrics, RateWindowHoldsTheLastWholeSeconds) {
  constexpr int64_t kSecond = 1'000'000'000;
  RateWindow window;
  EXPECT_EQ(window.sum(0), 0);
  for (int64_t second = 0; second < 100; ++second) {
    window.add(second * kSecond + 5, 3);
    window.add(second * kSecond + kSecond - 1, second);
    int64_t want = 0;  // the second that fills does not count
    for (int64_t s = std::max<int64_t>(second - RateWindow::kSeconds, 0); s < second; ++s) want += 3 + s;
    ASSERT_EQ(window.sum(second * kSecond + kSecond - 1), want) << second;
  }
  EXPECT_EQ(window.sum((99 + RateWindow::kSeconds) * kSecond), 3 + 99);
  EXPECT_EQ(window.sum((100 + RateWindow::kSeconds) * kSecond), 0);
}

TEST(Metrics, AdvanceToNeverGoesBack) {
  Counter counter;
  counter.advance_to(5);
  counter.advance_to(3);
  EXPECT_EQ(counter.value(), 5);
}

}  // namespace
}  // namespace moesaic
