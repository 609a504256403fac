#include "plan/day_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace moesaic {
namespace {

std::vector<std::string> assumptions(const DayAnswer& answer) {
  const DayFleet& f = answer.fleet;
  return {
      fmt::format(
          "A node serves {:.2f} times its mean rate of the published day ({:.0f} input tokens/s with cache hits, "
          "{:.0f} output tokens/s) within its SLO.",
          f.capacity, f.prefill_rate, f.decode_rate),
      fmt::format(
          "Prefill runs in units of {} nodes, decode in units of {}; a unit that is asked for serves after {:.0f} "
          "and {:.0f} s.",
          f.prefill_unit_nodes, f.decode_unit_nodes, f.prefill_load_s, f.decode_load_s),
      fmt::format(
          "Load follows the hours' shares, straight between their middles, times {:.2f}, with noise of {:.0f} % that "
          "changes over half an hour (seed {}).",
          f.day_level, f.noise * 100, f.seed),
      fmt::format(
          "A token misses its SLO when the fluid queue before it lasts longer than {:.1f} s, in prefill or in decode.",
          f.slo_wait_s),
      "The predictive policy knows the usual day and the level of today, not the noise to come.",
  };
}

std::string clock_text(int minute) {
  return fmt::format("{:02}:{:02}", (12 + minute / 60) % 24, minute % 60);
}

}  // namespace

DayAnswer answer_day(std::vector<DayHour> hours, const DayTraffic& traffic, const DayFleet& fleet) {
  DayAnswer out{.hours = std::move(hours), .traffic = traffic, .fleet = fleet};
  out.totals = day_totals(out.hours, traffic);
  out.peak = peak_units(out.hours, traffic, fleet);
  for (const ScalePolicy policy : {ScalePolicy::kFixed, ScalePolicy::kReactive, ScalePolicy::kPredictive}) {
    out.runs.push_back(simulate_day(out.hours, traffic, fleet, policy));
  }
  return out;
}

std::string day_text(const DayAnswer& answer) {
  const DayTotals& t = answer.totals;
  std::string out = fmt::format(
      "The day as it was\n"
      "  {:<34}{:>12.2f}\n  {:<34}{:>12.0f}\n  {:<34}{:>12.0f}\n  {:<34}{:>12.0f}\n  {:<34}{:>12.0f}\n  "
      "{:<34}{:>11.0f}%\n",
      "nodes, mean", t.mean_nodes, "node-hours", t.node_hours, "cost ($)", t.cost_usd, "income ($, of the hours)",
      t.income_usd, "income ($, tokens times prices)", t.income_tokens_usd, "margin on cost", t.margin * 100);
  out += fmt::format(
      "  the busiest hour needs {} prefill units of {} nodes and {} decode units of {}; there are {} and {}\n\n",
      answer.peak[0], answer.fleet.prefill_unit_nodes, answer.peak[1], answer.fleet.decode_unit_nodes,
      answer.fleet.prefill_units, answer.fleet.decode_units);
  out += fmt::format("The same load under policies (simulated)\n  {:<12}{:>11}{:>11}{:>11}{:>12}{:>9}{:>9}{:>9}\n",
                     "policy", "node-hours", "training", "cost ($)", "SLO missed", "least", "most", "changes");
  for (const DayRun& run : answer.runs) {
    out += fmt::format("  {:<12}{:>11.0f}{:>11.0f}{:>11.0f}{:>10.3f} %{:>9}{:>9}{:>9}\n", policy_name(run.policy),
                       run.node_hours, run.training_node_hours, run.cost_usd, run.miss_share * 100, run.least_nodes,
                       run.most_nodes, run.num_changes);
  }
  out += fmt::format("\n  {:<8}{:>10}{:>11}{:>10}{:>11}{:>12}\n", "hour", "published", "needed", "fixed", "reactive",
                     "predictive");
  for (size_t minute = 30; minute < answer.runs[0].minutes.size(); minute += 60) {
    out += fmt::format("  {:<8}{:>10.1f}{:>11}{:>10}{:>11}{:>12}\n", answer.hours[minute / 60].label,
                       answer.hours[minute / 60].nodes, answer.runs[0].minutes[minute].needed_nodes,
                       answer.runs[0].minutes[minute].nodes, answer.runs[1].minutes[minute].nodes,
                       answer.runs[2].minutes[minute].nodes);
  }
  out += "\nAssumptions\n";
  for (const std::string& line : assumptions(answer)) out += fmt::format("  - {}\n", line);
  return out;
}

