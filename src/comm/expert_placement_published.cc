// The published algorithm: pack groups to nodes, replicate the hottest experts in each node, pack replicas to ranks.
#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"
#include "comm/expert_placement_keys.h"
#include "comm/expert_placement_search.h"
#include "comm/parallel_layout.h"

namespace moesaic {
namespace {

struct Packed {
  std::vector<int32_t> pack;      // of each item
  std::vector<int32_t> position;  // in its pack
};

// Items, the heaviest first, each to the lightest pack that is not full. capacity: items a pack.
Packed balanced_packing(std::span<const float> weight, std::span<const int32_t> capacity) {
  const int num_items = static_cast<int>(weight.size()), num_packs = static_cast<int>(capacity.size());
  Packed packed{std::vector<int32_t>(num_items), std::vector<int32_t>(num_items, 0)};
  if (*std::max_element(capacity.begin(), capacity.end()) == 1) {
    std::iota(packed.pack.begin(), packed.pack.end(), 0);
    return packed;
  }
  std::vector<uint64_t> order(num_items);
  for (int i = 0; i < num_items; ++i) order[i] = heavy_key(weight[i], i);
  std::sort(order.begin(), order.end());
  std::vector<uint64_t> open;  // packs that are not full; ascending, so a heap already
  for (int p = 0; p < num_packs; ++p) {
    if (capacity[p] > 0) open.push_back(light_key(0.0f, p));
  }
  std::vector<int32_t> num_held(num_packs, 0);
  for (const uint64_t item : order) {
    const int32_t i = key_index(item), pack = key_index(open[0]);
    packed.pack[i] = pack;
    packed.position[i] = num_held[pack]++;
    if (num_held[pack] == capacity[pack]) {
      pop_least(open);
    } else {
      replace_least(open, light_key(light_weight(open[0]) + weight[i], pack));
    }
  }
  return packed;
}

struct Replicas {
  std::vector<int32_t> expert;   // of each replica; the first ones are the experts themselves
  std::vector<int32_t> replica;  // which copy it is
  std::vector<int32_t> count;    // of each expert
};

// Each spare replica goes to the expert with the hottest ones, the first of equals.
Replicas replicate_experts(std::span<const float> weight, int num_replicas) {
  const int num_experts = static_cast<int>(weight.size());
  Replicas out{std::vector<int32_t>(num_replicas), std::vector<int32_t>(num_replicas, 0),
               std::vector<int32_t>(num_experts, 1)};
  std::iota(out.expert.begin(), out.expert.begin() + num_experts, 0);
  std::vector<uint64_t> heap(num_experts);
  for (int e = 0; e < num_experts; ++e) heap[e] = heavy_key(weight[e], e);
  std::make_heap(heap.begin(), heap.end(), std::greater<uint64_t>());
  for (int i = num_experts; i < num_replicas; ++i) {
    const int32_t hottest = key_index(heap[0]);
    out.expert[i] = hottest;
    out.replica[i] = out.count[hottest]++;
    replace_least(heap, heavy_key(weight[hottest] / static_cast<float>(out.count[hottest]), hottest));
  }
  return out;
}

// Experts in the order of their nodes: those of node 0, then of node 1, ... Groups stay together.
std::vector<int32_t> experts_by_node(std::span<const float> weight, int num_groups, int num_nodes) {
  const int num_experts = static_cast<int>(weight.size());
  const int group_size = num_experts / num_groups, groups_per_node = num_groups / num_nodes;
  std::vector<float> group_weight(num_groups);
  for (int g = 0; g < num_groups; ++g) {
    const std::span<const float> group = weight.subspan(g * group_size, group_size);
    group_weight[g] = static_cast<float>(std::accumulate(group.begin(), group.end(), 0.0));
  }
  const std::vector<int32_t> capacity(num_nodes, groups_per_node);
  const Packed packed = balanced_packing(group_weight, capacity);
  std::vector<int32_t> ordered(num_experts);
  for (int e = 0; e < num_experts; ++e) {
    const int group = e / group_size;
    const int place = packed.pack[group] * groups_per_node + packed.position[group];
    ordered[place * group_size + e % group_size] = e;
  }
  return ordered;
}

}  // namespace

bool is_hierarchical(const PlacementShape& shape) {
  return (shape.num_groups > 1 || shape.num_nodes > 1) && shape.num_groups % shape.num_nodes == 0;
}

absl::Status check_hierarchy(const PlacementShape& shape) {
  const auto divides = [](std::string_view what, int total, std::string_view by, int parts) -> absl::Status {
    if (parts >= 1 && total % parts == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        str_cat("published placement: ", total, " ", what, " cannot be split over ", parts, " ", by));
  };
  MOESAIC_RETURN_IF_ERROR(divides("experts", shape.num_experts, "groups", shape.num_groups));
  MOESAIC_RETURN_IF_ERROR(divides("groups", shape.num_groups, "nodes", shape.num_nodes));
  MOESAIC_RETURN_IF_ERROR(divides("ranks", shape.num_ranks, "nodes", shape.num_nodes));
  return divides("slots", shape.num_slots, "ranks", shape.num_ranks);
}

PublishedPlacement published_layer(const PlacementShape& shape, std::span<const float> weight) {
  const int num_nodes = is_hierarchical(shape) ? shape.num_nodes : 1;
  std::vector<int32_t> ordered(shape.num_experts);
  std::iota(ordered.begin(), ordered.end(), 0);
  if (is_hierarchical(shape)) ordered = experts_by_node(weight, shape.num_groups, num_nodes);
  const int experts_per_node = shape.num_experts / num_nodes, ranks_per_node = shape.num_ranks / num_nodes;
  const int slots_per_node = shape.num_slots / num_nodes;
  std::vector<int32_t> capacity(ranks_per_node);
  for (int r = 0; r < ranks_per_node; ++r) capacity[r] = shape.first_slot(r + 1) - shape.first_slot(r);

  PublishedPlacement out{std::vector<int32_t>(shape.num_slots), std::vector<int32_t>(shape.num_slots)};
  std::vector<float> node_weight(experts_per_node), share(slots_per_node);
  for (int node = 0; node < num_nodes; ++node) {
    const std::span<const int32_t> experts = std::span(ordered).subspan(node * experts_per_node, experts_per_node);
    for (int e = 0; e < experts_per_node; ++e) node_weight[e] = weight[experts[e]];
    const Replicas replicas = replicate_experts(node_weight, slots_per_node);
    for (int i = 0; i < slots_per_node; ++i) {
      share[i] = node_weight[replicas.expert[i]] / static_cast<float>(replicas.count[replicas.expert[i]]);
    }
    const Packed packed = balanced_packing(share, capacity);
    for (int i = 0; i < slots_per_node; ++i) {
      const int slot = shape.first_slot(node * ranks_per_node + packed.pack[i]) + packed.position[i];
      out.phy2log[slot] = experts[replicas.expert[i]];
      out.replica[slot] = replicas.replica[i];
    }
  }
  return out;
}

absl::StatusOr<PublishedPlacement> published_placement(const PlacementShape& shape, std::span<const double> load) {
  MOESAIC_RETURN_IF_ERROR(validate_shape(shape));
  MOESAIC_RETURN_IF_ERROR(validate_load(shape, load, 0));
  if (is_hierarchical(shape)) MOESAIC_RETURN_IF_ERROR(check_hierarchy(shape));
  const std::vector<float> weight(load.begin(), load.end());
  return published_layer(shape, weight);
}

}  // namespace moesaic
