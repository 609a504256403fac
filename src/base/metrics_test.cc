#include "base/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/thread.h"

namespace moesaic {
namespace {

TEST(Metrics, WritesThePrometheusTextForm) {
  MetricsRegistry registry(MetricLabels{{"model_name", "a\"b\\c\nd"}});
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

TEST(Metrics, AdvanceToNeverGoesBack) {
  Counter counter;
  counter.advance_to(5);
  counter.advance_to(3);
  EXPECT_EQ(counter.value(), 5);
}

}  // namespace
}  // namespace moesaic
