// Metrics: counters, gauges and histograms with the Prometheus text form. Families are registered once, before the
// threads start; the cells are atomic, so any thread may update them without a lock; text() may run at any time.
// A family may carry several names (dashboards of SGLang and vLLM read different ones): each is written out in full.
//
//   Counter& tokens = registry.counter({"sglang:prompt_tokens_total", "vllm:prompt_tokens_total"}, "Prompt tokens.");
//   tokens.add(17);
//
// Names and labels follow Prometheus' rules, counters end in _total, no other family does, and no two cells of a family
// have the same labels (CHECK).
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moesaic {

using MetricLabels = std::vector<std::pair<std::string, std::string>>;

class Counter {
 public:
  void add(int64_t amount = 1) { value_.fetch_add(amount, std::memory_order_relaxed); }
  // For totals that someone else counts; never goes back.
  void advance_to(int64_t total);
  int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> value_{0};
};

class Gauge {
 public:
  void set(double value) { value_.store(value, std::memory_order_relaxed); }
  double value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<double> value_{0.0};
};

class Histogram {
 public:
  explicit Histogram(std::vector<double> upper_bounds);  // ascending; +Inf is added
  void observe(double value, int64_t times = 1);
  int64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  friend class MetricsRegistry;
  std::vector<double> upper_bounds_;
  std::unique_ptr<std::atomic<int64_t>[]> buckets_;  // [upper_bounds + 1], not cumulative
  std::atomic<int64_t> count_{0};
  std::atomic<double> sum_{0.0};
};

// Things a second, over the last kSeconds whole seconds: for gauges of throughput. One thread adds, any thread reads.
class RateWindow {
 public:
  static constexpr int64_t kSeconds = 10;
  void add(int64_t now_ns, int64_t amount);
  int64_t sum(int64_t now_ns) const;
  double per_second(int64_t now_ns) const { return static_cast<double>(sum(now_ns)) / kSeconds; }

 private:
  struct Slot {
    std::atomic<int64_t> second{-1};
    std::atomic<int64_t> amount{0};
  };
  Slot slots_[kSeconds + 2];  // the second that fills, and one to spare for readers
};

class MetricsRegistry {
 public:
  // The labels that every sample of a family gets whose name begins with `name_begin` (empty: all families).
  struct CommonLabels {
    std::string name_begin;
    MetricLabels labels;
  };
  explicit MetricsRegistry(std::vector<CommonLabels> common_labels = {}) : common_labels_(std::move(common_labels)) {}

  // References stay valid as long as the registry. The same names with other labels add a cell to the family.
  Counter& counter(const std::vector<std::string>& names, std::string_view help, MetricLabels labels = {});
  Gauge& gauge(const std::vector<std::string>& names, std::string_view help, MetricLabels labels = {});
  Histogram& histogram(const std::vector<std::string>& names, std::string_view help, std::vector<double> upper_bounds,
                       MetricLabels labels = {});
  // Prometheus text exposition format 0.0.4: each family once, HELP and TYPE before its samples.
  std::string text() const;

 private:
  enum class Kind : uint8_t { kCounter, kGauge, kHistogram };
  struct Cell {
    MetricLabels labels;
    std::unique_ptr<Counter> counter;
    std::unique_ptr<Gauge> gauge;
    std::unique_ptr<Histogram> histogram;
  };
  struct Family {
    Kind kind;
    std::vector<std::string> names;
    std::string help;
    std::vector<Cell> cells;
  };
  Cell& add_cell(Kind kind, const std::vector<std::string>& names, std::string_view help, MetricLabels labels);
  void append_cell(std::string& out, const std::string& name, const Cell& cell) const;

  std::vector<CommonLabels> common_labels_;
  std::vector<std::unique_ptr<Family>> families_;
};

}  // namespace moesaic
