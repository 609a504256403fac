#include "plan/report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "plan/report_svg.h"

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

// Colours are those of Okabe and Ito, which the colour-blind can tell apart, a little lighter on dark ground.
constexpr const char* kStyle = R"(
:root{--back:#fff;--text:#1c1e21;--soft:#5f6670;--line:#d9dce1;--box:#f5f6f8;
--c0:#0072b2;--c1:#d55e00;--c2:#009e73;--c3:#a8568a;--c4:#b58900;--c5:#2f9fd4;--c6:#6b6b6b;--c7:#000;--c8:#8c510a}
@media(prefers-color-scheme:dark){:root{--back:#15171a;--text:#e7e9ec;--soft:#a0a7b1;--line:#363b42;--box:#1e2125;
--c0:#5ab4e8;--c1:#f0883e;--c2:#3fc79a;--c3:#d98cbf;--c4:#e6c34a;--c5:#8fd3f4;--c6:#a0a0a0;--c7:#fff;--c8:#c9a06c}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1080px;padding:16px;background:var(--back);color:var(--text);
font:16px/1.45 system-ui,sans-serif}
h1{font-size:1.5em;margin:.3em 0}h2{font-size:1.2em;margin:1.6em 0 .4em;border-top:1px solid var(--line);padding-top:.8em}
h3{font-size:1em;margin:0 0 .4em}p{margin:.4em 0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:var(--box);padding:8px;font-size:.8em;margin:.6em 0}
ul{padding-left:1.2em;margin:.4em 0}li{font-size:.9em}
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr));gap:20px;align-items:start;margin:.8em 0}
figure,.table{margin:0;min-width:0;break-inside:avoid}
.table{overflow-x:auto}.wide{grid-column:1/-1}
table{border-collapse:collapse;width:100%;font-size:.9em;font-variant-numeric:tabular-nums}
th,td{padding:4px 8px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal}
th.text,td.text{text-align:left;white-space:normal}
th{color:var(--soft);font-weight:600}
.source{font-size:.72em;font-weight:600;color:var(--soft);border:1px solid var(--line);border-radius:3px;padding:0 5px;margin-left:6px;white-space:nowrap}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font-size:11px}
.grid{stroke:var(--line);fill:none}.axis{stroke:var(--soft);fill:none}
.line{fill:none;stroke:currentColor;stroke-width:1.8;stroke-linejoin:round}
circle,rect{fill:currentColor}
figcaption{font-size:.82em;margin-top:2px}
figcaption span{display:inline-block;margin-right:14px}
figcaption i{display:inline-block;width:10px;height:10px;border-radius:2px;background:currentColor;margin-right:5px}
figcaption b{font-weight:400;color:var(--text)}
.s0{color:var(--c0)}.s1{color:var(--c1)}.s2{color:var(--c2)}.s3{color:var(--c3)}.s4{color:var(--c4)}.s5{color:var(--c5)}.s6{color:var(--c6)}.s7{color:var(--c7)}.s8{color:var(--c8)}
@media print{:root{--back:#fff;--text:#000;--soft:#444;--line:#bbb;--box:#f2f2f2}body{max-width:none;padding:0;font-size:11pt}
h2{break-after:avoid}.grid2{grid-template-columns:1fr 1fr}}
)";

constexpr size_t kMostHalfColumns = 5;  // more do not fit into half the width of the page

std::string source_badge(Source source) {
  return fmt::format("<span class=\"source\">{}</span>", source_name(source));
}

std::string cell_text(const Cell& cell) {
  return cell.is_number ? format_number(cell.number) : cell.text;
}

const char* text_class(const Column& column) {
  return column.is_text ? " class=\"text\"" : "";
}

std::string table_html(const Table& table) {
  const char* wide = table.columns.size() > kMostHalfColumns ? " wide" : "";
  std::string out = fmt::format("<div class=\"table{}\"><h3>{}{}</h3><table><thead><tr>", wide,
                                escape_html(table.title), source_badge(table.source));
  for (const Column& column : table.columns) {
    const std::string unit = column.unit.empty() ? std::string() : fmt::format(" ({})", escape_html(column.unit));
    out += fmt::format("<th{}>{}{}</th>", text_class(column), escape_html(column.name), unit);
  }
  out += "</tr></thead><tbody>";
  for (const std::vector<Cell>& row : table.rows) {
    MOESAIC_CHECK_EQ(row.size(), table.columns.size());
    out += "<tr>";
    for (size_t i = 0; i < row.size(); ++i) {
      out += fmt::format("<td{}>{}</td>", text_class(table.columns[i]), escape_html(cell_text(row[i])));
    }
    out += "</tr>";
  }
  return out + "</tbody></table></div>";
}

