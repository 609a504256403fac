#include "base/metrics_test_util.h"

#include <cmath>
#include <limits>
#include <set>

#include "base/strings.h"

namespace moesaic {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

bool is_name_char(char c, bool first) {
  const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
  return letter || (!first && c >= '0' && c <= '9');
}

// Reads one line from its front.
struct LineReader {
  std::string_view rest;

  bool take(std::string_view text) {
    if (!rest.starts_with(text)) return false;
    rest.remove_prefix(text.size());
    return true;
  }
  std::string name() {
    size_t size = 0;
    while (size < rest.size() && is_name_char(rest[size], size == 0)) ++size;
    const std::string found(rest.substr(0, size));
    rest.remove_prefix(size);
    return found;
  }
  // After the opening quote, up to and with the closing one.
  bool quoted(std::string* value) {
    while (!rest.empty()) {
      const char c = rest.front();
      rest.remove_prefix(1);
      if (c == '"') return true;
      if (c != '\\') {
        *value += c;
        continue;
      }
      if (rest.empty() || std::string_view("\\n\"").find(rest.front()) == std::string_view::npos) return false;
      *value += rest.front() == 'n' ? '\n' : rest.front();
      rest.remove_prefix(1);
    }
    return false;
  }
};

bool parse_value(const std::string& text, double* value) {
  if (text == "+Inf" || text == "-Inf") {
    *value = text[0] == '+' ? HUGE_VAL : -HUGE_VAL;
    return true;
  }
  char* end = nullptr;
  *value = text == "NaN" ? kNan : std::strtod(text.c_str(), &end);
  return text == "NaN" || (!text.empty() && *end == '\0' && !std::isnan(*value));
}

absl::Status parse_sample(std::string_view line, MetricSample* sample) {
  LineReader reader{line};
  sample->name = reader.name();
  if (sample->name.empty()) return absl::InvalidArgumentError("no metric name");
  if (reader.take("{")) {
    do {
      const std::string label = reader.name();
      std::string value;
      if (label.empty() || label.find(':') != std::string::npos || !reader.take("=\"") || !reader.quoted(&value)) {
        return absl::InvalidArgumentError("a bad label");
      }
      if (!sample->labels.emplace(label, value).second) return absl::InvalidArgumentError("a label twice");
    } while (reader.take(","));
    if (!reader.take("}")) return absl::InvalidArgumentError("labels without end");
  }
  if (!reader.take(" ")) return absl::InvalidArgumentError("no value");
  if (!parse_value(std::string(reader.rest), &sample->value)) return absl::InvalidArgumentError("a bad value");
  return absl::OkStatus();
}

bool belongs(const std::string& family, const std::string& type, const std::string& name) {
  if (type != "histogram") return name == family;
  return name == family + "_bucket" || name == family + "_sum" || name == family + "_count";
}

// One histogram of a family: the samples that agree in all labels but le, in their order.
absl::Status check_histogram(const std::string& family, const std::vector<const MetricSample*>& samples) {
  double bound = -HUGE_VAL, buckets = 0.0, count = kNan;
  bool has_sum = false;
  for (const MetricSample* sample : samples) {
    has_sum |= sample->name == family + "_sum";
    if (sample->name == family + "_count") count = sample->value;
    if (sample->name != family + "_bucket") continue;
    const auto le = sample->labels.find("le");
    double next = 0.0;
    if (le == sample->labels.end() || !parse_value(le->second, &next)) {
      return absl::InvalidArgumentError(family + ": a bucket without le");
    }
    if (!(next > bound)) return absl::InvalidArgumentError(family + ": bounds do not ascend");
    if (sample->value < buckets) return absl::InvalidArgumentError(family + ": buckets are not cumulative");
    bound = next;
    buckets = sample->value;
  }
  if (!std::isinf(bound)) return absl::InvalidArgumentError(family + ": no +Inf bucket");
  if (buckets != count) return absl::InvalidArgumentError(family + ": +Inf differs from _count");
  return has_sum ? absl::OkStatus() : absl::InvalidArgumentError(family + ": no _sum");
}

absl::Status check_family(const std::string& name, const MetricFamily& family) {
  if (family.type.empty() || family.help.empty()) return absl::InvalidArgumentError(name + ": no TYPE or no HELP");
  if (family.samples.empty()) return absl::InvalidArgumentError(name + ": no samples");
  std::set<std::pair<std::string, std::map<std::string, std::string>>> seen;
  std::map<std::map<std::string, std::string>, std::vector<const MetricSample*>> histograms;
  for (const MetricSample& sample : family.samples) {
    if (!seen.emplace(sample.name, sample.labels).second) return absl::InvalidArgumentError(name + ": a series twice");
    if (family.type == "counter" && !(sample.value >= 0)) return absl::InvalidArgumentError(name + ": negative");
    auto others = sample.labels;
    others.erase("le");
    histograms[others].push_back(&sample);
  }
  if (family.type == "counter" && !name.ends_with("_total")) return absl::InvalidArgumentError(name + ": not _total");
  if (family.type != "histogram") return absl::OkStatus();
  for (const auto& [labels, samples] : histograms) MOESAIC_RETURN_IF_ERROR(check_histogram(name, samples));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MetricFamilies> parse_metrics(std::string_view text) {
  MetricFamilies families;
  std::string current;
  int64_t line_number = 0;
  const auto wrong = [&](std::string_view what) {
    return absl::InvalidArgumentError(str_cat("line ", line_number, ": ", what));
  };
  while (!text.empty()) {
    ++line_number;
    const size_t end = text.find('\n');
    if (end == std::string_view::npos) return wrong("no newline at the end");
    LineReader line{text.substr(0, end)};
    const std::string_view whole = line.rest;
    text.remove_prefix(end + 1);
    const bool is_help = line.take("# HELP ");
    if (is_help || line.take("# TYPE ")) {
      const std::string name = line.name();
      if (name.empty() || !line.take(" ")) return wrong("a bad comment");
      if (is_help && !families.emplace(name, MetricFamily()).second) return wrong("a family twice");
      if (!is_help && (name != current || !families[name].type.empty())) return wrong("TYPE at a wrong place");
      (is_help ? families[name].help : families[name].type) = line.rest;
      current = name;
      continue;
    }
    MetricSample sample;
    if (absl::Status status = parse_sample(whole, &sample); !status.ok()) return annotate(status, str_cat(line_number));
    if (current.empty() || !belongs(current, families[current].type, sample.name)) return wrong("not of the family");
    families[current].samples.push_back(std::move(sample));
  }
  for (const auto& [name, family] : families) MOESAIC_RETURN_IF_ERROR(check_family(name, family));
  return families;
}

double metric_value(const MetricFamilies& families, const std::string& name,
                    const std::map<std::string, std::string>& labels) {
  double found = kNan;
  int count = 0;
  for (const auto& [family_name, family] : families) {
    for (const MetricSample& sample : family.samples) {
      if (sample.name != name) continue;
      bool fits = true;
      for (const auto& [label, value] : labels) {
        const auto own = sample.labels.find(label);
        fits = fits && own != sample.labels.end() && own->second == value;
      }
      if (!fits) continue;
      found = sample.value;
      ++count;
    }
  }
  return count == 1 ? found : kNan;
}

}  // namespace moesaic