std::string day_json(const DayAnswer& answer) {
  const DayTotals& t = answer.totals;
  nlohmann::ordered_json out;
  out["totals"] = {{"source", "published"},           {"mean_nodes", t.mean_nodes},
                   {"node_hours", t.node_hours},      {"cost_usd", t.cost_usd},
                   {"income_usd", t.income_usd},      {"income_tokens_usd", t.income_tokens_usd},
                   {"margin_percent", t.margin * 100}};
  out["fleet"] = {{"nodes", answer.fleet.num_nodes()},
                  {"prefill_units", answer.fleet.prefill_units},
                  {"decode_units", answer.fleet.decode_units},
                  {"peak_prefill_units", answer.peak[0]},
                  {"peak_decode_units", answer.peak[1]}};
  for (const DayRun& run : answer.runs) {
    out["policies"].push_back({{"policy", policy_name(run.policy)},
                               {"source", "simulated"},
                               {"node_hours", run.node_hours},
                               {"training_node_hours", run.training_node_hours},
                               {"cost_usd", run.cost_usd},
                               {"slo_miss_percent", run.miss_share * 100},
                               {"least_nodes", run.least_nodes},
                               {"most_nodes", run.most_nodes},
                               {"changes", run.num_changes}});
  }
  out["assumptions"] = assumptions(answer);
  return out.dump(2) + "\n";
}

Report day_report(const DayAnswer& answer, const std::string& command) {
  const DayTotals& t = answer.totals;
  Report report{
      .title = "A day of the service",
      .summary = fmt::format("{:.2f} nodes on average, ${:.0f} cost, ${:.0f} income, margin {:.0f} % of cost.",
                             t.mean_nodes, t.cost_usd, t.income_usd, t.margin * 100),
      .command = command,
      .assumptions = assumptions(answer)};
  Section nodes{.title = "Nodes",
                .text = "Nodes that serve or load; the others train. The hours run from 12:00 to 12:00."};
  Chart chart{.title = "Nodes by time", .x_label = "hours after 12:00", .y_label = "nodes"};
  Series published{.name = "as it was", .source = Source::kPublished};
  for (size_t hour = 0; hour < answer.hours.size(); ++hour) {
    published.points.emplace_back(hour + 0.5, answer.hours[hour].nodes);
  }
  chart.series.push_back(std::move(published));
  for (const DayRun& run : answer.runs) {
    Series series{.name = policy_name(run.policy), .source = Source::kSimulated};
    for (size_t minute = 0; minute < run.minutes.size(); minute += 5) {
      series.points.emplace_back(static_cast<double>(minute) / 60, run.minutes[minute].nodes);
    }
    chart.series.push_back(std::move(series));
  }
  nodes.charts.push_back(std::move(chart));
  Table table{.title = "Policies",
              .source = Source::kSimulated,
              .columns = {{"policy"},
                          {"serving", "node-hours"},
                          {"training", "node-hours"},
                          {"cost", "$"},
                          {"SLO missed", "% of tokens"},
                          {"fewest nodes at"}}};
  for (const DayRun& run : answer.runs) {
    int least = 0;
    for (size_t minute = 0; minute < run.minutes.size(); ++minute) {
      if (run.minutes[minute].nodes < run.minutes[least].nodes) least = static_cast<int>(minute);
    }
    table.rows.push_back({policy_name(run.policy), run.node_hours, run.training_node_hours, run.cost_usd,
                          run.miss_share * 100, fmt::format("{} ({})", run.least_nodes, clock_text(least))});
  }
  nodes.tables.push_back(std::move(table));
  report.sections.push_back(std::move(nodes));
  Section totals{.title = "Totals"};
  totals.tables.push_back({.title = "The day as it was",
                           .source = Source::kComputed,
                           .columns = {{"quantity"}, {"value"}},
                           .rows = {{"nodes, mean", t.mean_nodes},
                                    {"cost ($)", t.cost_usd},
                                    {"income ($, of the hours)", t.income_usd},
                                    {"income ($, tokens times prices)", t.income_tokens_usd},
                                    {"margin (% of cost)", t.margin * 100}}});
  report.sections.push_back(std::move(totals));
  return report;
}

}  // namespace moesaic
