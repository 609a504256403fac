#include "base/metrics.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/strings.h"

namespace moesaic {
namespace {

void append_number(std::string& out, double value) {
  if (std::isnan(value)) {
    out += "NaN";
  } else if (std::isinf(value)) {
    out += value > 0 ? "+Inf" : "-Inf";
  } else {
    out += str_cat(value);
  }
}

void append_escaped(std::string& out, std::string_view text, bool quote) {
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (quote && c == '"')) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
}

void append_label(std::string& out, bool& first, std::string_view name, std::string_view value) {
  out += first ? '{' : ',';
  first = false;
  out += name;
  out += "=\"";
  append_escaped(out, value, /*quote=*/true);
  out += '"';
}

bool is_name(std::string_view text, std::string_view more) {
  const auto fits = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           more.find(c) != std::string_view::npos;
  };
  return !text.empty() && (text[0] < '0' || text[0] > '9') && std::all_of(text.begin(), text.end(), fits);
}

using CommonLabels = std::vector<MetricsRegistry::CommonLabels>;

void append_labels(std::string& out, std::string_view family, const CommonLabels& common, const MetricLabels& own,
                   std::string_view le) {
  bool first = true;
  for (const auto& [name_begin, labels] : common) {
    if (!family.starts_with(name_begin)) continue;
    for (const auto& [name, value] : labels) append_label(out, first, name, value);
  }
  for (const auto& [name, value] : own) append_label(out, first, name, value);
  if (!le.empty()) append_label(out, first, "le", le);
  if (!first) out += '}';
}

}  // namespace

void RateWindow::add(int64_t now_ns, int64_t amount) {
  const int64_t second = now_ns / 1'000'000'000;
  Slot& slot = slots_[second % (kSeconds + 2)];
  if (slot.second.load(std::memory_order_relaxed) != second) {
    slot.amount.store(0, std::memory_order_relaxed);
    slot.second.store(second, std::memory_order_release);
  }
  slot.amount.fetch_add(amount, std::memory_order_relaxed);
}

int64_t RateWindow::sum(int64_t now_ns) const {
  const int64_t now = now_ns / 1'000'000'000;
  int64_t total = 0;
  for (const Slot& slot : slots_) {
    const int64_t second = slot.second.load(std::memory_order_acquire);
    if (second >= 0 && second < now && second >= now - kSeconds) total += slot.amount.load(std::memory_order_relaxed);
  }
  return total;
}

void Counter::advance_to(int64_t total) {
  int64_t seen = value_.load(std::memory_order_relaxed);
  while (seen < total && !value_.compare_exchange_weak(seen, total, std::memory_order_relaxed)) {
  }
}

Histogram::Histogram(std::vector<double> upper_bounds)
    : upper_bounds_(std::move(upper_bounds)), buckets_(new std::atomic<int64_t>[upper_bounds_.size() + 1]) {
  MOESAIC_CHECK(std::is_sorted(upper_bounds_.begin(), upper_bounds_.end()));
  for (size_t i = 0; i <= upper_bounds_.size(); ++i) buckets_[i].store(0, std::memory_order_relaxed);
}

void Histogram::observe(double value, int64_t times) {
  const size_t bucket = std::lower_bound(upper_bounds_.begin(), upper_bounds_.end(), value) - upper_bounds_.begin();
  buckets_[bucket].fetch_add(times, std::memory_order_relaxed);
  count_.fetch_add(times, std::memory_order_relaxed);
  sum_.fetch_add(value * static_cast<double>(times), std::memory_order_relaxed);
}

MetricsRegistry::Cell& MetricsRegistry::add_cell(Kind kind, const std::vector<std::string>& names,
                                                 std::string_view help, MetricLabels labels) {
  MOESAIC_CHECK(!names.empty() && !help.empty());
  for (const std::string& name : names) {
    MOESAIC_CHECK(is_name(name, ":"));
    MOESAIC_CHECK_EQ(name.ends_with("_total"), kind == Kind::kCounter);
  }
  for (const auto& [name, value] : labels) MOESAIC_CHECK(is_name(name, "") && name != "le");
  for (const auto& family : families_) {
    if (family->names != names) {
      for (const std::string& name : names) MOESAIC_CHECK(std::ranges::count(family->names, name) == 0);
      continue;
    }
    MOESAIC_CHECK(family->kind == kind);
    for (const Cell& cell : family->cells) MOESAIC_CHECK(cell.labels != labels);
    family->cells.push_back(Cell{.labels = std::move(labels)});
    return family->cells.back();
  }
  families_.push_back(std::make_unique<Family>(Family{.kind = kind, .names = names, .help = std::string(help)}));
  families_.back()->cells.push_back(Cell{.labels = std::move(labels)});
  return families_.back()->cells.back();
}

Counter& MetricsRegistry::counter(const std::vector<std::string>& names, std::string_view help, MetricLabels labels) {
  Cell& cell = add_cell(Kind::kCounter, names, help, std::move(labels));
  cell.counter = std::make_unique<Counter>();
  return *cell.counter;
}

Gauge& MetricsRegistry::gauge(const std::vector<std::string>& names, std::string_view help, MetricLabels labels) {
  Cell& cell = add_cell(Kind::kGauge, names, help, std::move(labels));
  cell.gauge = std::make_unique<Gauge>();
  return *cell.gauge;
}

Histogram& MetricsRegistry::histogram(const std::vector<std::string>& names, std::string_view help,
                                      std::vector<double> upper_bounds, MetricLabels labels) {
  Cell& cell = add_cell(Kind::kHistogram, names, help, std::move(labels));
  cell.histogram = std::make_unique<Histogram>(std::move(upper_bounds));
  return *cell.histogram;
}

void MetricsRegistry::append_cell(std::string& out, const std::string& name, const Cell& cell) const {
  const auto sample = [&](std::string_view suffix, std::string_view le, double value) {
    out += name;
    out += suffix;
    append_labels(out, name, common_labels_, cell.labels, le);
    out += ' ';
    append_number(out, value);
    out += '\n';
  };
  if (cell.counter) return sample("", "", static_cast<double>(cell.counter->value()));
  if (cell.gauge) return sample("", "", cell.gauge->value());
  const Histogram& histogram = *cell.histogram;
  int64_t cumulative = 0;
  for (size_t i = 0; i <= histogram.upper_bounds_.size(); ++i) {
    cumulative += histogram.buckets_[i].load(std::memory_order_relaxed);
    const bool last = i == histogram.upper_bounds_.size();
    sample("_bucket", last ? std::string("+Inf") : str_cat(histogram.upper_bounds_[i]),
           static_cast<double>(cumulative));
  }
  sample("_sum", "", histogram.sum_.load(std::memory_order_relaxed));
  sample("_count", "", static_cast<double>(cumulative));  // agrees with +Inf whatever other threads add meanwhile
}

std::string MetricsRegistry::text() const {
  static constexpr std::string_view kKindNames[] = {"counter", "gauge", "histogram"};
  std::string out;
  for (const auto& family : families_) {
    for (const std::string& name : family->names) {
      out += str_cat("# HELP ", name, " ");
      append_escaped(out, family->help, /*quote=*/false);
      out += str_cat("\n# TYPE ", name, " ", kKindNames[static_cast<int>(family->kind)], "\n");
      for (const Cell& cell : family->cells) append_cell(out, name, cell);
    }
  }
  return out;
}

}  // namespace moesaic
