#include "comm/expert_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace moesaic {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ExpertMap, IdentityLeavesIdsAlone) {
  const ExpertMap map = ExpertMap::identity(8);
  EXPECT_TRUE(map.is_identity());
  EXPECT_EQ(map.num_slots(), 8);
  EXPECT_EQ(map.version(), 0);
  EXPECT_THAT(map.slots_of(5), ElementsAre(5));
  std::vector<int32_t> ids = {3, -1, 7, 0};
  map.to_physical(ids, 2, 17);
  EXPECT_THAT(ids, ElementsAre(3, -1, 7, 0));
}

TEST(ExpertMap, ReplicasTakeTurns) {
  // Expert 0 in slots 1, 3, 4; expert 1 in slot 0; expert 2 in slots 2, 6; slot 5 is empty.
  const auto map = ExpertMap::make({1, 0, 2, 0, 0, -1, 2}, 3, 9);
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_FALSE(map->is_identity());
  EXPECT_EQ(map->version(), 9);
  EXPECT_EQ(map->logical(5), -1);
  EXPECT_THAT(map->slots_of(0), ElementsAre(1, 3, 4));
  EXPECT_THAT(map->slots_of(2), ElementsAre(2, 6));
  std::vector<int32_t> ids = {0, 2, 1, 0, -1, 0, 0, 2};
  map->to_physical(ids, 2, 1);  // salts of the four tokens: 1, 2, 3, 4
  EXPECT_THAT(ids, ElementsAre(3, 6, 0, 4, -1, 1, 3, 2));
}

TEST(ExpertMap, MakeOfIdentityIsIdentity) {
  EXPECT_TRUE(ExpertMap::make({0, 1, 2}, 3, 1)->is_identity());
}

TEST(ExpertMap, BadMapsAreNamed) {
  const auto message = [](std::vector<int32_t> phy2log, int num_experts) {
    const auto map = ExpertMap::make(std::move(phy2log), num_experts, 1);
    return map.ok() ? std::string("accepted") : str_cat(map.status().message());
  };
  EXPECT_THAT(message({0, 0, 2}, 3), HasSubstr("expert 1 has no slot among 3"));
  EXPECT_THAT(message({0, 1, 3}, 3), HasSubstr("slot 2 holds expert 3; expected 0 to 2"));
  EXPECT_THAT(message({0, -2}, 1), HasSubstr("slot 1 holds expert -2"));
  EXPECT_THAT(message({}, -1), HasSubstr("expected at least 0"));
  EXPECT_EQ(ExpertMap::identity(0).num_slots(), 0);  // a dense model
  EXPECT_DEATH(
      {
        std::vector<int32_t> ids = {5};
        ExpertMap::make({0, 1, 0}, 2, 1)->to_physical(ids, 1, 0);
      },
      "check failed");
}

}  // namespace
}  // namespace moesaic
