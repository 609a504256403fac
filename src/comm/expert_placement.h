// Expert placement: which logical expert each physical slot of a layer holds, chosen from the experts' loads, so that
// the most loaded rank of a layer gets as little as possible. Two planners: the published one (EPLB) exactly, and
// Moesaic's, which is at least as balanced and moves few experts. Pure functions, host-only, deterministic: the same
// input gives the same placement on every machine and with any number of threads.
//
// The load of an expert is divided evenly over its replicas (ExpertMap sends tokens to them in turn); the load of a
// rank is the sum over its slots. A placement is phy2log, as in ExpertMap: [num_slots] i32, -1 = an empty slot.
//
//   MOESAIC_ASSIGN_OR_RETURN(std::vector<int32_t> next, plan_placement({256, 288, 32}, loads, current, &pool));
//   MOESAIC_ASSIGN_OR_RETURN(ExpertMap map, ExpertMap::make({next.begin(), next.begin() + 288}, 256, version + 1));
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"
#include "base/thread.h"

namespace moesaic {

struct PlacementShape {
  int num_experts = 0;
  int num_slots = 0;  // physical experts of all ranks; at least num_experts
  int num_ranks = 1;
  // For the published algorithm: its policy is hierarchical where nodes divide groups, global elsewhere.
  int num_groups = 1;  // consecutive experts; DeepSeek's n_group
  int num_nodes = 1;   // consecutive ranks

  // Rank r owns slots [r * slots_per_rank, (r + 1) * slots_per_rank) as far as they exist: ParallelLayout::slots.
  int slots_per_rank() const { return (num_slots + num_ranks - 1) / num_ranks; }
  int rank_of(int slot) const { return slot / slots_per_rank(); }
  int first_slot(int rank) const { return std::min(num_slots, rank * slots_per_rank()); }
  bool operator==(const PlacementShape&) const = default;
};

// INVALID_ARGUMENT unless there are experts, at least as many slots, 1 to kMaxRanks ranks, a group and a node.
absl::Status validate_shape(const PlacementShape& shape);

struct PublishedPlacement {
  std::vector<int32_t> phy2log;  // [num_slots]
  std::vector<int32_t> replica;  // [num_slots], which copy of its expert a slot is: log2phy[phy2log[s]][replica[s]] = s
};

// One layer by the published algorithm, github.com/deepseek-ai/EPLB, rebalance_experts(). Hierarchical policy: groups
// are packed to nodes, experts are replicated in each node, replicas are packed to its ranks. Global: the same with one
// group and one node. Sorts are stable: the lower index first. Arithmetic is float32 as published; loads that are
// integers below 2^24 give the same sums in any order. Extended in one place: with the global policy slots need not
// divide evenly, ranks then take as many as they own. load: [num_experts]. Errors (INVALID_ARGUMENT): a bad shape or
// load, and for the hierarchical policy experts that groups do not divide, ranks that nodes do not, slots that ranks do
// not.
absl::StatusOr<PublishedPlacement> published_placement(const PlacementShape& shape, std::span<const double> load);

// All layers by Moesaic's planner.
// loads: [num_layers, num_experts], at least 0 and finite; a layer without load is taken as evenly loaded.
// current: [num_layers, num_slots], the placement to start from, or empty if experts are on no rank yet.
// Returns [num_layers, num_slots]. For each layer:
// - every expert has a slot.
// - the most loaded rank has at most the load that the published algorithm gives it, by its global policy and, where
//   that is possible, by the one that the shape's groups and nodes ask for.
// - no rank holds two replicas of an expert: a slot that only a second one could fill stays empty. The exception is a
//   layer for which no such placement was found to be as balanced; it gets the published one. That happens where slots
//   are many more than experts, and hardly ever elsewhere (in none of 278,400 layers of `moesaic bench experts`).
// - within that, few experts move: current is changed step by step, and an expert that stays on its rank keeps its
// slot. Errors (INVALID_ARGUMENT, naming layer and expert or slot): a bad shape, sizes that do not fit it, a bad load,
// a current placement with an id out of range. Cost: tens of microseconds a layer, shared out over the pool if there is
// one; allocates some kilobytes a thread.
absl::StatusOr<std::vector<int32_t>> plan_placement(const PlacementShape& shape, std::span<const double> loads,
                                                    std::span<const int32_t> current, ThreadPool* pool);

// Load of the ranks of one layer: [num_ranks]. phy2log: [num_slots], with a slot for every expert that has load.
std::vector<double> rank_loads(const PlacementShape& shape, std::span<const int32_t> phy2log,
                               std::span<const double> load);

// Mean over maximum of the ranks' loads, as SGLang's "balancedness": 1 is even, 1 / num_ranks is one rank doing all the
// work. 1 without load.
double balancedness(std::span<const double> rank_loads);

// Experts of one layer that must be loaded to get from current to next: pairs of rank and expert that next has and
// current has not, since moving an expert between slots of its rank loads nothing.
int64_t count_moves(const PlacementShape& shape, std::span<const int32_t> current, std::span<const int32_t> next);

}  // namespace moesaic
