#include "plan/roofline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cost/model_catalog.h"

namespace moesaic {
namespace {

using ::testing::HasSubstr;

RooflineRequest request() {
  RooflineRequest r;
  r.deployment.model = *find_model("deepseek-v3");
  r.deployment.hardware = *find_hardware("h100");
  return r;
}

const RooflineRow& row_of(const std::vector<RooflineRow>& rows, const std::string& kernel, int64_t ep, int64_t batch) {
  return *std::find_if(rows.begin(), rows.end(), [&](const RooflineRow& row) {
    return row.kernel == kernel && row.ep == ep && row.batch == batch;
  });
}

TEST(Roofline, IntensityByHand) {
  const auto rows = roofline(request());
  // 128 requests x 2 tokens x 8 experts x 128 ranks / 256 experts = 1,024 rows of each of 2 experts.
  const RooflineRow& row = row_of(rows, "gate+up", 128, 128);
  EXPECT_EQ(row.m, 1024);
  const double flops = 2.0 * 1024 * 4096 * 7168, bytes = 4096.0 * 7168 + 1024.0 * 7168 + 1024.0 * 4096 * 2;
  EXPECT_NEAR(row.flops_per_byte, flops / bytes, 1e-6);
  EXPECT_FALSE(row.is_memory_bound);
  EXPECT_EQ(row.roof_tflops, 1979);
  EXPECT_TRUE(row_of(rows, "gate+up", 8, 128).is_memory_bound);
  EXPECT_EQ(row_of(rows, "gate+up", 8, 128).m, 64);
}

TEST(Roofline, NothingIsAboveItsRoof) {
  for (const RooflineRow& row : roofline(request())) {
    EXPECT_LE(row.predicted_tflops, row.roof_tflops) << row.kernel << " EP" << row.ep << " batch " << row.batch;
    EXPECT_GT(row.predicted_us, 0);
    EXPECT_FALSE(row.is_measured);
  }
}

TEST(Roofline, MeasuredRowsShowWhatWasMeasured) {
  RooflineRequest r = request();
  r.deployment.kernels = *MeasuredKernels::parse(
      R"([{"op": "gemm_dense", "m": 64, "n": 7168, "k": 16384, "dtype": "fp8", "us": 51}])", "table");
  const auto rows = roofline(r);
  const RooflineRow& row = row_of(rows, "o", 0, 32);
  EXPECT_TRUE(row.is_measured);
  EXPECT_NEAR(row.predicted_us, 51, 1e-9);
  EXPECT_FALSE(row_of(rows, "o", 0, 64).is_measured);
}

TEST(Roofline, SvgHoldsEveryRow) {
  const RooflineRequest r = request();
  const auto rows = roofline(r);
  const std::string svg = roofline_svg(rows, r.deployment.hardware);
  size_t titles = 0;
  for (size_t at = svg.find("<title>"); at != std::string::npos; at = svg.find("<title>", at + 1)) ++titles;
  EXPECT_EQ(titles, rows.size());
  EXPECT_THAT(svg, HasSubstr("</svg>"));
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_THAT(roofline_table(rows), HasSubstr("gate+up"));
}

TEST(Roofline, ReportHasEveryRowUnderTheRoofs) {
  const RooflineRequest r = request();
  const auto rows = roofline(r);
  const Report report = roofline_report(rows, r.deployment.hardware, "");
  ASSERT_EQ(report.sections.size(), 1u);  // nothing is measured
  const Section& section = report.sections[0];
  EXPECT_EQ(section.tables[0].source, Source::kPredicted);
  EXPECT_EQ(section.tables[0].rows.size(), rows.size());
  size_t num_points = 0;
  for (const Series& series : section.charts[0].series) {
    EXPECT_EQ(series.source, series.is_joined ? Source::kGiven : Source::kPredicted);
    if (!series.is_joined) num_points += series.points.size();
  }
  EXPECT_EQ(num_points, rows.size());
  // The FP8 roof bends where the peak meets the bandwidth: 1,979 TFLOP/s and 3.35 TB/s.
  const Series& fp8 = *std::find_if(section.charts[0].series.begin(), section.charts[0].series.end(),
                                    [](const Series& series) { return series.name == "FP8 roof"; });
  EXPECT_NEAR(fp8.points[1].first, 1979 / 3.35, 1);
  EXPECT_EQ(fp8.points[2].second, fp8.points[1].second);
}

}  // namespace
}  // namespace moesaic
