#include <fmt/format.h>

#include "plan/deploy_report.h"
#include "plan/deployment_settings.h"

namespace moesaic {
namespace {

constexpr double kGiga = 1e9;
constexpr double kMilli = 1e3;
constexpr double kMicro = 1e6;

Cell count(int64_t value) {
  return static_cast<double>(value);
}

Table chosen_table(const DeployPlan& plan) {
  Table table{
      .title = "Chosen instances", .source = Source::kPredicted, .columns = {{"quantity"}, {"decode"}, {"prefill"}}};
  const LayoutCandidate &decode = plan.decode.candidate, &prefill = plan.prefill.candidate;
  const auto add = [&](const char* name, const auto& value_of) {
    table.rows.push_back({name, value_of(plan.decode), value_of(plan.prefill)});
  };
  add("instances", [](const InstancePlan& i) { return count(i.num_instances); });
  add("GPUs of an instance", [](const InstancePlan& i) { return count(i.candidate.deployment.layout.world_size()); });
  add("GPUs in all", [](const InstancePlan& i) { return count(i.num_gpus); });
  add("hardware", [](const InstancePlan& i) { return Cell(i.candidate.deployment.hardware.name); });
  add("EP", [](const InstancePlan& i) { return count(i.candidate.deployment.layout.ep_size()); });
  add("DP", [](const InstancePlan& i) { return count(i.candidate.deployment.layout.dp_size); });
  add("TP", [](const InstancePlan& i) { return count(i.candidate.deployment.layout.tp_size); });
  add("redundant experts", [](const InstancePlan& i) { return count(i.candidate.deployment.num_redundant_experts); });
  add("overlap", [](const InstancePlan& i) { return Cell(overlap_name(i.candidate.deployment.overlap)); });
  table.rows.push_back(
      {"requests, or tokens of a chunk, of a DP rank", count(decode.point.batch), count(prefill.point.chunk_tokens)});
  table.rows.push_back({"drafts", count(decode.deployment.num_draft), "–"});
  add("step (ms)", [](const InstancePlan& i) { return Cell(i.candidate.prediction.step.seconds * kMilli); });
  add("tokens/s of a node", [](const InstancePlan& i) { return Cell(i.candidate.prediction.tokens_per_s_per_node); });
  table.rows.push_back({"tokens/s of a user", decode.prediction.tokens_per_s_per_user, "–"});
  table.rows.push_back({"first token without queues (s)", "–", ttft_seconds(prefill)});
  add("used (%)", [](const InstancePlan& i) { return Cell(i.utilisation * 100); });
  add("$ per million of its tokens", [](const InstancePlan& i) { return Cell(i.cost_per_million_tokens); });
  return table;
}

Section deployment_section(const DeployPlan& plan, const DeployRequest& r) {
  Section section{.title = "Deployment"};
  section.tables.push_back(chosen_table(plan));
  section.tables.push_back({.title = "Both together",
                            .source = Source::kPredicted,
                            .columns = {{"quantity"}, {"value"}},
                            .rows = {{"GPUs of prefill for each of decode", plan.prefill_per_decode},
                                     {"$ an hour", plan.dollars_per_hour},
                                     {"$ per million output tokens", plan.cost_per_million_output_tokens}}});
  section.tables.push_back({.title = "Traffic and goals",
                            .source = Source::kGiven,
                            .columns = {{"quantity"}, {"value"}},
                            .rows = {{"requests/s", r.traffic.requests_per_s},
                                     {"input tokens", count(r.traffic.input_len)},
                                     {"found in the prefix cache (%)", r.traffic.cached_share * 100},
                                     {"output tokens", count(r.traffic.output_len)},
                                     {"least tokens/s of a user", r.goals.least_tokens_per_s_per_user},
                                     {"longest time to the first token (s)", r.goals.most_ttft_s}}});
  return section;
}

// One hardware: a line for each EP, and the chosen instance, of whichever hardware it is.
Chart frontier_chart(const DeployPlan& plan, const std::string& hardware) {
  const LayoutCandidate& chosen = plan.decode.candidate;
  Chart chart{.title = fmt::format("Decode on {}", hardware),
              .kind = Chart::Kind::kScatter,
              .x_label = "tokens/s of a user",
              .y_label = "tokens/s of a node",
              .log_x = true,
              .log_y = true};
  chart.series.push_back(
      {.name = "chosen: " + chosen.label(),
       .source = Source::kPredicted,
       .points = {{chosen.prediction.tokens_per_s_per_user, chosen.prediction.tokens_per_s_per_node}}});
  for (const EpFrontier& line : plan.frontiers) {
    if (line.hardware != hardware) continue;
    Series series{.name = fmt::format("EP{}{}", line.ep_size, line.points.empty() ? ": nothing fits" : ""),
                  .source = Source::kPredicted,
                  .is_joined = true};
    for (const LayoutCandidate& c : line.points) {
      series.points.emplace_back(c.prediction.tokens_per_s_per_user, c.prediction.tokens_per_s_per_node);
    }
    chart.series.push_back(std::move(series));
  }
  return chart;
}

Section frontier_section(const DeployPlan& plan, const DeployRequest& r) {
  Section section{.title = "Speed against throughput",
                  .text =
                      "Each point is a TP, batch, overlap and number of drafts that nothing of the same EP beats in "
                      "both."};
  std::vector<const LayoutCandidate*> all;
  Table refusals{.title = "What does not fit", .source = Source::kPredicted, .columns = {{"EP"}, {"why", "", true}}};
  for (const HardwareSpec& hardware : r.space.hardware) section.charts.push_back(frontier_chart(plan, hardware.name));
  for (const EpFrontier& line : plan.frontiers) {
    for (const LayoutCandidate& c : line.points) all.push_back(&c);
    if (line.points.empty()) {
      refusals.rows.push_back({fmt::format("{} EP{}", line.hardware, line.ep_size), line.refusal});
    }
  }
  Table table{.title = "Frontier of all",
              .source = Source::kPredicted,
              .columns = {{"instance"}, {"user", "tokens/s"}, {"node", "tokens/s"}}};
  for (const LayoutCandidate* c : frontier(all)) {
    table.rows.push_back({c->label(), c->prediction.tokens_per_s_per_user, c->prediction.tokens_per_s_per_node});
  }
  section.tables.push_back(std::move(table));
  if (!refusals.rows.empty()) section.tables.push_back(std::move(refusals));
  return section;
}

Section instance_section(const char* title, const InstancePlan& plan) {
  const LayoutCandidate& c = plan.candidate;
  const Prediction& p = c.prediction;
  Section section{.title = title, .text = fmt::format("{}. What binds: {}.", c.label(), plan.limit)};
  Table step{.title = fmt::format("A step of {} ms", format_number(p.step.seconds * kMilli)),
             .source = Source::kPredicted,
             .columns = {{"part"}, {"share", "%"}}};
  for (const auto& [name, share] : plan.shares) step.rows.push_back({name, share * 100});
  Table layer{.title = "A MoE layer", .source = Source::kPredicted, .columns = {{"part"}, {"time", "us"}}};
  for (const auto& [name, part] : kLayerParts) layer.rows.push_back({name, p.step.moe_layer.*part * kMicro});
  Table memory{.title = fmt::format("Memory of a GPU of {} GB", format_number(p.memory.capacity_bytes / kGiga)),
               .source = Source::kPredicted,
               .columns = {{"buffer"}, {"size", "GB"}}};
  for (const PlannedBuffer& b : p.memory.buffers) memory.rows.push_back({b.name, b.num_bytes / kGiga});
  memory.rows.push_back({"KV cache of this point", p.kv_bytes_needed / kGiga});
  memory.rows.push_back({"left beside it", (p.memory.kv_bytes_free - p.kv_bytes_needed) / kGiga});
  Table why_not{.title = "Why not", .source = Source::kPredicted, .columns = {{"change"}, {"result", "", true}}};
  for (const Neighbour& n : plan.neighbours) why_not.rows.push_back({n.change, n.result});
  section.tables = {std::move(step), std::move(layer), std::move(memory), std::move(why_not)};
  return section;
}

Table trials_table(const char* title, const RoleQueues& role) {
  Table table{
      .title = title,
      .source = Source::kSimulated,
      .columns = {{"instances"}, {"$ an hour"}, {"used", "%"}, {"P50", "ms"}, {"P99", "ms"}, {"goal", "", true}}};
  for (const QueueTrial& t : role.trials) {
    table.rows.push_back({fmt::format("{} x {}", t.num_instances, t.candidate.label()), t.dollars_per_hour,
                          t.utilisation * 100, t.figures.p50_ms, t.figures.p99_ms,
                          t.missed.empty() ? Cell("holds") : Cell(t.missed)});
  }
  return table;
}

Section queues_section(const DeployPlan& plan, const DeployQueues& q, const Goals& goals) {
  Section section{.title = "With queues"};
  section.text = fmt::format(
      "One instance at its share of Poisson arrivals, in virtual time: the cheapest layouts in the order of their "
      "price, "
      "until one holds. Goals: P{:g} of TPOT at most {} ms, P{:g} of TTFT at most {} s. By means, predicted: {} decode "
      "and {} prefill instances, ${:.2f} an hour. With queues, simulated: {}.",
      goals.tpot_percent, format_number(1e3 / goals.least_tokens_per_s_per_user), goals.ttft_percent,
      format_number(goals.most_ttft_s), plan.decode.num_instances, plan.prefill.num_instances, plan.dollars_per_hour,
      queues_summary(q));
  section.tables = {trials_table("Decode: time per token", q.decode),
                    trials_table("Prefill: time to the first token", q.prefill)};
  return section;
}

}  // namespace

Report deploy_report(const DeployPlan& plan, const DeployQueues& queues, const DeployRequest& r,
                     const std::string& command) {
  return {.title = "Deployment plan",
          .summary = fmt::format(
              "Decode on {} {} GPUs ({} instances), prefill on {} {} GPUs ({} instances): ${:.2f} an "
              "hour, ${:.3f} per million output tokens with their prompts, by means: predicted. With queues: {}: "
              "simulated.",
              plan.decode.num_gpus, plan.decode.candidate.deployment.hardware.name, plan.decode.num_instances,
              plan.prefill.num_gpus, plan.prefill.candidate.deployment.hardware.name, plan.prefill.num_instances,
              plan.dollars_per_hour, plan.cost_per_million_output_tokens, queues_summary(queues)),
          .command = command,
          .assumptions = deploy_assumptions(plan, r),
          .sections = {deployment_section(plan, r), queues_section(plan, queues, r.goals), frontier_section(plan, r),
                       instance_section("Decode", plan.decode), instance_section("Prefill", plan.prefill)}};
}

}  // namespace moesaic
