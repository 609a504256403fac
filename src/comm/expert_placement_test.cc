#include "comm/expert_placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <set>

#include "base/rng.h"
#include "comm/expert_map.h"
#include "comm/parallel_layout.h"

namespace moesaic {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

std::vector<int32_t> planned(const PlacementShape& shape, std::span<const double> loads,
                             std::span<const int32_t> current = {}, ThreadPool* pool = nullptr) {
  auto placement = plan_placement(shape, loads, current, pool);
  EXPECT_TRUE(placement.ok()) << placement.status();
  return placement.ok() ? *std::move(placement) : std::vector<int32_t>(shape.num_slots, 0);
}

double max_load(const PlacementShape& shape, std::span<const int32_t> placement, std::span<const double> load) {
  const std::vector<double> loads = rank_loads(shape, placement, load);
  return *std::max_element(loads.begin(), loads.end());
}

// The better of the published policies.
double published_max_load(const PlacementShape& shape, std::span<const double> load) {
  const PlacementShape global{shape.num_experts, shape.num_slots, shape.num_ranks};
  const double max = max_load(shape, published_placement(global, load)->phy2log, load);
  const auto hierarchical = published_placement(shape, load);  // refused where slots or groups cannot be split
  return hierarchical.ok() ? std::min(max, max_load(shape, hierarchical->phy2log, load)) : max;
}

// Every expert has a slot. Returns whether a rank has two of one.
bool has_stacked_replicas(const PlacementShape& shape, std::span<const int32_t> placement) {
  EXPECT_EQ(static_cast<int>(placement.size()), shape.num_slots);
  EXPECT_TRUE(ExpertMap::make({placement.begin(), placement.end()}, shape.num_experts, 1).ok());
  std::set<std::pair<int, int>> seen;
  for (int slot = 0; slot < shape.num_slots; ++slot) {
    if (placement[slot] >= 0 && !seen.insert({shape.rank_of(slot), placement[slot]}).second) return true;
  }
  return false;
}

double normal(Rng& rng) {
  const double u = 1 - rng.uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(2 * M_PI * rng.uniform());
}

std::vector<double> skewed_loads(Rng& rng, int num_experts, double sigma) {
  std::vector<double> load(num_experts);
  for (double& l : load) l = std::round(1e4 * std::exp(sigma * normal(rng)));
  return load;
}

TEST(PlacementShape, SlotsAreThoseOfTheLayout) {
  for (const int ranks : {1, 5, 12, 72, 144, 300}) {
    const PlacementShape shape{256, 288, ranks};
    const ParallelLayout layout{.dp_size = ranks};
    for (int r = 0; r < ranks; ++r) {
      EXPECT_EQ(Range({shape.first_slot(r), shape.first_slot(r + 1)}), layout.slots(288, r));
      for (int slot = shape.first_slot(r); slot < shape.first_slot(r + 1); ++slot) EXPECT_EQ(shape.rank_of(slot), r);
    }
  }
}

TEST(PlanPlacement, AnyShapeIsSoundAndAsBalancedAsPublished) {
  int num_stacked = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    Rng rng(seed);
    PlacementShape shape;
    shape.num_experts = 1 + static_cast<int>(rng.below(64));
    shape.num_slots = shape.num_experts + static_cast<int>(rng.below(40));
    shape.num_ranks = 1 + static_cast<int>(rng.below(24));
    SCOPED_TRACE(str_cat("seed ", seed, ": ", shape.num_experts, " experts, ", shape.num_slots, " slots, ",
                         shape.num_ranks, " ranks"));
    std::vector<double> load = skewed_loads(rng, shape.num_experts, 2.0 * rng.uniform());
    if (seed % 5 == 0) {
      for (double& l : load) l = rng.below(3) == 0 ? 0 : std::min(l, 3.0);
    }
    std::vector<double> drifted = load;
    for (double& l : drifted) l *= std::exp(0.3 * normal(rng));
    std::vector<int32_t> broken(shape.num_slots);  // experts lost, others stacked
    for (int32_t& e : broken) e = static_cast<int32_t>(rng.below(shape.num_experts + 1)) - 1;

    const std::vector<int32_t> first = planned(shape, load), second = planned(shape, drifted, first);
    const std::vector<int32_t> repaired = planned(shape, load, broken);
    EXPECT_EQ(planned(shape, drifted, second), second) << "a second plan for the same load moves nothing";
    for (const std::vector<int32_t>* placement : {&first, &second, &repaired}) {
      const std::vector<double>& of = placement == &second ? drifted : load;
      EXPECT_LE(max_load(shape, *placement, of), published_max_load(shape, of) * (1 + 1e-9));
      const bool is_stacked = has_stacked_replicas(shape, *placement);
      EXPECT_FALSE(is_stacked && shape.num_slots < 2 * shape.num_experts);
      num_stacked += is_stacked;
    }
  }
  EXPECT_LE(num_stacked, 12) << "of 1,200";
}

