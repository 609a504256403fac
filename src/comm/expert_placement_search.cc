#include "comm/expert_placement_search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "comm/expert_placement_keys.h"

namespace moesaic {
namespace {

// How many of the hottest rank's experts are tried as copies: where a copy helps at all, it is one of the heaviest.
constexpr int kCopiesTried = 3;
// From nothing, levelling goes on beyond the published balance up to this part of the mean.
constexpr double kGoodEnough = 1.01;
// Experts that give and take a replica where the first numbers of replicas cannot be packed.
constexpr size_t kGiversTried = 2;
constexpr size_t kTakersTried = 4;
// Load that an expert has at least when replicas are given out, as part of the layer's.
constexpr double kLeastShare = 1e-9;
// Of two sums of the same loads in another order.
constexpr double kRounding = 1e-12;
// A gain below this part of the squared target is rounding.
constexpr double kLeastGain = 1e-18;

// The first `num` experts by the load of a replica.
std::vector<int32_t> hottest_replicas(std::span<const double> load, std::span<const int32_t> count, size_t num) {
  std::vector<int32_t> experts(load.size());
  std::iota(experts.begin(), experts.end(), 0);
  std::stable_sort(experts.begin(), experts.end(),
                   [&](int32_t a, int32_t b) { return load[a] / count[a] > load[b] / count[b]; });
  experts.resize(std::min(num, experts.size()));
  return experts;
}

}  // namespace

bool PlacementSearch::improve_hottest(double target) {
  const int hot = state_.hottest();
  PlacementChange best{.gain = kLeastGain * target * target};
  bool is_full = false;
  for (const int32_t cold : state_.order()) {
    if (cold == hot) continue;
    state_.try_exchange(hot, cold, target, best);
    if (best.hot < 0) continue;
    const double moved = state_.share(best.expert) - (best.taken < 0 ? 0.0 : state_.share(best.taken));
    is_full = state_.rank_load(hot) - moved <= target && state_.rank_load(best.cold) + moved <= target;
    if (is_full) break;
  }
  if (!is_full && shape_.num_slots > shape_.num_experts) {
    const std::span<const int32_t> held = state_.held(hot);
    for (size_t i = 0; i < held.size() && i < kCopiesTried; ++i) state_.try_copies(hot, held[i], target, best);
  }
  if (best.hot < 0) return false;
  state_.apply(best);
  return true;
}

bool PlacementSearch::reduce(double target, int max_steps) {
  for (int step = 0; step < max_steps && state_.max_load() > target; ++step) {
    if (!improve_hottest(target)) return false;
  }
  return state_.max_load() <= target;
}

// Each expert above the limit gets the slot of a replica whose expert can spare it best.
bool PlacementSearch::cool_replicas(double limit) {
  const auto left = [&](int e) { return state_.load(e) / (state_.count(e) - 1); };
  for (int step = 0; step < shape_.num_slots; ++step) {
    int hot = 0;
    for (int e = 1; e < shape_.num_experts; ++e) {
      if (state_.share(e) > state_.share(hot)) hot = e;
    }
    if (state_.share(hot) <= limit) return true;
    PlacementChange change{.hot = state_.ranks_of(hot)[0], .expert = hot, .is_copy = true};
    for (int e = 0; e < shape_.num_experts; ++e) {
      if (state_.count(e) < 2 || left(e) > limit || (change.taken >= 0 && left(e) >= left(change.taken))) continue;
      for (const int32_t rank : state_.ranks_of(e)) {
        if (state_.has(rank, hot)) continue;
        if (change.taken == e && state_.rank_load(rank) >= state_.rank_load(change.cold)) continue;
        change.cold = rank;
        change.taken = e;
      }
    }
    if (change.cold < 0) return false;
    state_.apply(change);
  }
  return false;
}

void PlacementSearch::place_missing() {
  for (int expert = 0; expert < shape_.num_experts; ++expert) {
    if (state_.count(expert) > 0) continue;
    int rank = 0;
    while (rank < shape_.num_ranks && state_.is_full(rank)) ++rank;
    if (rank == shape_.num_ranks) {  // then some expert has two replicas: there are at least as many slots as experts
      int donor = -1;
      const auto left = [&](int e) { return state_.load(e) / (state_.count(e) - 1); };
      for (int e = 0; e < shape_.num_experts; ++e) {
        if (state_.count(e) > 1 && (donor < 0 || left(e) < left(donor))) donor = e;
      }
      MOESAIC_CHECK(donor >= 0);
      rank = state_.ranks_of(donor).back();
      state_.unplace(rank, donor);
    }
    state_.place(rank, expert);
  }
}

bool PlacementSearch::place_by_exchange(int expert) {
  for (int open = 0; open < shape_.num_ranks; ++open) {
    if (state_.is_full(open)) continue;
    for (int full = 0; full < shape_.num_ranks; ++full) {
      if (state_.has(full, expert)) continue;
      for (const int32_t other : state_.held(full)) {
        if (state_.has(open, other)) continue;
        state_.unplace(full, other);
        state_.place(open, other);
        state_.place(full, expert);
        return true;
      }
    }
  }
  return false;
}

// As the published algorithm, but at most one replica a rank, and experts without load share what is left.
std::vector<int32_t> PlacementSearch::count_replicas() const {
  const int num_owners = (shape_.num_slots + shape_.slots_per_rank() - 1) / shape_.slots_per_rank();
  double total = 0;
  for (int e = 0; e < shape_.num_experts; ++e) total += state_.load(e);
  const auto share = [&](int e, int count) {
    return static_cast<float>((state_.load(e) + total * kLeastShare) / count);
  };
  std::vector<int32_t> count(shape_.num_experts, 1);
  std::vector<uint64_t> heap(shape_.num_experts);
  for (int e = 0; e < shape_.num_experts; ++e) heap[e] = heavy_key(share(e, 1), e);
  std::make_heap(heap.begin(), heap.end(), std::greater<uint64_t>());
  for (int spare = shape_.num_slots - shape_.num_experts; spare > 0 && !heap.empty();) {
    const int32_t hottest = key_index(heap[0]);
    if (count[hottest] == num_owners) {
      pop_least(heap);
      continue;
    }
    ++count[hottest];
    --spare;
    replace_least(heap, heavy_key(share(hottest, count[hottest]), hottest));
  }
  return count;
}

void PlacementSearch::build(std::span<const int32_t> count) {
  std::vector<uint64_t> order(shape_.num_experts), open, passed;
  for (int e = 0; e < shape_.num_experts; ++e) {
    order[e] = heavy_key(static_cast<float>(state_.load(e) / count[e]), e);
  }
  std::sort(order.begin(), order.end());
  for (int r = 0; r < shape_.num_ranks; ++r) {
    if (!state_.is_full(r)) open.push_back(light_key(0.0f, r));
  }
  for (const uint64_t key : order) {
    const int32_t expert = key_index(key);
    const float share = static_cast<float>(state_.load(expert) / count[expert]);
    passed.clear();
    int left = count[expert];
    for (; left > 0 && !open.empty(); --left) {  // the lightest ranks, each once
      const int32_t rank = key_index(open[0]);
      state_.place(rank, expert);
      if (!state_.is_full(rank)) passed.push_back(light_key(light_weight(open[0]) + share, rank));
      pop_least(open);
    }
    for (const uint64_t rank : passed) {
      open.push_back(rank);
      std::push_heap(open.begin(), open.end(), std::greater<uint64_t>());
    }
    while (left > 0 && place_by_exchange(expert)) --left;
  }
}

bool PlacementSearch::plan_from(std::span<const double> load, std::span<const int32_t> current, const Goal& goal) {
  const auto restart = [&] {
    state_.reset(load, current);
    place_missing();
    state_.settle();
  };
  restart();
  double hottest = 0;
  for (int e = 0; e < shape_.num_experts; ++e) hottest = std::max(hottest, state_.share(e));
  if (hottest <= goal.max_load) {
    if (reduce(goal.max_load, 4 * shape_.num_slots)) return true;
    restart();
  }
  return cool_replicas(goal.max_share) && reduce(goal.max_load, 4 * shape_.num_slots);
}

void PlacementSearch::plan_afresh(std::span<const double> load, std::span<const int32_t> published, const Goal& goal) {
  state_.reset(load);
  std::vector<int32_t> count = count_replicas();
  const auto build_and_reduce = [&] {
    build(count);
    place_missing();
    state_.settle();
    reduce(goal.max_load, 4 * shape_.num_slots);
  };
  build_and_reduce();
  reduce(goal.mean * kGoodEnough, shape_.num_ranks);
  if (state_.max_load() <= goal.max_load) return;
  std::swap(state_, best_);
  state_.reset(load, published);
  state_.settle();
  reduce(goal.max_load, 4 * shape_.num_slots);
  if (best_.max_load() <= state_.max_load()) std::swap(state_, best_);
  // Replicas of equal weight that may not share a rank can be hard to pack: an expert of the fullest rank gives a
  // replica to one with heavy replicas.
  const std::vector<int32_t> takers = hottest_replicas(load, count, kTakersTried);
  const std::vector<int32_t> held(state_.held(state_.hottest()).begin(), state_.held(state_.hottest()).end());
  for (size_t i = 0; i < held.size() && i < kGiversTried; ++i) {
    for (const int32_t taker : takers) {
      if (state_.max_load() <= goal.max_load) return;
      if (count[held[i]] < 2 || taker == held[i]) continue;
      --count[held[i]];
      ++count[taker];
      std::swap(state_, best_);
      state_.reset(load);
      build_and_reduce();
      if (best_.max_load() <= state_.max_load()) std::swap(state_, best_);
      ++count[held[i]];
      --count[taker];
    }
  }
}

std::vector<int32_t> PlacementSearch::match_ranks(std::span<const int32_t> current) const {
  struct Pair {
    int32_t set, rank;
  };
  const int num_ranks = shape_.num_ranks;
  std::vector<int32_t> common(static_cast<size_t>(num_ranks) * num_ranks, 0);  // experts, by set and rank
  const auto common_of = [&](const Pair& pair) -> int32_t& {
    return common[static_cast<size_t>(pair.set) * num_ranks + pair.rank];
  };
  std::vector<Pair> pairs;
  for (int slot = 0; slot < shape_.num_slots; ++slot) {
    if (current[slot] < 0) continue;
    for (const int32_t set : state_.ranks_of(current[slot])) {
      const Pair pair{set, shape_.rank_of(slot)};
      if (state_.capacity(set) == state_.capacity(pair.rank) && common_of(pair)++ == 0) pairs.push_back(pair);
    }
  }
  std::sort(pairs.begin(), pairs.end(), [&](const Pair& a, const Pair& b) {
    if (common_of(a) != common_of(b)) return common_of(a) > common_of(b);
    return a.set != b.set ? a.set < b.set : a.rank < b.rank;
  });
  std::vector<bool> is_taken(num_ranks, false);
  std::vector<int32_t> to(num_ranks, -1);
  const auto assign = [&](const Pair& pair) {
    if (to[pair.set] >= 0 || is_taken[pair.rank]) return;
    to[pair.set] = pair.rank;
    is_taken[pair.rank] = true;
  };
  for (const Pair& pair : pairs) assign(pair);
  for (int set = 0; set < num_ranks; ++set) {  // nothing in common with any that is left
    for (int rank = 0; rank < num_ranks && to[set] < 0; ++rank) {
      if (state_.capacity(set) == state_.capacity(rank)) assign({set, rank});
    }
  }
  return to;
}

void PlacementSearch::write(std::span<const int32_t> to, std::span<const int32_t> current,
                            std::span<int32_t> next) const {
  std::fill(next.begin(), next.end(), -1);
  std::vector<int32_t> rest;
  for (int set = 0; set < shape_.num_ranks; ++set) {
    const int begin = shape_.first_slot(to[set]), end = shape_.first_slot(to[set] + 1);
    rest.assign(state_.held(set).begin(), state_.held(set).end());
    std::sort(rest.begin(), rest.end());
    for (int slot = begin; slot < end && !current.empty(); ++slot) {
      const auto stays = std::find(rest.begin(), rest.end(), current[slot]);
      if (stays == rest.end()) continue;
      next[slot] = *stays;
      rest.erase(stays);
    }
    size_t i = 0;
    for (int slot = begin; slot < end && i < rest.size(); ++slot) {
      if (next[slot] < 0) next[slot] = rest[i++];
    }
  }
}

void PlacementSearch::plan(std::span<const double> load, std::span<const int32_t> current, std::span<int32_t> next) {
  std::vector<double> loads(load.begin(), load.end());
  if (*std::max_element(load.begin(), load.end()) <= 0) std::fill(loads.begin(), loads.end(), 1.0);
  std::vector<int32_t> published;
  const Goal goal = published_goal(loads, published);
  std::vector<int32_t> to(shape_.num_ranks);
  std::iota(to.begin(), to.end(), 0);
  if (current.empty() || !plan_from(loads, current, goal)) {
    plan_afresh(loads, published, goal);
    if (state_.max_load() > goal.max_load) {
      std::copy(published.begin(), published.end(), next.begin());
      return;
    }
    if (!current.empty()) to = match_ranks(current);
  }
  write(to, current, next);
}

PlacementSearch::Goal PlacementSearch::published_goal(std::span<const double> load,
                                                      std::vector<int32_t>& published) const {
  const std::vector<float> weights(load.begin(), load.end());
  std::vector<PlacementShape> policies = {{shape_.num_experts, shape_.num_slots, shape_.num_ranks}};
  if (is_hierarchical(shape_) && check_hierarchy(shape_).ok()) policies.push_back(shape_);
  Goal goal{.max_load = std::numeric_limits<double>::infinity()};
  for (const PlacementShape& policy : policies) {
    std::vector<int32_t> phy2log = published_layer(policy, weights).phy2log;
    const std::vector<double> loads = rank_loads(shape_, phy2log, load);
    const double max_load = *std::max_element(loads.begin(), loads.end());
    if (max_load >= goal.max_load) continue;
    goal = {.max_load = max_load, .mean = std::accumulate(loads.begin(), loads.end(), 0.0) / shape_.num_ranks};
    published = std::move(phy2log);
  }
  std::vector<int32_t> count(shape_.num_experts, 0);
  for (const int32_t expert : published) ++count[expert];
  for (int e = 0; e < shape_.num_experts; ++e) goal.max_share = std::max(goal.max_share, load[e] / count[e]);
  goal.max_load *= 1 + kRounding;  // loads that are changed step by step differ in their last bits
  return goal;
}

}  // namespace moesaic
