// PlacementState: a placement under change: the set of experts of each rank, its load, and what an exchange would do to
// it. Internal to expert_placement. A rank is a set, so slots do not appear; no rank holds an expert twice. One thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/expert_placement.h"

namespace moesaic {

// A change, and what it gains: by how much the sum of squared excess over the target falls.
struct PlacementChange {
  int hot = -1;     // rank
  int expert = -1;  // of rank `hot`
  int cold = -1;    // rank that gets it
  int taken = -1;   // expert that leaves `cold`; -1: an empty slot is used
  bool is_copy =
      false;  // the expert stays on `hot` too, `taken` has another replica elsewhere; else they change places
  double gain = 0;
  int num_moves() const { return is_copy || taken < 0 ? 1 : 2; }
};

class PlacementState {
 public:
  explicit PlacementState(const PlacementShape& shape);

  // No experts on any rank, not settled. load: [num_experts], copied.
  void reset(std::span<const double> load);
  // reset() and the experts of phy2log, not settled; a second replica on a rank is left out.
  void reset(std::span<const double> load, std::span<const int32_t> phy2log);

  int capacity(int rank) const { return shape_.first_slot(rank + 1) - shape_.first_slot(rank); }
  // Experts of the rank, the heaviest replica first.
  std::span<const int32_t> held(int rank) const { return {&held_[rank * width_], static_cast<size_t>(size_[rank])}; }
  bool has(int rank, int expert) const { return on_[rank * shape_.num_experts + expert] != 0; }
  bool is_full(int rank) const { return size_[rank] == capacity(rank); }
  std::span<const int32_t> ranks_of(int expert) const { return ranks_of_[expert]; }
  int count(int expert) const { return static_cast<int>(ranks_of_[expert].size()); }
  double load(int expert) const { return load_[expert]; }
  // Load of each replica.
  double share(int expert) const { return share_[expert]; }
  double rank_load(int rank) const { return rank_load_[rank]; }
  // Ranks, the least loaded first.
  std::span<const int32_t> order() const { return order_; }
  int hottest() const { return order_.back(); }
  double max_load() const { return rank_load_[order_.back()]; }

  // Between reset() and settle(): shares and loads of ranks are not known.
  void place(int rank, int expert);
  void unplace(int rank, int expert);
  void settle();

  void apply(const PlacementChange& change);

  // The change of `best` or a better one: an expert of `hot` changes places with one of `cold`, or fills an empty slot.
  void try_exchange(int hot, int cold, double target, PlacementChange& best) const;
  // The same for copies of an expert of `hot` elsewhere.
  void try_copies(int hot, int expert, double target, PlacementChange& best) const;

 private:
  // Adds or removes a replica, with all that follows for loads and orders.
  void put(int rank, int expert);
  void take(int rank, int expert);
  void spread(int expert);
  void sort_rank(int rank);
  void sort_order();
  void offer(const PlacementChange& change, PlacementChange& best) const;

  PlacementShape shape_;
  int width_;  // slots a rank at most
  std::vector<double> load_, share_, rank_load_;
  std::vector<int32_t> held_;  // [num_ranks, width]
  std::vector<int32_t> size_;
  std::vector<uint8_t> on_;  // [num_ranks, num_experts]
  std::vector<std::vector<int32_t>> ranks_of_;
  std::vector<int32_t> order_;
};

}  // namespace moesaic