TEST(PlanPlacement, MovesFewExpertsWhenLoadDrifts) {
  for (const int ranks : {8, 32, 72, 144}) {
    const PlacementShape shape{256, 288, ranks, 8, ranks / 8};
    int64_t ours = 0, published = 0;
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      Rng rng(seed);
      const std::vector<double> load = skewed_loads(rng, 256, 0.7);
      std::vector<double> drifted = load;
      for (double& l : drifted) l *= std::exp(0.1 * normal(rng));
      const std::vector<int32_t> before = planned(shape, load), after = planned(shape, drifted, before);
      EXPECT_LE(max_load(shape, after, drifted), published_max_load(shape, drifted) * (1 + 1e-9)) << "seed " << seed;
      ours += count_moves(shape, before, after);
      published +=
          count_moves(shape, published_placement(shape, load)->phy2log, published_placement(shape, drifted)->phy2log);
      int64_t num_changed_slots = 0;
      for (int slot = 0; slot < 288; ++slot) num_changed_slots += before[slot] != after[slot];
      EXPECT_EQ(num_changed_slots, count_moves(shape, before, after)) << "an expert that stays keeps its slot";
    }
    EXPECT_LT(2 * ours, published) << "EP" << ranks;
  }
}

TEST(PlanPlacement, BalancedPlacementStays) {
  const PlacementShape shape{256, 288, 32};
  Rng rng(7);
  const std::vector<double> load = skewed_loads(rng, 256, 0.7);
  const std::vector<int32_t> placement = planned(shape, load);
  EXPECT_EQ(planned(shape, load, placement), placement);
  // Scaled by a power of two, every comparison is the same.
  std::vector<double> doubled = load;
  for (double& l : doubled) l *= 2;
  EXPECT_EQ(planned(shape, doubled, placement), placement);
  EXPECT_EQ(planned(shape, doubled), placement);
}

TEST(PlanPlacement, NoLoadIsEvenLoad) {
  const PlacementShape shape{256, 288, 32};
  const std::vector<double> zero(256, 0.0), one(256, 1.0);
  const std::vector<int32_t> placement = planned(shape, zero);
  EXPECT_EQ(placement, planned(shape, one));
  std::vector<int> count(256, 0);
  for (const int32_t expert : placement) ++count[expert];
  EXPECT_EQ(*std::max_element(count.begin(), count.end()), 2) << "spares go to different experts";
  EXPECT_EQ(planned(shape, zero, placement), placement);
  EXPECT_EQ(balancedness(rank_loads(shape, placement, zero)), 1.0);
}

TEST(PlanPlacement, OneHotExpertIsOnEveryRank) {
  for (const int ranks : {8, 12, 32}) {
    const PlacementShape shape{256, 288, ranks};
    std::vector<double> load(256, 0.0);
    load[41] = 1000;
    const std::vector<int32_t> placement = planned(shape, load);
    EXPECT_FALSE(has_stacked_replicas(shape, placement));
    EXPECT_THAT(rank_loads(shape, placement, load), Each(::testing::DoubleNear(1000.0 / ranks, 1e-9)));
    std::vector<int> count(256, 0);
    for (const int32_t expert : placement) ++count[expert];
    count[41] = 0;
    EXPECT_LE(*std::max_element(count.begin(), count.end()), 2) << "other spares are spread";
  }
}

