#include "kv/block_pool.h"

#include <map>
#include <set>

#include "base/rng.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

TEST(BlockPoolTest, CountsWholeBlocks) {
  const BlockPool pool(16, 4);
  EXPECT_EQ(pool.blocks_for(0), 0);
  EXPECT_EQ(pool.blocks_for(1), 1);
  EXPECT_EQ(pool.blocks_for(4), 1);
  EXPECT_EQ(pool.blocks_for(5), 2);
  EXPECT_EQ(pool.blocks_for(int64_t{1} << 32), 1 << 30);
}

TEST(BlockPoolTest, RefusesWithoutChange) {
  BlockPool pool(3, 4);
  std::vector<int32_t> table;
  ASSERT_TRUE(pool.allocate(2, &table));
  EXPECT_FALSE(pool.allocate(2, &table));
  EXPECT_EQ(table.size(), 2u);
  EXPECT_EQ(pool.num_free(), 1);
  EXPECT_FALSE(pool.check_at_rest().ok());
  pool.release(&table);
  EXPECT_TRUE(table.empty());
  EXPECT_TRUE(pool.check_at_rest().ok());
}

TEST(BlockPoolTest, SharedBlockReturnsWithItsLastReference) {
  BlockPool pool(2, 4);
  std::vector<int32_t> first;
  ASSERT_TRUE(pool.allocate(1, &first));
  std::vector<int32_t> second = first;
  pool.retain(first[0]);
  pool.release(&first);
  EXPECT_EQ(pool.num_free(), 1);
  pool.release(&second);
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockPoolDeathTest, DoubleReleaseIsABug) {
  BlockPool pool(2, 4);
  std::vector<int32_t> table;
  ASSERT_TRUE(pool.allocate(1, &table));
  std::vector<int32_t> copy = table;
  pool.release(&table);
  EXPECT_DEATH(pool.release(&copy), "ref_counts_");
}

TEST(BlockPoolTest, RandomOperationsAgreeWithACountPerBlock) {
  constexpr uint64_t kSeed = 7;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  Rng rng(kSeed);
  BlockPool pool(37, 4);
  std::map<int32_t, int> model;  // block -> references
  std::vector<std::vector<int32_t>> tables;
  for (int round = 0; round < 5000; ++round) {
    const uint64_t action = rng.below(3);
    if (action == 0) {
      const int count = static_cast<int>(rng.below(8));
      std::vector<int32_t> table;
      const bool fits = count <= 37 - static_cast<int>(model.size());
      ASSERT_EQ(pool.allocate(count, &table), fits);
      for (const int32_t block : table) ASSERT_EQ(++model[block], 1) << "block " << block << " was given out twice";
      if (fits) tables.push_back(table);
    } else if (action == 1 && !tables.empty()) {
      tables.push_back(tables[rng.below(tables.size())]);
      for (const int32_t block : tables.back()) pool.retain(block), ++model[block];
    } else if (!tables.empty()) {
      const size_t victim = rng.below(tables.size());
      for (const int32_t block : tables[victim]) {
        if (--model[block] == 0) model.erase(block);
      }
      pool.release(&tables[victim]);
      tables.erase(tables.begin() + static_cast<int64_t>(victim));
    }
    ASSERT_EQ(pool.num_used(), static_cast<int>(model.size()));
    ASSERT_TRUE(pool.check_consistent().ok()) << pool.check_consistent();
  }
}

}  // namespace
}  // namespace moesaic
