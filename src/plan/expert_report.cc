#include "plan/expert_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace moesaic {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> assumptions(const ExpertsAnswer& answer) {
  const ExpertsQuestion& q = answer.question;
  const OperatingPoint& p = q.point;
  std::vector<std::string> out;
  out.push_back(
      q.is_recorded
          ? fmt::format("Loads are {} recorded records; placements are planned on each and measured on it (in "
                        "distribution) and on the next (out).",
                        q.loads.size())
          : std::string("Loads are generated with the skew of published recordings; \"out of distribution\" is "
                        "traffic of another kind, correlated by 0.95 in the logarithm."));
  if (!answer.has_other()) out.push_back("There is one record: nothing was measured out of distribution.");
  out.push_back(
      "Balancedness is the mean over the maximum of the tokens of ranks, of whole records: single steps vary more.");
  out.push_back("An expert's tokens are divided evenly over its replicas.");
  out.push_back(p.phase == Phase::kDecode
                    ? fmt::format("Throughput is predicted by the cost model for {} on {}, decode, {} requests a DP "
                                  "rank of {} KV tokens.",
                                  q.deployment.layout.to_string(), q.deployment.hardware.name, p.batch, p.kv_len)
                    : fmt::format("Throughput is predicted by the cost model for {} on {}, prefill, {} tokens a DP "
                                  "rank of prompts of {}.",
                                  q.deployment.layout.to_string(), q.deployment.hardware.name, p.chunk_tokens,
                                  p.prompt_len));
  return out;
}

double gain_percent(const ExpertsAnswer& answer, const RedundancyRow& row) {
  return (row.prediction.tokens_per_s_per_node / answer.rows[0].prediction.tokens_per_s_per_node - 1) * 100;
}

std::string verdict(const ExpertsAnswer& answer) {
  const RedundancyRow &first = answer.rows[0], &best = answer.rows[answer.best];
  if (!best.prediction.fits) return "This does not fit into memory.";
  const double speedup = best.prediction.tokens_per_s_per_node / answer.unplaced.tokens_per_s_per_node;
  const std::string placed =
      fmt::format(" Placed, throughput is {:.2f} times that of experts in their order (predicted{}).", speedup,
                  answer.unplaced.in_range ? "" : ", the latter outside the range that was compared");
  if (answer.best == 0) {
    return fmt::format(
               "{} redundant experts, all that {} slots a rank have room for: another slot a rank does not gain 1 %.",
               first.redundant(), first.balance.shape.slots_per_rank()) +
           placed;
  }
  return fmt::format("{} redundant experts pay: {:+.1f} % predicted throughput against {}.", best.redundant(),
                     gain_percent(answer, best), first.redundant()) +
         placed;
}

Json balance_json(const LayerBalance& b) {
  return {{"natural", b.natural}, {"published", b.published}, {"planned", b.planned}};
}

Json layers_json(const Balance& balance, bool has_other) {
  Json out = Json::array();
  for (size_t layer = 0; layer < balance.in.size(); ++layer) {
    Json row = {{"layer", layer}, {"in", balance_json(balance.in[layer])}};
    if (has_other) row["out"] = balance_json(balance.out[layer]);
    out.push_back(std::move(row));
  }
  return out;
}

Chart layer_chart(const ExpertsAnswer& answer, const Balance& balance) {
  const Source source = answer.question.is_recorded ? Source::kComputed : Source::kSimulated;
  Chart chart{.title = fmt::format("Balancedness by MoE layer, EP{}, {} slots", balance.shape.num_ranks,
                                   balance.shape.num_slots),
              .x_label = "MoE layer",
              .y_label = "mean / max of the ranks"};
  const auto add = [&](const char* name, const std::vector<LayerBalance>& layers, double LayerBalance::*field) {
    Series series{.name = name, .source = source};
    for (size_t layer = 0; layer < layers.size(); ++layer) series.points.emplace_back(layer, layers[layer].*field);
    chart.series.push_back(std::move(series));
  };
  add("natural order", balance.in, &LayerBalance::natural);
  add("EPLB", balance.in, &LayerBalance::published);
  add("Moesaic", balance.in, &LayerBalance::planned);
  if (answer.has_other()) {
    add("EPLB, other traffic", balance.out, &LayerBalance::published);
    add("Moesaic, other traffic", balance.out, &LayerBalance::planned);
  }
  return chart;
}

Table redundancy_table(const ExpertsAnswer& answer) {
  Table table{.title = "What redundant experts are worth",
              .source = Source::kPredicted,
              .columns = {{"redundant"},
                          {"slots a rank"},
                          {"in distribution"},
                          {"out"},
                          {"throughput", "tokens/s a node"},
                          {"gain", "%"},
                          {"KV free", "tokens"}}};
  for (const RedundancyRow& row : answer.rows) {
    table.rows.push_back({static_cast<double>(row.redundant()), static_cast<double>(row.balance.shape.slots_per_rank()),
                          row.balance.mean_in.planned, row.balance.mean_out.planned,
                          row.prediction.tokens_per_s_per_node, gain_percent(answer, row),
                          static_cast<double>(row.prediction.memory.kv_tokens_free)});
  }
  return table;
}

Chart redundancy_chart(const ExpertsAnswer& answer) {
  Chart chart{.title = "Predicted throughput by redundant experts",
              .x_label = "redundant experts",
              .y_label = "tokens/s a node"};
  Series series{.name = "at the balancedness of other traffic", .source = Source::kPredicted};
  for (const RedundancyRow& row : answer.rows) {
    series.points.emplace_back(row.redundant(), row.prediction.tokens_per_s_per_node);
  }
  chart.series.push_back(std::move(series));
  return chart;
}