TEST(PlanPlacement, ASlotThatOnlyASecondReplicaCouldFillStaysEmpty) {
  const PlacementShape shape{2, 6, 2};
  const std::vector<int32_t> placement = planned(shape, std::vector<double>{5.0, 1.0});
  EXPECT_EQ(placement, (std::vector<int32_t>{0, 1, -1, 0, 1, -1}));
}

TEST(PlanPlacement, LostExpertsAreFoundNewRanks) {
  const PlacementShape shape{64, 80, 16};
  Rng rng(3);
  const std::vector<double> load = skewed_loads(rng, 64, 0.7);
  std::vector<int32_t> placement = planned(shape, load);
  std::fill(placement.begin(), placement.begin() + shape.slots_per_rank(), -1);  // rank 0 is gone and came back empty
  const std::vector<int32_t> repaired = planned(shape, load, placement);
  EXPECT_FALSE(has_stacked_replicas(shape, repaired));
  EXPECT_LE(max_load(shape, repaired, load), published_max_load(shape, load) * (1 + 1e-9));
}

TEST(PlanPlacement, ThreadsDoNotMatter) {
  const PlacementShape shape{256, 288, 72};
  Rng rng(11);
  std::vector<double> loads;
  for (int layer = 0; layer < 9; ++layer) {
    const std::vector<double> load = skewed_loads(rng, 256, 0.7);
    loads.insert(loads.end(), load.begin(), load.end());
  }
  ThreadPool pool(3);
  const std::vector<int32_t> alone = planned(shape, loads);
  EXPECT_EQ(planned(shape, loads, {}, &pool), alone);
  std::vector<double> drifted = loads;
  for (double& l : drifted) l *= std::exp(0.1 * normal(rng));
  EXPECT_EQ(planned(shape, drifted, alone, &pool), planned(shape, drifted, alone));
}

TEST(PlanPlacement, BadInputIsNamed) {
  const auto message = [](const PlacementShape& shape, std::vector<double> loads, std::vector<int32_t> current) {
    const auto placement = plan_placement(shape, loads, current, nullptr);
    return placement.ok() ? std::string("accepted") : str_cat(placement.status().message());
  };
  const PlacementShape shape{4, 6, 2};
  EXPECT_THAT(message({4, 3, 2}, {1, 1, 1, 1}, {}), HasSubstr("3 slots for 4 experts; expected 4 to"));
  EXPECT_THAT(message({0, 3, 2}, {}, {}), HasSubstr("0 experts"));
  EXPECT_THAT(message({4, 6, kMaxRanks + 1}, {1, 1, 1, 1}, {}), HasSubstr("1025 ranks"));
  EXPECT_THAT(message(shape, {1, 1, 1, 1, 1}, {}), HasSubstr("5 loads; expected a multiple of 4"));
  EXPECT_THAT(message(shape, {1, 1, 1, 1, 1, 1, INFINITY, 1}, {}), HasSubstr("layer 1, expert 2 has load inf"));
  EXPECT_THAT(message(shape, {1, 1, 1, 1}, {0, 1, 2}), HasSubstr("3 slots; expected 1 layers of 6"));
  EXPECT_THAT(message(shape, {1, 1, 1, 1}, {0, 1, 2, 3, 4, 0}), HasSubstr("slot 4 holds expert 4; expected 0 to 3"));
}

TEST(CountMoves, CountsExpertsThatARankLacked) {
  const PlacementShape shape{4, 6, 2};
  const std::vector<int32_t> current = {0, 1, 2, 3, 0, -1};
  EXPECT_EQ(count_moves(shape, current, current), 0);
  EXPECT_EQ(count_moves(shape, current, std::vector<int32_t>{2, 0, 1, 0, 3, -1}), 0);
  EXPECT_EQ(count_moves(shape, current, std::vector<int32_t>{0, 1, 3, 2, 0, 1}), 3);
  EXPECT_EQ(count_moves(shape, {}, current), 5);
}

}  // namespace
}  // namespace moesaic
