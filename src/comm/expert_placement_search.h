// PlacementSearch: plans the layers of one shape, one after the other; internal to expert_placement. One thread an
// object; keeps its working memory between layers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/expert_placement.h"
#include "comm/expert_placement_state.h"

namespace moesaic {

inline constexpr int kMaxSlots = 65536;
inline constexpr double kMaxLoad = 1e30;  // sums stay finite in float32

// INVALID_ARGUMENT unless load has num_experts values from 0 to kMaxLoad; the message names the layer.
absl::Status validate_load(const PlacementShape& shape, std::span<const double> load, int64_t layer);

// Whether the hierarchical policy is asked for, and OK if it is possible for the shape.
bool is_hierarchical(const PlacementShape& shape);
absl::Status check_hierarchy(const PlacementShape& shape);
// published_placement() of arguments that are known to be legal. As to policy, the shape decides.
PublishedPlacement published_layer(const PlacementShape& shape, std::span<const float> weight);

class PlacementSearch {
 public:
  explicit PlacementSearch(const PlacementShape& shape) : shape_(shape), state_(shape), best_(shape) {}

  // One layer of plan_placement(). load: [num_experts]; current: [num_slots] or empty; next: [num_slots], filled.
  void plan(std::span<const double> load, std::span<const int32_t> current, std::span<int32_t> next);

 private:
  // What the published algorithm reaches, by the better of its policies.
  struct Goal {
    double max_load = 0;   // of a rank
    double max_share = 0;  // of a replica
    double mean = 0;       // load of a rank
  };
  // published: filled with that placement.
  Goal published_goal(std::span<const double> load, std::vector<int32_t>& published) const;

  // state_: current, changed by few experts until no rank has more than the goal. False: no way was found.
  bool plan_from(std::span<const double> load, std::span<const int32_t> current, const Goal& goal);
  // state_: the best of a placement from nothing and of the published one.
  void plan_afresh(std::span<const double> load, std::span<const int32_t> published, const Goal& goal);

  // Changes state_ until no rank has more than `target`, in at most max_steps changes. False: it is stuck above.
  bool reduce(double target, int max_steps);
  bool improve_hottest(double target);
  // Gives copies to experts until no replica has a share above `limit`. False: not possible.
  bool cool_replicas(double limit);
  // Places what current lacks.
  void place_missing();
  std::vector<int32_t> count_replicas() const;  // [num_experts]
  // Fills state_ from nothing with so many replicas of each expert: the heaviest first, to the lightest ranks.
  void build(std::span<const int32_t> count);
  bool place_by_exchange(int expert);
  // The ranks that state_'s sets go to, so that most of them is there already: [num_ranks].
  std::vector<int32_t> match_ranks(std::span<const int32_t> current) const;
  // Set s of state_ becomes rank to[s]; experts that stay on their rank keep their slots.
  void write(std::span<const int32_t> to, std::span<const int32_t> current, std::span<int32_t> next) const;

  const PlacementShape shape_;
  PlacementState state_;
  PlacementState best_;
};

}  // namespace moesaic