Table ranks_table(const ExpertsAnswer& answer) {
  Table table{.title = "Balancedness by EP, mean of the layers",
              .source = answer.question.is_recorded ? Source::kComputed : Source::kSimulated,
              .columns = {{"EP"},
                          {"slots"},
                          {"natural order"},
                          {"EPLB"},
                          {"Moesaic"},
                          {"EPLB, other traffic"},
                          {"Moesaic, other traffic"}}};
  for (const Balance& b : answer.by_ranks) {
    table.rows.push_back({static_cast<double>(b.shape.num_ranks), static_cast<double>(b.shape.num_slots),
                          b.mean_in.natural, b.mean_in.published, b.mean_in.planned, b.mean_out.published,
                          b.mean_out.planned});
  }
  return table;
}

}  // namespace

std::string experts_text(const ExpertsAnswer& answer) {
  const char* word = answer.question.is_recorded ? "of recorded loads" : "simulated loads";
  const RedundancyRow& best = answer.rows[answer.best];
  std::string out = fmt::format("Balancedness by layer, EP{}, {} slots ({})\n  {:<7}{:>9}{:>9}{:>9}{:>12}{:>14}\n",
                                best.balance.shape.num_ranks, best.balance.shape.num_slots, word, "layer", "natural",
                                "EPLB", "Moesaic", "EPLB, other", "Moesaic, other");
  for (size_t layer = 0; layer < best.balance.in.size(); ++layer) {
    const LayerBalance &in = best.balance.in[layer], &other = best.balance.out[layer];
    out += fmt::format("  {:<7}{:>9.3f}{:>9.3f}{:>9.3f}{:>12.3f}{:>14.3f}\n", layer, in.natural, in.published,
                       in.planned, other.published, other.planned);
  }
  out += fmt::format("\nMean of the layers by EP ({})\n  {:<5}{:>7}{:>9}{:>9}{:>9}{:>12}{:>15}\n", word, "EP", "slots",
                     "natural", "EPLB", "Moesaic", "EPLB, other", "Moesaic, other");
  for (const Balance& b : answer.by_ranks) {
    out += fmt::format("  {:<5}{:>7}{:>9.3f}{:>9.3f}{:>9.3f}{:>12.3f}{:>15.3f}\n", b.shape.num_ranks, b.shape.num_slots,
                       b.mean_in.natural, b.mean_in.published, b.mean_in.planned, b.mean_out.published,
                       b.mean_out.planned);
  }
  out += fmt::format(
      "\nWhat redundant experts are worth, EP{} (predicted)\n  {:<10}{:>11}{:>8}{:>8}{:>16}{:>8}{:>16}\n",
      best.balance.shape.num_ranks, "redundant", "slots/rank", "in", "out", "tokens/s/node", "gain", "KV tokens free");
  for (const RedundancyRow& row : answer.rows) {
    out += fmt::format("  {:<10}{:>11}{:>8.3f}{:>8.3f}{:>16.0f}{:>7.1f}%{:>16}{}\n", row.redundant(),
                       row.balance.shape.slots_per_rank(), row.balance.mean_in.planned, row.balance.mean_out.planned,
                       row.prediction.tokens_per_s_per_node, gain_percent(answer, row),
                       row.prediction.memory.kv_tokens_free, row.prediction.fits ? "" : "  does not fit");
  }
  out += fmt::format("\n{}\n\nAssumptions\n", verdict(answer));
  for (const std::string& line : assumptions(answer)) out += fmt::format("  - {}\n", line);
  return out;
}

std::string experts_json(const ExpertsAnswer& answer) {
  const RedundancyRow& best = answer.rows[answer.best];
  Json out;
  out["loads"] = answer.question.is_recorded ? "recorded" : "simulated";
  out["ep"] = best.balance.shape.num_ranks;
  out["redundant_experts_that_pay"] = best.redundant();
  out["verdict"] = verdict(answer);
  out["tokens_per_s_per_node_unplaced"] = answer.unplaced.tokens_per_s_per_node;
  out["layers"] = layers_json(best.balance, answer.has_other());
  for (const Balance& b : answer.by_ranks) {
    Json row = {{"ep", b.shape.num_ranks}, {"slots", b.shape.num_slots}, {"in", balance_json(b.mean_in)}};
    if (answer.has_other()) row["out"] = balance_json(b.mean_out);
    out["by_ep"].push_back(std::move(row));
  }
  for (const RedundancyRow& row : answer.rows) {
    out["redundancy"].push_back({{"redundant_experts", row.redundant()},
                                 {"source", "predicted"},
                                 {"balancedness_in", row.balance.mean_in.planned},
                                 {"balancedness_out", row.balance.mean_out.planned},
                                 {"tokens_per_s_per_node", row.prediction.tokens_per_s_per_node},
                                 {"gain_percent", gain_percent(answer, row)},
                                 {"kv_tokens_free", row.prediction.memory.kv_tokens_free},
                                 {"fits", row.prediction.fits}});
  }
  out["assumptions"] = assumptions(answer);
  return out.dump(2) + "\n";
}

Report experts_report(const ExpertsAnswer& answer, const std::string& command) {
  Report report{
      .title = "Expert placement", .summary = verdict(answer), .command = command, .assumptions = assumptions(answer)};
  Section layers{.title = "Balance"};
  layers.charts.push_back(layer_chart(answer, answer.rows[answer.best].balance));
  layers.tables.push_back(ranks_table(answer));
  report.sections.push_back(std::move(layers));
  Section redundancy{.title = "Redundancy", .text = verdict(answer)};
  redundancy.charts.push_back(redundancy_chart(answer));
  redundancy.tables.push_back(redundancy_table(answer));
  report.sections.push_back(std::move(redundancy));
  return report;
}

}  // namespace moesaic
