// Report: what a plan or a simulation says, as one self-contained HTML page (inline SVG, light and dark, phone, print)
// or as JSON. A value that commands fill; the writers below are pure. Every table and series carries a Source, so no
// number stands without saying whether it was measured, published or computed.
//
//   Report report{.title = "Simulated load", .command = "moesaic simulate ...", .assumptions = {"routing is even"}};
//   Section& section = report.sections.emplace_back(Section{.title = "Latency"});
//   section.tables.push_back({.title = "TTFT", .source = Source::kSimulated,
//                             .columns = {{"percentile"}, {"time", "ms"}}, .rows = {{"P50", 12.5}, {"P99", 40.0}}});
//   section.charts.push_back({.title = "Queue", .x_label = "time (s)", .y_label = "requests",
//                             .series = {{"waiting", Source::kSimulated, {{0, 0}, {1, 3}}}}});
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace moesaic {

enum class Source : uint8_t {
  kGiven,      // the user's, or a datasheet's
  kMeasured,   // on the hardware that is named
  kPublished,  // by somebody else
  kPredicted,  // by the cost model
  kSimulated,  // by the product's scheduler in virtual time
  kComputed,   // exact arithmetic on the inputs
};
const char* source_name(Source source);

// Numbers that are not finite are shown as a dash and are null in JSON.
struct Cell {
  Cell(std::string value) : text(std::move(value)) {}
  Cell(const char* value) : text(value) {}
  Cell(double value) : number(value), is_number(true) {}
  std::string text;
  double number = 0.0;
  bool is_number = false;
};

struct Column {
  std::string name;
  std::string unit;      // shown in brackets; may be empty
  bool is_text = false;  // of sentences: to the left, in several lines where space is short
};

struct Table {
  std::string title;
  Source source = Source::kComputed;
  std::vector<Column> columns;
  std::vector<std::vector<Cell>> rows;  // as many cells as columns (CHECK)
};

struct Series {
  std::string name;
  Source source = Source::kComputed;
  std::vector<std::pair<double, double>> points;  // x, y; of a bar chart, x counts the categories from 0
  bool is_joined = false;                         // in a scatter chart: a line through the points, in their order
};

struct Chart {
  enum class Kind : uint8_t { kLine, kBar, kScatter };
  std::string title;
  Kind kind = Kind::kLine;
  std::string x_label;  // with its unit, as y_label
  std::string y_label;
  bool log_x = false;  // points at or below 0 are then left out
  bool log_y = false;
  std::vector<std::string> categories;  // of a bar chart
  std::vector<Series> series;           // at most nine get colours of their own
};

struct Section {
  std::string title;
  std::string text;  // may be empty
  std::vector<Table> tables;
  std::vector<Chart> charts;
};

struct Report {
  std::string title;
  std::string summary;  // one or two sentences
  std::string command;  // that makes it again
  std::vector<std::string> assumptions;
  std::vector<Section> sections;
};

std::string report_html(const Report& report);
std::string report_json(const Report& report);  // one line

// Four significant digits, with commas in thousands: "12,345", "3.142", "0.0012"; a dash if it is not finite.
std::string format_number(double value);

}  // namespace moesaic
