#include "comm/expert_placement_state.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace moesaic {
namespace {

double square_excess(double load, double target) {
  const double excess = std::max(0.0, load - target);
  return excess * excess;
}

}  // namespace

PlacementState::PlacementState(const PlacementShape& shape)
    : shape_(shape),
      width_(shape.slots_per_rank()),
      load_(shape.num_experts),
      share_(shape.num_experts),
      rank_load_(shape.num_ranks),
      held_(static_cast<size_t>(shape.num_ranks) * width_),
      size_(shape.num_ranks),
      on_(static_cast<size_t>(shape.num_ranks) * shape.num_experts),
      ranks_of_(shape.num_experts),
      order_(shape.num_ranks) {}

void PlacementState::reset(std::span<const double> load) {
  load_.assign(load.begin(), load.end());
  std::fill(size_.begin(), size_.end(), 0);
  std::fill(on_.begin(), on_.end(), uint8_t{0});
  for (std::vector<int32_t>& ranks : ranks_of_) ranks.clear();
}

void PlacementState::reset(std::span<const double> load, std::span<const int32_t> phy2log) {
  reset(load);
  for (int slot = 0; slot < shape_.num_slots; ++slot) {
    const int32_t expert = phy2log[slot];
    if (expert >= 0 && !has(shape_.rank_of(slot), expert)) place(shape_.rank_of(slot), expert);
  }
}

void PlacementState::place(int rank, int expert) {
  MOESAIC_CHECK(!is_full(rank) && !has(rank, expert));
  held_[rank * width_ + size_[rank]++] = expert;
  on_[rank * shape_.num_experts + expert] = 1;
  ranks_of_[expert].push_back(rank);
}

void PlacementState::unplace(int rank, int expert) {
  int32_t* begin = &held_[rank * width_];
  int32_t* end = begin + size_[rank];
  std::rotate(std::find(begin, end, expert), std::find(begin, end, expert) + 1, end);
  --size_[rank];
  on_[rank * shape_.num_experts + expert] = 0;
  ranks_of_[expert].erase(std::find(ranks_of_[expert].begin(), ranks_of_[expert].end(), rank));
}

void PlacementState::settle() {
  for (int e = 0; e < shape_.num_experts; ++e) share_[e] = count(e) == 0 ? 0.0 : load_[e] / count(e);
  for (int r = 0; r < shape_.num_ranks; ++r) {
    rank_load_[r] = 0;
    for (const int32_t e : held(r)) rank_load_[r] += share_[e];
    sort_rank(r);
  }
  std::iota(order_.begin(), order_.end(), 0);
  std::sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) {
    return rank_load_[a] != rank_load_[b] ? rank_load_[a] < rank_load_[b] : a < b;
  });
}

void PlacementState::put(int rank, int expert) {
  place(rank, expert);
  rank_load_[rank] += share_[expert];  // spread() corrects it
  spread(expert);
}

void PlacementState::take(int rank, int expert) {
  unplace(rank, expert);
  rank_load_[rank] -= share_[expert];
  spread(expert);
}

void PlacementState::spread(int expert) {
  const double before = share_[expert];
  share_[expert] = load_[expert] / count(expert);
  for (const int32_t rank : ranks_of_[expert]) {
    rank_load_[rank] += share_[expert] - before;
    sort_rank(rank);
  }
}

// Insertion sorts: at most a few are out of place.
void PlacementState::sort_rank(int rank) {
  int32_t* held = &held_[rank * width_];
  for (int i = 1; i < size_[rank]; ++i) {
    const int32_t e = held[i];
    int j = i;
    for (; j > 0 && (share_[held[j - 1]] < share_[e] || (share_[held[j - 1]] == share_[e] && held[j - 1] > e)); --j) {
      held[j] = held[j - 1];
    }
    held[j] = e;
  }
}

void PlacementState::sort_order() {
  for (int i = 1; i < shape_.num_ranks; ++i) {
    const int32_t r = order_[i];
    int j = i;
    for (; j > 0 && (rank_load_[order_[j - 1]] > rank_load_[r] ||
                     (rank_load_[order_[j - 1]] == rank_load_[r] && order_[j - 1] > r));
         --j) {
      order_[j] = order_[j - 1];
    }
    order_[j] = r;
  }
}

