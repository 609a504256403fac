#include "comm/expert_placement.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "comm/expert_placement_search.h"
#include "comm/parallel_layout.h"

namespace moesaic {
namespace {

absl::Status validate_current(const PlacementShape& shape, std::span<const int32_t> current, int64_t num_layers) {
  if (current.empty()) return absl::OkStatus();
  if (static_cast<int64_t>(current.size()) != num_layers * shape.num_slots) {
    return absl::InvalidArgumentError(str_cat("expert placement: the current placement has ", current.size(),
                                              " slots; expected ", num_layers, " layers of ", shape.num_slots));
  }
  for (size_t i = 0; i < current.size(); ++i) {
    if (current[i] >= -1 && current[i] < shape.num_experts) continue;
    return absl::InvalidArgumentError(str_cat("expert placement: layer ", i / shape.num_slots, ", slot ",
                                              i % shape.num_slots, " holds expert ", current[i], "; expected 0 to ",
                                              shape.num_experts - 1, ", or -1 for an empty slot"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status validate_shape(const PlacementShape& shape) {
  if (shape.num_experts < 1) {
    return absl::InvalidArgumentError(
        str_cat("expert placement: ", shape.num_experts, " experts; expected at least 1"));
  }
  if (shape.num_slots < shape.num_experts || shape.num_slots > kMaxSlots) {
    return absl::InvalidArgumentError(str_cat("expert placement: ", shape.num_slots, " slots for ", shape.num_experts,
                                              " experts; expected ", shape.num_experts, " to ", kMaxSlots));
  }
  if (shape.num_ranks < 1 || shape.num_ranks > kMaxRanks) {
    return absl::InvalidArgumentError(
        str_cat("expert placement: ", shape.num_ranks, " ranks; expected 1 to ", kMaxRanks));
  }
  if (shape.num_groups < 1 || shape.num_nodes < 1) {
    return absl::InvalidArgumentError(str_cat("expert placement: ", shape.num_groups, " groups, ", shape.num_nodes,
                                              " nodes; expected at least 1 of each"));
  }
  return absl::OkStatus();
}

absl::Status validate_load(const PlacementShape& shape, std::span<const double> load, int64_t layer) {
  if (load.size() != static_cast<size_t>(shape.num_experts)) {
    return absl::InvalidArgumentError(
        str_cat("expert placement: loads of ", load.size(), " experts; expected ", shape.num_experts));
  }
  for (size_t e = 0; e < load.size(); ++e) {
    if (load[e] >= 0 && load[e] <= kMaxLoad) continue;
    return absl::InvalidArgumentError(str_cat("expert placement: layer ", layer, ", expert ", e, " has load ", load[e],
                                              "; expected 0 to ", kMaxLoad));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> plan_placement(const PlacementShape& shape, std::span<const double> loads,
                                                    std::span<const int32_t> current, ThreadPool* pool) {
  MOESAIC_RETURN_IF_ERROR(validate_shape(shape));
  if (loads.size() % shape.num_experts != 0) {
    return absl::InvalidArgumentError(
        str_cat("expert placement: ", loads.size(), " loads; expected a multiple of ", shape.num_experts, " experts"));
  }
  const int64_t num_layers = static_cast<int64_t>(loads.size()) / shape.num_experts;
  MOESAIC_RETURN_IF_ERROR(validate_current(shape, current, num_layers));
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    MOESAIC_RETURN_IF_ERROR(validate_load(shape, loads.subspan(layer * shape.num_experts, shape.num_experts), layer));
  }
  std::vector<int32_t> next(num_layers * shape.num_slots);
  std::atomic<int64_t> num_taken{0};  // layers differ in cost, so they are handed out one by one
  const auto plan_layers = [&](int) {
    PlacementSearch search(shape);
    for (int64_t layer; (layer = num_taken.fetch_add(1, std::memory_order_relaxed)) < num_layers;) {
      const int64_t slot = layer * shape.num_slots;
      search.plan(loads.subspan(layer * shape.num_experts, shape.num_experts),
                  current.empty() ? current : current.subspan(slot, shape.num_slots),
                  std::span(next).subspan(slot, shape.num_slots));
    }
  };
  if (pool == nullptr) {
    plan_layers(0);
  } else {
    pool->run(plan_layers);
  }
  return next;
}

std::vector<double> rank_loads(const PlacementShape& shape, std::span<const int32_t> phy2log,
                               std::span<const double> load) {
  MOESAIC_CHECK_EQ(static_cast<int>(phy2log.size()), shape.num_slots);
  MOESAIC_CHECK_EQ(static_cast<int>(load.size()), shape.num_experts);
  std::vector<int32_t> count(shape.num_experts, 0);
  for (const int32_t expert : phy2log) {
    if (expert >= 0) ++count[expert];
  }
  std::vector<double> loads(shape.num_ranks, 0.0);
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    const int32_t expert = phy2log[slot];
    if (expert >= 0) loads[shape.rank_of(slot)] += load[expert] / count[expert];
  }
  return loads;
}

double balancedness(std::span<const double> rank_loads) {
  const double max = *std::max_element(rank_loads.begin(), rank_loads.end());
  if (max <= 0) return 1.0;
  return std::accumulate(rank_loads.begin(), rank_loads.end(), 0.0) / static_cast<double>(rank_loads.size()) / max;
}

int64_t count_moves(const PlacementShape& shape, std::span<const int32_t> current, std::span<const int32_t> next) {
  MOESAIC_CHECK_EQ(static_cast<int>(next.size()), shape.num_slots);
  MOESAIC_CHECK(current.empty() || current.size() == next.size());
  int64_t num_moves = 0;
  for (int rank = 0; rank < shape.num_ranks; ++rank) {
    const int begin = shape.first_slot(rank), size = shape.first_slot(rank + 1) - begin;
    std::vector<int32_t> has(next.begin() + begin, next.begin() + begin + size);
    std::sort(has.begin(), has.end());
    has.erase(std::unique(has.begin(), has.end()), has.end());
    const auto had = current.empty() ? current : current.subspan(begin, size);
    for (const int32_t expert : has) {
      num_moves += expert >= 0 && std::find(had.begin(), had.end(), expert) == had.end();
    }
  }
  return num_moves;
}

}  // namespace moesaic
