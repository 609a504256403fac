#include <algorithm>

#include "plan/roofline.h"

namespace moesaic {
namespace {

Chart roofline_chart(const std::vector<RooflineRow>& rows, const HardwareSpec& hardware, Source source) {
  Chart chart{.title = "Kernels under the roofs of " + hardware.name,
              .kind = Chart::Kind::kScatter,
              .x_label = "FLOP/byte",
              .y_label = "TFLOP/s",
              .log_x = true,
              .log_y = true};
  double least = rows[0].flops_per_byte, most = least;
  for (const RooflineRow& row : rows) {
    least = std::min(least, row.flops_per_byte);
    most = std::max(most, row.flops_per_byte);
    auto series =
        std::find_if(chart.series.begin(), chart.series.end(), [&](const Series& s) { return s.name == row.kernel; });
    if (series == chart.series.end())
      series = chart.series.insert(series, Series{.name = row.kernel, .source = source});
    series->points.emplace_back(row.flops_per_byte, row.predicted_tflops);
  }
  for (const auto& [name, peak] : {std::pair{"FP8 roof", hardware.fp8_tflops}, {"BF16 roof", hardware.bf16_tflops}}) {
    if (peak <= 0) continue;
    const double slope = hardware.hbm_gb_per_s / 1e3;  // TFLOP/s for each FLOP/byte
    const double end = std::max(most, peak / slope);
    chart.series.push_back({.name = name,
                            .source = Source::kGiven,
                            .points = {{least, std::min(peak, least * slope)}, {peak / slope, peak}, {end, peak}},
                            .is_joined = true});
  }
  return chart;
}

Table rows_table(const std::vector<RooflineRow>& rows, Source source) {
  Table table{.title = "Kernels of a decode layer",
              .source = source,
              .columns = {{"kernel"},
                          {"EP"},
                          {"batch"},
                          {"rows"},
                          {"FLOP/byte"},
                          {"bound"},
                          {"roof", "TFLOP/s"},
                          {"time", "us"},
                          {"rate", "TFLOP/s"},
                          {"of roof", "%"}}};
  for (const RooflineRow& row : rows) {
    table.rows.push_back({row.kernel, row.ep == 0 ? Cell("–") : Cell(static_cast<double>(row.ep)),
                          static_cast<double>(row.batch), row.m, row.flops_per_byte,
                          row.is_memory_bound ? "memory" : "compute", row.roof_tflops, row.predicted_us,
                          row.predicted_tflops, row.predicted_tflops / row.roof_tflops * 100});
  }
  return table;
}

}  // namespace

Report roofline_report(const std::vector<RooflineRow>& rows, const HardwareSpec& hardware, const std::string& command) {
  Report report{.title = "Roofline of " + hardware.name,
                .summary = "The kernels of a decode layer: what they reach of what the datasheet allows.",
                .command = command,
                .assumptions = {"routing is even", "roofs are the datasheet's peaks and memory bandwidth"}};
  for (const bool is_measured : {true, false}) {
    std::vector<RooflineRow> some;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(some),
                 [&](const RooflineRow& row) { return row.is_measured == is_measured; });
    if (some.empty()) continue;
    const Source source = is_measured ? Source::kMeasured : Source::kPredicted;
    report.sections.push_back({.title = is_measured ? "Measured" : "Predicted",
                               .tables = {rows_table(some, source)},
                               .charts = {roofline_chart(some, hardware, source)}});
  }
  return report;
}

}  // namespace moesaic
