#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/rng.h"
#include "comm/expert_placement.h"

namespace moesaic {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The example of the published algorithm's README, with the placement that it prints.
const std::vector<double> kLayer0 = {90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86};
const std::vector<double> kLayer1 = {20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27};
PlacementShape readme(int num_nodes) {
  return {.num_experts = 12, .num_slots = 16, .num_ranks = 8, .num_groups = 4, .num_nodes = num_nodes};
}

// Maximum over mean of the ranks.
double excess(const PublishedPlacement& placement, const std::vector<double>& load) {
  return 1 / balancedness(rank_loads(readme(2), placement.phy2log, load));
}

// log2phy as published: slots of each expert by replica, -1 filled.
std::vector<std::vector<int32_t>> log2phy(const PublishedPlacement& placement, int num_experts) {
  const int width = 1 + *std::max_element(placement.replica.begin(), placement.replica.end());
  std::vector<std::vector<int32_t>> out(num_experts, std::vector<int32_t>(width, -1));
  for (size_t slot = 0; slot < placement.phy2log.size(); ++slot) {
    out[placement.phy2log[slot]][placement.replica[slot]] = static_cast<int32_t>(slot);
  }
  return out;
}

TEST(PublishedPlacement, HierarchicalExampleOfTheReadme) {
  const auto first = published_placement(readme(2), kLayer0), second = published_placement(readme(2), kLayer1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(first->phy2log, ElementsAre(5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1));
  EXPECT_THAT(second->phy2log, ElementsAre(7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1));
  const std::vector<std::vector<int32_t>> slots0 = {{12, -1}, {15, 13}, {11, -1}, {6, -1}, {7, 5},  {0, 2},
                                                    {1, -1},  {3, -1},  {4, -1},  {9, -1}, {8, 10}, {14, -1}};
  const std::vector<std::vector<int32_t>> slots1 = {{13, -1}, {15, 11}, {8, -1}, {14, -1}, {9, -1}, {10, 12},
                                                    {2, 4},   {0, -1},  {6, 3},  {7, -1},  {1, -1}, {5, -1}};
  EXPECT_EQ(log2phy(*first, 12), slots0);
  EXPECT_EQ(log2phy(*second, 12), slots1);
  EXPECT_NEAR(excess(*first, kLayer0), 1.2081, 5e-5);
  EXPECT_NEAR(excess(*second, kLayer1), 1.2422, 5e-5);
}

TEST(PublishedPlacement, GlobalWhereNodesDoNotDivideGroups) {
  const auto first = published_placement(readme(3), kLayer0), second = published_placement(readme(3), kLayer1);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_THAT(first->phy2log, ElementsAre(10, 6, 10, 7, 0, 2, 11, 4, 5, 9, 5, 4, 8, 3, 1, 1));
  EXPECT_THAT(second->phy2log, ElementsAre(1, 10, 2, 4, 5, 11, 5, 0, 6, 7, 6, 3, 8, 8, 9, 7));
  EXPECT_NEAR(excess(*first, kLayer0), 1.0726, 5e-5);
  EXPECT_NEAR(excess(*second, kLayer1), 1.1903, 5e-5);
}

// The published text, statement by statement, without heaps.
namespace naive {

void balanced_packing(const std::vector<float>& weight, int num_packs, std::vector<int>& pack, std::vector<int>& rank) {
  const int n = static_cast<int>(weight.size()), per_pack = n / num_packs;
  pack.assign(n, 0);
  rank.assign(n, 0);
  if (per_pack == 1) return std::iota(pack.begin(), pack.end(), 0);
  std::vector<int> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weight[a] > weight[b]; });
  std::vector<float> pack_weight(num_packs, 0);
  std::vector<int> pack_items(num_packs, 0);
  for (const int item : order) {
    int least = -1;
    for (int p = 0; p < num_packs; ++p) {
      if (pack_items[p] < per_pack && (least < 0 || pack_weight[p] < pack_weight[least])) least = p;
    }
    pack[item] = least;
    rank[item] = pack_items[least]++;
    pack_weight[least] += weight[item];
  }
}

std::vector<int32_t> rebalance(const std::vector<float>& weight, int num_slots, int groups, int nodes, int ranks) {
  if (groups % nodes != 0) groups = nodes = 1;
  const int num_experts = static_cast<int>(weight.size()), group_size = num_experts / groups;
  std::vector<float> group_weight(groups, 0);
  for (int e = 0; e < num_experts; ++e) group_weight[e / group_size] += weight[e];
  std::vector<int> pack, rank, mlog2log(num_experts);
  balanced_packing(group_weight, nodes, pack, rank);
  for (int e = 0; e < num_experts; ++e) {
    const int group = e / group_size;
    mlog2log[(pack[group] * (groups / nodes) + rank[group]) * group_size + e % group_size] = e;
  }
  std::vector<int32_t> phy2log(num_slots);
  const int experts = num_experts / nodes, slots = num_slots / nodes, per_rank = num_slots / ranks;
  for (int node = 0; node < nodes; ++node) {
    std::vector<int> of(slots), count(experts, 1);
    std::iota(of.begin(), of.begin() + experts, 0);
    const auto share = [&](int e) { return weight[mlog2log[node * experts + e]] / static_cast<float>(count[e]); };
    for (int i = experts; i < slots; ++i) {
      int hottest = 0;
      for (int e = 1; e < experts; ++e) {
        if (share(e) > share(hottest)) hottest = e;
      }
      of[i] = hottest;
      ++count[hottest];
    }
    std::vector<float> shares(slots);
    for (int i = 0; i < slots; ++i) shares[i] = share(of[i]);
    balanced_packing(shares, ranks / nodes, pack, rank);
    for (int i = 0; i < slots; ++i) {
      phy2log[node * slots + pack[i] * per_rank + rank[i]] = mlog2log[node * experts + of[i]];
    }
  }
  return phy2log;
}

}  // namespace naive

