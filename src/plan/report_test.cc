#include "plan/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/rng.h"

namespace moesaic {
namespace {

using testing::HasSubstr;
using testing::Not;

// Every tag is closed in order, and no character that ends text early stands in it. The message says where not.
std::string find_disorder(const std::string& html) {
  const std::vector<std::string> void_tags = {"meta", "!doctype"};
  std::vector<std::string> open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at + 1)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return "an open < at the end";
    const std::string tag = html.substr(at + 1, end - at - 1);
    if (tag.find('<') != std::string::npos) return "< inside a tag: " + tag.substr(0, 60);
    const std::string name = tag.substr(0, tag.find_first_of(" /\n", 1));
    if (std::find(void_tags.begin(), void_tags.end(), name) != void_tags.end() || tag.back() == '/') continue;
    if (name[0] != '/') {
      open.push_back(name);
      continue;
    }
    if (open.empty() || "/" + open.back() != name) return "unexpected <" + tag + ">";
    open.pop_back();
  }
  return open.empty() ? "" : "not closed: " + open.back();
}

Report sample() {
  Report report{.title = "A <plan> & \"more\"",
                .summary = "Two sentences.",
                .command = "moesaic simulate --x 1 > y",
                .assumptions = {"routing is even", "1 < 2"}};
  Section& section = report.sections.emplace_back(Section{.title = "Latency", .text = "what users feel"});
  section.tables.push_back({.title = "TTFT",
                            .source = Source::kSimulated,
                            .columns = {{"percentile"}, {"time", "ms"}, {"why", "", true}},
                            .rows = {{"P50", 1234.5, "a < b"}, {"P<99", NAN, ""}}});
  section.charts.push_back({.title = "Queue",
                            .x_label = "time (s)",
                            .y_label = "requests",
                            .series = {{"waiting", Source::kSimulated, {{0, 0}, {1, 3}, {2, NAN}, {3, 1}}},
                                       {"elsewhere <b>", Source::kPublished, {{0, 5}, {3, INFINITY}}}}});
  section.charts.push_back(
      {.title = "Bars",
       .kind = Chart::Kind::kBar,
       .categories = {"a", "b<"},
       .series = {{"one", Source::kMeasured, {{0, -1}, {1, 2}}}, {"two", Source::kMeasured, {{1, 3}}}}});
  section.charts.push_back({.title = "Frontier",
                            .kind = Chart::Kind::kScatter,
                            .log_x = true,
                            .log_y = true,
                            .series = {{"ep", Source::kPredicted, {{0, 1}, {10, 1e6}, {1000, 3}}},
                                       {"bound", Source::kGiven, {{1, 1}, {100, 100}}, true}}});
  return report;
}

TEST(Report, IsOnePageThatIsWellFormed) {
  const std::string html = report_html(sample());
  EXPECT_EQ(find_disorder(html), "");
  for (const char* outside : {"http://", "https://", "src=", "<script", "<link", "@import", "url("}) {
    EXPECT_THAT(html, Not(HasSubstr(outside)));
  }
  EXPECT_THAT(html, HasSubstr("A &lt;plan&gt; &amp; &quot;more&quot;"));
  EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
  EXPECT_THAT(html, HasSubstr("@media print"));
  EXPECT_THAT(html, HasSubstr("width=device-width"));
  EXPECT_THAT(html, Not(HasSubstr("nan")));
  EXPECT_THAT(html, Not(HasSubstr("inf\"")));
  EXPECT_THAT(html, HasSubstr("1,234"));
  // A source beside every table and series.
  size_t badges = 0;
  for (size_t at = html.find("class=\"source\""); at != std::string::npos; at = html.find("class=\"source\"", at + 1)) {
    ++badges;
  }
  EXPECT_EQ(badges, 1u + 2 + 2 + 2);
  EXPECT_THAT(html, HasSubstr("<td class=\"text\">a &lt; b</td>"));
}

TEST(Report, JsonHoldsTheSameNumbers) {
  const auto json = nlohmann::json::parse(report_json(sample()));
  const auto& section = json["sections"][0];
  EXPECT_EQ(section["tables"][0]["source"], "simulated");
  EXPECT_EQ(section["tables"][0]["rows"][0][1], 1234.5);
  EXPECT_TRUE(section["tables"][0]["rows"][1][1].is_null());
  EXPECT_EQ(section["charts"][0]["series"][1]["source"], "published");
  EXPECT_TRUE(section["charts"][0]["series"][0]["points"][2][1].is_null());
}

TEST(Report, OnlyJoinedPointsOfAScatterChartHaveALine) {
  const std::string html = report_html(sample());
  const auto group_of = [&](const std::string& name) {
    const size_t begin = html.find("<title>" + name + "</title>");
    return html.substr(begin, html.find("</g>", begin) - begin);
  };
  EXPECT_THAT(group_of("bound"), HasSubstr("class=\"line\""));
  EXPECT_THAT(group_of("ep"), Not(HasSubstr("class=\"line\"")));
  EXPECT_THAT(group_of("ep"), HasSubstr("<circle"));
}

TEST(Report, AnyNumbersMakeADrawing) {
  constexpr uint64_t kSeed = 20;
  Rng rng(kSeed);
  for (int trial = 0; trial < 300; ++trial) {
    Chart chart{.title = "any",
                .kind = static_cast<Chart::Kind>(rng.below(3)),
                .log_x = rng.below(2) == 0,
                .log_y = rng.below(2) == 0,
                .categories = std::vector<std::string>(rng.below(70), "c")};
    for (uint64_t i = rng.below(10); i > 0; --i) {
      Series& series = chart.series.emplace_back(Series{.name = "s"});
      const double scale = std::pow(10.0, 40 * rng.uniform() - 20);
      for (uint64_t n = rng.below(100); n > 0; --n) {
        const double x = chart.kind == Chart::Kind::kBar ? static_cast<double>(rng.below(70)) : rng.uniform() * scale;
        const double y = rng.below(20) == 0 ? NAN : (rng.uniform() - 0.2) * scale;
        series.points.push_back({x, rng.below(4) == 0 ? 0.0 : y});
      }
    }
    Report report{.title = "t"};
    report.sections.push_back({.title = "s", .charts = {chart}});
    const std::string html = report_html(report);
    ASSERT_EQ(find_disorder(html), "") << "seed " << kSeed << ", trial " << trial;
    ASSERT_LT(html.size(), 400'000u) << "seed " << kSeed << ", trial " << trial;
    for (const char* broken : {"nan", "\"inf", " inf", "-inf"}) {
      ASSERT_EQ(html.find(broken), std::string::npos) << broken << ", seed " << kSeed << ", trial " << trial;
    }
  }
}

TEST(Report, Numbers) {
  EXPECT_EQ(format_number(0.0), "0");
  EXPECT_EQ(format_number(3.14159), "3.142");
  EXPECT_EQ(format_number(999.96), "1,000");
  EXPECT_EQ(format_number(-1234567.0), "-1,234,567");
  EXPECT_EQ(format_number(0.00012), "0.00012");
  EXPECT_EQ(format_number(NAN), "–");
}

}  // namespace
}  // namespace moesaic