void PlacementState::apply(const PlacementChange& change) {
  if (!change.is_copy) unplace(change.hot, change.expert);
  if (change.taken >= 0) unplace(change.cold, change.taken);
  place(change.cold, change.expert);
  if (!change.is_copy && change.taken >= 0) place(change.hot, change.taken);
  const double before = share_[change.expert];
  if (change.is_copy) {
    rank_load_[change.cold] += before;
    spread(change.expert);
    if (change.taken >= 0) {
      rank_load_[change.cold] -= share_[change.taken];
      spread(change.taken);
    }
  } else {
    const double moved = before - (change.taken >= 0 ? share_[change.taken] : 0.0);
    rank_load_[change.hot] -= moved;
    rank_load_[change.cold] += moved;
  }
  sort_rank(change.hot);
  sort_rank(change.cold);
  sort_order();
}

// More gain a move wins; the first of equals.
void PlacementState::offer(const PlacementChange& change, PlacementChange& best) const {
  if (change.gain * best.num_moves() > best.gain * change.num_moves()) best = change;
}

void PlacementState::try_exchange(int hot, int cold, double target, PlacementChange& best) const {
  const double hot_load = rank_load_[hot], cold_load = rank_load_[cold];
  const double wanted = (hot_load - cold_load) / 2;  // of all that could go over, this gains most
  const double before = square_excess(hot_load, target) + square_excess(cold_load, target);
  const std::span<const int32_t> from = held(hot), to = held(cold);
  const auto consider = [&](int32_t expert, int32_t taken, double moved) {
    if (moved <= 0) return;
    const double after = square_excess(hot_load - moved, target) + square_excess(cold_load + moved, target);
    offer({.hot = hot, .expert = expert, .cold = cold, .taken = taken, .gain = before - after}, best);
  };
  size_t j = 0;  // the first of `to` with a share of at most share(expert) - wanted, or to.size(); only grows
  for (const int32_t expert : from) {
    if (has(cold, expert)) continue;
    const double share = share_[expert];
    if (!is_full(cold)) consider(expert, -1, share);
    while (j < to.size() && share_[to[j]] > share - wanted) ++j;
    if (j < to.size() && !has(hot, to[j])) consider(expert, to[j], share - share_[to[j]]);
    if (j > 0 && !has(hot, to[j - 1])) consider(expert, to[j - 1], share - share_[to[j - 1]]);
  }
}

void PlacementState::try_copies(int hot, int expert, double target, PlacementChange& best) const {
  const int before = count(expert);
  const double share = share_[expert], next_share = load_[expert] / (before + 1), relief = share - next_share;
  double relief_gain = 0;  // on the ranks that hold the expert
  for (const int32_t rank : ranks_of_[expert]) {
    relief_gain += square_excess(rank_load_[rank], target) - square_excess(rank_load_[rank] - relief, target);
  }
  const auto consider = [&](int cold, int taken) {
    const double old_load = rank_load_[cold];
    double gain = relief_gain + square_excess(old_load, target);
    if (taken < 0) {
      gain -= square_excess(old_load + next_share, target);
    } else {
      gain -= square_excess(old_load + next_share - share_[taken], target);
      const double burden = load_[taken] / (count(taken) - 1) - share_[taken];
      for (const int32_t rank : ranks_of_[taken]) {
        if (rank == cold) continue;
        const double load = rank_load_[rank] - (has(rank, expert) ? relief : 0.0);
        gain -= square_excess(load + burden, target) - square_excess(load, target);
      }
    }
    offer({.hot = hot, .expert = expert, .cold = cold, .taken = taken, .is_copy = true, .gain = gain}, best);
  };
  for (int cold = 0; cold < shape_.num_ranks; ++cold) {
    if (has(cold, expert)) continue;
    if (!is_full(cold)) consider(cold, -1);
    if (rank_load_[cold] + next_share >= rank_load_[hot] + share) continue;
    for (const int32_t taken : held(cold)) {
      if (count(taken) > 1 && load_[taken] / (count(taken) - 1) < share) consider(cold, taken);
    }
  }
}

}  // namespace moesaic
