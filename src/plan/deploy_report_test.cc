// The page of a plan: what it shows is the plan, all of it, and each number says where it comes from.
#include "plan/deploy_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cost/model_catalog.h"

namespace moesaic {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

struct Planned {
  DeployRequest request;
  DeployPlan plan;
  DeployQueues queues;
  Report report;
};

Planned plan_once() {
  Planned out;
  DeployRequest& r = out.request;
  r.space.hardware = {*find_hardware("h100"), *find_hardware("h200")};
  r.space.ep_sizes = {8, 32, 64, 72};
  r.base.model = *find_model("deepseek-v3");
  r.base.balancedness = 0.85;
  r.traffic = {.requests_per_s = 300, .input_len = 2000, .output_len = 400};
  out.plan = *plan_deployment(r);
  out.queues = *check_queues(r, out.plan, 1, {});
  out.report = deploy_report(out.plan, out.queues, r, "moesaic plan deploy --x <1>");
  return out;
}

const Planned& planned() {
  static const Planned once = plan_once();
  return once;
}

const Table& table_of(const Section& section, const std::string& begin) {
  return *std::find_if(section.tables.begin(), section.tables.end(),
                       [&](const Table& table) { return table.title.starts_with(begin); });
}

double sum(const Table& table) {
  double out = 0;
  for (const auto& row : table.rows) out += row[1].number;
  return out;
}

TEST(DeployReport, ChartsHoldEveryPointOfEveryFrontier) {
  const Planned& p = planned();
  const Section& section = p.report.sections.at(2);
  ASSERT_EQ(section.charts.size(), 2u);
  size_t line = 0;
  for (const Chart& chart : section.charts) {
    EXPECT_TRUE(chart.log_x && chart.log_y);
    ASSERT_EQ(chart.series.size(), 1 + p.request.space.ep_sizes.size());
    EXPECT_EQ(chart.series[0].points[0].first, p.plan.decode.candidate.prediction.tokens_per_s_per_user);
    for (size_t i = 1; i < chart.series.size(); ++i, ++line) {
      const EpFrontier& ep = p.plan.frontiers[line];
      EXPECT_EQ(chart.series[i].source, Source::kPredicted);
      EXPECT_THAT(chart.series[i].name, HasSubstr("EP" + std::to_string(ep.ep_size)));
      ASSERT_EQ(chart.series[i].points.size(), ep.points.size());
      for (size_t n = 0; n < ep.points.size(); ++n) {
        EXPECT_EQ(chart.series[i].points[n].second, ep.points[n].prediction.tokens_per_s_per_node);
      }
    }
  }
  // EP8 does not fit on an H100 of 80 GB; its row shows the arithmetic.
  EXPECT_THAT(table_of(section, "What does not fit").rows.at(0)[1].text, HasSubstr("of 80 GB"));
}

TEST(DeployReport, TheFrontierOfAllBeatsEveryPoint) {
  const Planned& p = planned();
  const Table& all = table_of(p.report.sections.at(2), "Frontier");
  for (const EpFrontier& line : p.plan.frontiers) {
    for (const LayoutCandidate& c : line.points) {
      EXPECT_TRUE(std::any_of(all.rows.begin(), all.rows.end(), [&](const auto& row) {
        return row[1].number >= c.prediction.tokens_per_s_per_user &&
               row[2].number >= c.prediction.tokens_per_s_per_node;
      })) << c.label();
    }
  }
}

TEST(DeployReport, PartsAddUp) {
  const Planned& p = planned();
  for (const auto& [index, instance] : {std::pair{3, &p.plan.decode}, {4, &p.plan.prefill}}) {
    const Section& section = p.report.sections.at(index);
    const Prediction& prediction = instance->candidate.prediction;
    EXPECT_THAT(section.text, HasSubstr(instance->limit));
    EXPECT_NEAR(sum(table_of(section, "Memory")), prediction.memory.capacity_bytes / 1e9, 1e-6);
    EXPECT_NEAR(sum(table_of(section, "A step")), 100, 1e-6);
    EXPECT_EQ(table_of(section, "A MoE layer").rows.back()[1].number, prediction.step.moe_layer.seconds * 1e6);
    EXPECT_EQ(table_of(section, "Why not").rows.size(), instance->neighbours.size());
  }
}

TEST(DeployReport, TextAndJsonSayTheSame) {
  const Planned& p = planned();
  const auto json = nlohmann::json::parse(deploy_json(p.plan, p.queues, p.request, "model"));
  EXPECT_EQ(json["assumptions"].get<std::vector<std::string>>(), p.report.assumptions);
  EXPECT_THAT(p.report.assumptions, Contains(HasSubstr("published systems")));
  EXPECT_THAT(p.report.assumptions, Contains(HasSubstr("prefill: predicted; balancedness 0.68")));
  const std::string text = deploy_text(p.plan, p.queues, p.request, "model");
  for (const std::string& line : p.report.assumptions) EXPECT_THAT(text, HasSubstr(line));
  // The price of an hour is that of the tokens of an hour.
  const double tokens = p.request.traffic.requests_per_s * 400 * 3600;
  EXPECT_NEAR(json["dollars_per_million_output_tokens"].get<double>() * tokens / 1e6, p.plan.dollars_per_hour, 1e-6);
  const Table& both = table_of(p.report.sections.at(0), "Both");
  EXPECT_EQ(both.rows.at(1)[1].number, json["dollars_per_hour"].get<double>());
  EXPECT_THAT(report_html(p.report), HasSubstr("--x &lt;1&gt;"));
}

// With queues every figure says simulated, and text, JSON and page have the same ones.
TEST(DeployReport, QueuesAreShownApart) {
  const Planned& p = planned();
  const auto json = nlohmann::json::parse(deploy_json(p.plan, p.queues, p.request, "model"))["with_queues"];
  EXPECT_EQ(json["kind"], "simulated");
  EXPECT_EQ(json["goals"]["tpot_ms"].get<double>(), 1e3 / p.request.goals.least_tokens_per_s_per_user);
  ASSERT_TRUE(p.queues.decode.chosen && p.queues.prefill.chosen);
  const Section& section = p.report.sections.at(1);
  const std::string text = deploy_text(p.plan, p.queues, p.request, "model");
  for (const auto& [name, table, role] :
       {std::tuple{"decode", 0, &p.queues.decode}, std::tuple{"prefill", 1, &p.queues.prefill}}) {
    EXPECT_EQ(section.tables.at(table).source, Source::kSimulated);
    ASSERT_EQ(section.tables[table].rows.size(), role->trials.size());
    ASSERT_EQ(json[name]["trials"].size(), role->trials.size());
    EXPECT_EQ(json[name]["chosen"].get<size_t>(), *role->chosen);
    for (size_t i = 0; i < role->trials.size(); ++i) {
      const QueueTrial& trial = role->trials[i];
      EXPECT_EQ(section.tables[table].rows[i][4].number, trial.figures.p99_ms);
      EXPECT_EQ(json[name]["trials"][i]["p99_ms"].get<double>(), trial.figures.p99_ms);
      EXPECT_THAT(text, HasSubstr(std::to_string(trial.num_instances) + " x " + trial.candidate.label()));
    }
  }
  EXPECT_THAT(text, HasSubstr("with queues, simulated: " + queues_summary(p.queues)));
  EXPECT_THAT(section.text, HasSubstr(queues_summary(p.queues)));
  EXPECT_EQ(json["dollars_per_hour"].get<double>(), p.queues.dollars_per_hour);
}

}  // namespace
}  // namespace moesaic