TEST(PublishedPlacement, AgreesWithItsText) {
  struct Case {
    int experts, slots, ranks, groups, nodes;
  };
  for (const Case& c : {Case{256, 288, 32, 8, 4}, Case{256, 288, 72, 8, 9}, Case{256, 288, 144, 8, 18},
                        Case{256, 256, 8, 8, 1}, Case{256, 352, 32, 8, 4}, Case{16, 32, 16, 4, 2}, Case{8, 8, 8, 1, 1},
                        Case{64, 96, 8, 8, 2}, Case{1, 4, 2, 1, 1}}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      SCOPED_TRACE(str_cat("EP", c.ranks, ", ", c.slots, " slots, seed ", seed));
      Rng rng(seed);
      std::vector<double> load(c.experts);
      // Few values make many ties; every fourth case has experts without load.
      for (double& l : load) l = static_cast<double>(rng.below(seed % 2 == 0 ? 6 : 100000)) * (rng.below(4) < seed % 4);
      const auto placement = published_placement({c.experts, c.slots, c.ranks, c.groups, c.nodes}, load);
      ASSERT_TRUE(placement.ok()) << placement.status();
      EXPECT_EQ(placement->phy2log, naive::rebalance({load.begin(), load.end()}, c.slots, c.groups, c.nodes, c.ranks));
    }
  }
}

TEST(PublishedPlacement, TakesUnevenSlots) {
  for (const int ranks : {5, 12, 72, 100}) {
    const PlacementShape shape{256, 288, ranks};
    std::vector<double> load(256);
    Rng rng(ranks);
    for (double& l : load) l = rng.uniform();
    const auto placement = published_placement(shape, load);
    ASSERT_TRUE(placement.ok()) << placement.status();
    std::vector<int> seen(256, 0);
    for (const int32_t expert : placement->phy2log) ++seen.at(expert);
    EXPECT_GE(*std::min_element(seen.begin(), seen.end()), 1) << ranks;
  }
}

TEST(PublishedPlacement, ImpossibleShapesAreExplained) {
  const auto message = [](const PlacementShape& shape, std::vector<double> load) {
    const auto placement = published_placement(shape, load);
    return placement.ok() ? std::string("accepted") : str_cat(placement.status().message());
  };
  const std::vector<double> even(12, 1.0);
  EXPECT_THAT(message({12, 16, 8, 5, 1}, even), HasSubstr("12 experts cannot be split over 5 groups"));
  EXPECT_THAT(message({12, 16, 5, 4, 2}, even), HasSubstr("5 ranks cannot be split over 2 nodes"));
  EXPECT_THAT(message({12, 18, 8, 4, 2}, even), HasSubstr("18 slots cannot be split over 8 ranks"));
  EXPECT_THAT(message({12, 11, 8, 1, 1}, even), HasSubstr("11 slots for 12 experts"));
  EXPECT_THAT(message({12, 16, 0, 1, 1}, even), HasSubstr("0 ranks"));
  EXPECT_THAT(message({12, 16, 8, 0, 1}, even), HasSubstr("0 groups"));
  EXPECT_THAT(message({12, 16, 8, 1, 1}, {1.0}), HasSubstr("loads of 1 experts; expected 12"));
  std::vector<double> bad = even;
  bad[7] = -1;
  EXPECT_THAT(message({12, 16, 8, 1, 1}, bad), HasSubstr("expert 7 has load -1"));
  bad[7] = std::nan("");
  EXPECT_THAT(message({12, 16, 8, 1, 1}, bad), HasSubstr("expert 7 has load nan"));
}

}  // namespace
}  // namespace moesaic
