#include "comm/expert_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "comm/rank_threads_test_util.h"

namespace moesaic::testing {
namespace {

TEST(ExpertMap, Identity) {
  const ExpertMap map = ExpertMap::identity(5);
  EXPECT_TRUE(map.is_identity());
  EXPECT_EQ(map.num_slots(), 5);
  std::vector<int32_t> ids = {4, -1, 0, 2};
  map.to_physical(ids, 2, 17);
  EXPECT_EQ(ids, (std::vector<int32_t>{4, -1, 0, 2}));
}

TEST(ExpertMap, ReplicasTakeTurnsByToken) {
  const ExpertMap map = *ExpertMap::make({1, 0, 1, -1, 2, 1}, 3, 9);
  EXPECT_FALSE(map.is_identity());
  EXPECT_EQ(map.version(), 9);
  EXPECT_EQ(map.num_experts(), 3);
  EXPECT_EQ(map.logical(3), -1);
  const auto slots = map.slots_of(1);
  EXPECT_EQ(std::vector<int32_t>(slots.begin(), slots.end()), (std::vector<int32_t>{0, 2, 5}));
  std::vector<int32_t> ids = {1, 0, 1, 2, 1, -1, 1, 1};
  map.to_physical(ids, 2, 1);  // turns 1, 2, 3, 4
  EXPECT_EQ(ids, (std::vector<int32_t>{2, 1, 5, 4, 0, -1, 2, 2}));
}

TEST(ExpertMap, APermutationIsNotTheIdentity) {
  const ExpertMap map = *ExpertMap::make({2, 0, 1}, 3, 1);
  EXPECT_FALSE(map.is_identity());
  std::vector<int32_t> ids = {0, 1, 2};
  map.to_physical(ids, 1, 0);
  EXPECT_EQ(ids, (std::vector<int32_t>{1, 2, 0}));
}

// Every id lands on a slot that holds its expert, and replicas share evenly, also where the salt wraps around.
TEST(ExpertMap, RandomMaps) {
  constexpr uint64_t kSeed = 41;
  Rng rng(kSeed);
  for (int round = 0; round < 200; ++round) {
    const int num_experts = 1 + static_cast<int>(rng.below(20));
    std::vector<int32_t> phy2log;
    for (int expert = 0; expert < num_experts; ++expert) phy2log.push_back(expert);
    for (uint64_t i = rng.below(20); i > 0; --i) {
      phy2log.push_back(static_cast<int32_t>(rng.below(num_experts + 1)) - 1);
    }
    for (size_t i = phy2log.size(); i > 1; --i) std::swap(phy2log[i - 1], phy2log[rng.below(i)]);
    const auto map = ExpertMap::make(phy2log, num_experts, round);
    ASSERT_TRUE(map.ok()) << map.status() << ", seed " << kSeed;
    for (int expert = 0; expert < num_experts; ++expert) {
      const int64_t replicas = std::count(phy2log.begin(), phy2log.end(), expert);
      std::vector<int32_t> ids(replicas * 6, expert);
      map->to_physical(ids, 1, 0u - static_cast<uint32_t>(replicas));  // ends where 32 bits do
      std::map<int32_t, int> uses;
      for (const int32_t slot : ids) {
        ASSERT_EQ(phy2log.at(slot), expert) << "round " << round << ", seed " << kSeed;
        ++uses[slot];
      }
      ASSERT_EQ(static_cast<int64_t>(uses.size()), replicas);
    }
  }
}

TEST(ExpertMap, IllegalMapsAreNamed) {
  const auto expect_refused = [](std::vector<int32_t> phy2log, int num_experts, std::string_view word) {
    const absl::Status status = ExpertMap::make(std::move(phy2log), num_experts, 0).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(contains(status, word)) << status;
  };
  expect_refused({0, 2}, 3, "expert 1 has no slot");
  expect_refused({}, 1, "expert 0 has no slot");
  expect_refused({0, 1, 2}, 2, "slot 2 holds expert 2");
  expect_refused({0, -2}, 1, "slot 1 holds expert -2");
  expect_refused({0}, 0, "0 experts");
}

}  // namespace
}  // namespace moesaic::testing