std::string chart_html(const Chart& chart) {
  std::string out = fmt::format("<figure><h3>{}</h3>{}<figcaption>", escape_html(chart.title), chart_svg(chart));
  for (size_t i = 0; i < chart.series.size(); ++i) {
    out += fmt::format("<span class=\"s{}\"><i></i><b>{}{}</b></span>", std::min<size_t>(i, kNumSeriesColors - 1),
                       escape_html(chart.series[i].name), source_badge(chart.series[i].source));
  }
  return out + "</figcaption></figure>";
}

Json number_json(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json table_json(const Table& table) {
  Json json = {{"title", table.title}, {"source", source_name(table.source)}, {"columns", Json::array()}};
  for (const Column& column : table.columns) json["columns"].push_back({{"name", column.name}, {"unit", column.unit}});
  json["rows"] = Json::array();
  for (const std::vector<Cell>& row : table.rows) {
    MOESAIC_CHECK_EQ(row.size(), table.columns.size());
    Json cells = Json::array();
    for (const Cell& cell : row) cells.push_back(cell.is_number ? number_json(cell.number) : Json(cell.text));
    json["rows"].push_back(std::move(cells));
  }
  return json;
}

Json chart_json(const Chart& chart) {
  Json json = {{"title", chart.title}, {"x", chart.x_label}, {"y", chart.y_label}};
  if (chart.kind == Chart::Kind::kBar) json["categories"] = chart.categories;
  json["series"] = Json::array();
  for (const Series& series : chart.series) {
    Json points = Json::array();
    for (const auto& [x, y] : series.points) points.push_back({number_json(x), number_json(y)});
    json["series"].push_back({{"name", series.name}, {"source", source_name(series.source)}, {"points", points}});
  }
  return json;
}

}  // namespace

const char* source_name(Source source) {
  constexpr const char* kNames[] = {"given", "measured", "published", "predicted", "simulated", "computed"};
  return kNames[static_cast<size_t>(source)];
}

std::string format_number(double value) {
  if (!std::isfinite(value)) return "–";
  if (std::abs(value) < 999.95) return fmt::format("{:.4g}", value);
  std::string digits = fmt::format("{:.0f}", std::abs(value));
  for (auto i = static_cast<int64_t>(digits.size()) - 3; i > 0; i -= 3) digits.insert(i, 1, ',');
  return fmt::format("{}{}", value < 0 ? "-" : "", digits);
}

std::string report_html(const Report& report) {
  std::string out = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<meta name=\"color-scheme\" content=\"light dark\"><title>{}</title><style>{}</style></head>\n<body>"
      "<h1>{}</h1><p>{}</p>",
      escape_html(report.title), kStyle, escape_html(report.title), escape_html(report.summary));
  if (!report.command.empty()) out += fmt::format("<pre>{}</pre>", escape_html(report.command));
  for (const Section& section : report.sections) {
    out += fmt::format("\n<section><h2>{}</h2>", escape_html(section.title));
    if (!section.text.empty()) out += fmt::format("<p>{}</p>", escape_html(section.text));
    out += "<div class=\"grid2\">";
    for (const Chart& chart : section.charts) out += chart_html(chart);
    for (const Table& table : section.tables) out += table_html(table);
    out += "</div></section>";
  }
  if (!report.assumptions.empty()) {
    out += "\n<section><h2>Assumptions</h2><ul>";
    for (const std::string& line : report.assumptions) out += fmt::format("<li>{}</li>", escape_html(line));
    out += "</ul></section>";
  }
  return out + "</body></html>\n";
}

std::string report_json(const Report& report) {
  Json json = {{"title", report.title},
               {"summary", report.summary},
               {"command", report.command},
               {"assumptions", report.assumptions},
               {"sections", Json::array()}};
  for (const Section& section : report.sections) {
    Json out = {{"title", section.title}, {"text", section.text}, {"tables", Json::array()}, {"charts", Json::array()}};
    for (const Table& table : section.tables) out["tables"].push_back(table_json(table));
    for (const Chart& chart : section.charts) out["charts"].push_back(chart_json(chart));
    json["sections"].push_back(std::move(out));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace moesaic
