// measure_balance and answer_experts: the arithmetic of `moesaic plan experts`.
#include <algorithm>

#include "plan/expert_report.h"

namespace moesaic {
namespace {

constexpr int kNodeRanks = 8;
// What another slot a rank must gain to be worth the memory that it takes from the KV cache.
constexpr double kLeastGain = 0.01;

std::span<const int32_t> layer_of(const std::vector<int32_t>& placement, const PlacementShape& shape, int layer) {
  return std::span(placement).subspan(static_cast<size_t>(layer) * shape.num_slots, shape.num_slots);
}

LayerBalance mean(const std::vector<LayerBalance>& layers) {
  LayerBalance out;
  const auto n = static_cast<double>(layers.size());
  for (const LayerBalance& layer : layers) {
    out.natural += layer.natural / n;
    out.published += layer.published / n;
    out.planned += layer.planned / n;
  }
  return out;
}

// Groups are those of the routing where they can be split over nodes of eight ranks.
PlacementShape shape_for(const ModelConfig& model, int ranks, int slots_per_rank) {
  PlacementShape shape{static_cast<int>(model.n_routed_experts), slots_per_rank * ranks, ranks};
  if (model.n_group > 0 && ranks % kNodeRanks == 0 && model.n_routed_experts % model.n_group == 0) {
    shape.num_groups = static_cast<int>(model.n_group);
    shape.num_nodes = ranks / kNodeRanks;
  }
  return shape;
}

int least_slots(const ModelConfig& model, int ranks) {
  return static_cast<int>((model.n_routed_experts + ranks - 1) / ranks);
}

// Mean over the pairs of loads.
absl::StatusOr<Balance> balance_of(const PlacementShape& shape, const std::vector<ExpertLoads>& loads,
                                   ThreadPool* pool) {
  const size_t num_pairs = std::max<size_t>(loads.size(), 2) - 1;
  Balance out{.shape = shape};
  for (size_t i = 0; i < num_pairs; ++i) {
    MOESAIC_ASSIGN_OR_RETURN(const Balance pair,
                             measure_balance(shape, loads[i], loads[std::min(i + 1, loads.size() - 1)], pool));
    out.in.resize(pair.in.size());
    out.out.resize(pair.out.size());
    const auto add = [&](LayerBalance& to, const LayerBalance& from) {
      to.natural += from.natural / static_cast<double>(num_pairs);
      to.published += from.published / static_cast<double>(num_pairs);
      to.planned += from.planned / static_cast<double>(num_pairs);
    };
    for (size_t layer = 0; layer < pair.in.size(); ++layer) {
      add(out.in[layer], pair.in[layer]);
      add(out.out[layer], pair.out[layer]);
    }
  }
  out.mean_in = mean(out.in);
  out.mean_out = mean(out.out);
  return out;
}

absl::StatusOr<Prediction> predict_at(const ExpertsQuestion& question, int redundant, double balancedness) {
  Deployment deployment = question.deployment;
  deployment.num_redundant_experts = redundant;
  deployment.balancedness = balancedness;
  MOESAIC_ASSIGN_OR_RETURN(const CostModel cost, CostModel::make(std::move(deployment)));
  return predict(cost, question.point, question.gpus_per_node);
}

}  // namespace

absl::StatusOr<Balance> measure_balance(const PlacementShape& shape, const ExpertLoads& planned,
                                        const ExpertLoads& other, ThreadPool* pool) {
  if (planned.num_experts != shape.num_experts || other.num_experts != shape.num_experts ||
      planned.num_layers != other.num_layers) {
    return absl::InvalidArgumentError(str_cat("expert balance: loads of ", planned.num_layers, " x ",
                                              planned.num_experts, " and ", other.num_layers, " x ", other.num_experts,
                                              " experts for a placement of ", shape.num_experts));
  }
  MOESAIC_ASSIGN_OR_RETURN(const std::vector<int32_t> placement, plan_placement(shape, planned.values, {}, pool));
  const PlacementShape natural{shape.num_experts, shape.num_experts, shape.num_ranks};
  const PlacementShape global{shape.num_experts, shape.num_slots, shape.num_ranks};
  std::vector<int32_t> identity(shape.num_experts);
  for (int e = 0; e < shape.num_experts; ++e) identity[e] = e;
  Balance out{.shape = shape};
  for (int layer = 0; layer < planned.num_layers; ++layer) {
    auto published = published_placement(shape, planned.layer(layer));
    if (!published.ok()) published = published_placement(global, planned.layer(layer));
    if (!published.ok()) return published.status();
    const auto measure = [&](const ExpertLoads& loads) {
      const std::span<const double> load = loads.layer(layer);
      return LayerBalance{.natural = balancedness(rank_loads(natural, identity, load)),
                          .published = balancedness(rank_loads(shape, published->phy2log, load)),
                          .planned = balancedness(rank_loads(shape, layer_of(placement, shape, layer), load))};
    };
    out.in.push_back(measure(planned));
    out.out.push_back(measure(other));
  }
  out.mean_in = mean(out.in);
  out.mean_out = mean(out.out);
  return out;
}

absl::StatusOr<ExpertsAnswer> answer_experts(ExpertsQuestion question, ThreadPool* pool) {
  const ModelConfig& model = question.deployment.model;
  if (model.n_routed_experts < 1) return absl::InvalidArgumentError("the model has no routed experts");
  if (question.loads.empty()) return absl::InvalidArgumentError("no expert loads");
  const int ranks = question.deployment.layout.ep_size(), least = least_slots(model, ranks);
  ExpertsAnswer out{.question = std::move(question)};
  const ExpertsQuestion& q = out.question;
  for (int slots = least; slots <= least + q.max_extra_slots; ++slots) {
    RedundancyRow row;
    MOESAIC_ASSIGN_OR_RETURN(row.balance, balance_of(shape_for(q.deployment.model, ranks, slots), q.loads, pool));
    MOESAIC_ASSIGN_OR_RETURN(row.prediction, predict_at(q, row.redundant(), row.balance.mean_out.planned));
    if (slots == least) {
      MOESAIC_ASSIGN_OR_RETURN(out.unplaced, predict_at(q, row.redundant(), row.balance.mean_out.natural));
    }
    out.rows.push_back(std::move(row));
  }
  for (size_t i = 1; i < out.rows.size(); ++i) {
    const Prediction &more = out.rows[i].prediction, &best = out.rows[out.best].prediction;
    if (!more.fits || more.tokens_per_s_per_node < best.tokens_per_s_per_node * (1 + kLeastGain)) break;
    out.best = i;
  }
  std::vector<int> sizes = {8, 16, 32, 64, 72, 128, 144};
  if (std::find(sizes.begin(), sizes.end(), ranks) == sizes.end()) sizes.push_back(ranks);
  std::sort(sizes.begin(), sizes.end());
  const int wanted = out.rows[out.best].balance.shape.num_slots;
  for (const int size : sizes) {
    const int slots = std::max(least_slots(q.deployment.model, size), (wanted + size - 1) / size);
    MOESAIC_ASSIGN_OR_RETURN(Balance balance, balance_of(shape_for(q.deployment.model, size, slots), q.loads, pool));
    out.by_ranks.push_back(std::move(balance));
  }
  return out;
}

}  // namespace moesaic
