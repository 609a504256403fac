#include "kv/prefix_index.h"

#include <numeric>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

using Ids = std::vector<int32_t>;

Ids iota(int count, int32_t first = 0) {
  Ids ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

// What a sequence does: takes the known blocks, allocates the rest, indexes them. Returns its table.
Ids compute(BlockPool& pool, PrefixIndex& index, const std::string& salt, const Ids& prompt, int* num_cached) {
  Ids table;
  index.lookup(salt, prompt, &table);
  *num_cached = static_cast<int>(table.size()) * pool.block_tokens();
  for (const int32_t block : table) pool.retain(block);
  const int num_blocks = pool.blocks_for(static_cast<int64_t>(prompt.size()));
  const int num_new = num_blocks - static_cast<int>(table.size());
  EXPECT_TRUE(index.make_free(num_new) && pool.allocate(num_new, &table));
  const size_t size = pool.block_tokens();
  for (size_t i = *num_cached / size; (i + 1) * size <= prompt.size(); ++i) {
    table[i] = index.insert(salt, i == 0 ? -1 : table[i - 1], std::span(prompt).subspan(i * size, size), table[i]);
  }
  return table;
}

int cached_tokens(BlockPool& pool, PrefixIndex& index, const std::string& salt, const Ids& prompt) {
  int num_cached = 0;
  Ids table = compute(pool, index, salt, prompt, &num_cached);
  pool.release(&table);
  return num_cached;
}

TEST(PrefixIndexTest, FindsTheLongestKnownBeginningInWholeBlocks) {
  BlockPool pool(16, 4);
  PrefixIndex index(&pool, {});
  EXPECT_EQ(cached_tokens(pool, index, "", iota(14)), 0);
  EXPECT_EQ(pool.num_cached(), 3);  // the last block is not full
  EXPECT_EQ(cached_tokens(pool, index, "", iota(14)), 12);
  EXPECT_EQ(cached_tokens(pool, index, "", iota(11)), 8);
  EXPECT_EQ(cached_tokens(pool, index, "", iota(3)), 0);
  Ids other = iota(14);
  other[5] = 99;
  EXPECT_EQ(cached_tokens(pool, index, "", other), 4);
  other[0] = 98;  // the blocks behind are the same, but not what is before them
  EXPECT_EQ(cached_tokens(pool, index, "", other), 0);
  EXPECT_TRUE(index.check_consistent().ok()) << index.check_consistent();
  EXPECT_TRUE(pool.check_at_rest().ok());
}

TEST(PrefixIndexTest, SaltsAreApartAlsoWhenAllHashesCollide) {
  for (const int hash_bits : {64, 4, 0}) {
    SCOPED_TRACE(testing::Message() << hash_bits << " bits");
    BlockPool pool(64, 4);
    PrefixIndex index(&pool, {.hash_seed = 1, .hash_bits = hash_bits});
    // "A" as a salt is not the tokens of "A", and an empty salt is the common tree.
    for (const std::string salt : {"A", "B", "", "AB"}) {
      EXPECT_EQ(cached_tokens(pool, index, salt, iota(9)), 0) << salt;
      EXPECT_EQ(cached_tokens(pool, index, salt, iota(9)), 8) << salt;
    }
    for (int32_t first = 100; first < 110; ++first) {
      EXPECT_EQ(cached_tokens(pool, index, "A", iota(9, first)), 0);
      EXPECT_EQ(cached_tokens(pool, index, "A", iota(9, first)), 8);
    }
    EXPECT_TRUE(index.check_consistent().ok()) << index.check_consistent();
    EXPECT_TRUE(index.make_free(64));
    EXPECT_EQ(index.num_indexed(), 0);
    EXPECT_TRUE(index.check_consistent().ok()) << index.check_consistent();
  }
}

TEST(PrefixIndexTest, SameRowsTwiceBecomeOneBlock) {
  BlockPool pool(8, 4);
  PrefixIndex index(&pool, {});
  Ids first, second;
  ASSERT_TRUE(pool.allocate(2, &first) && pool.allocate(2, &second));
  const Ids prompt = iota(8);
  const std::span<const int32_t> tokens(prompt);
  EXPECT_EQ(index.insert("", -1, tokens.first(4), first[0]), first[0]);
  const int32_t shared = index.insert("", -1, tokens.first(4), second[0]);
  EXPECT_EQ(shared, first[0]);
  EXPECT_EQ(pool.ref_count(shared), 2);
  EXPECT_EQ(pool.num_free(), 5);
  second[0] = shared;
  EXPECT_EQ(index.insert("", shared, tokens.last(4), second[1]), second[1]);
  pool.release(&first);
  pool.release(&second);
  EXPECT_EQ(pool.num_cached(), 2);
  EXPECT_EQ(pool.num_free(), 6);
  EXPECT_TRUE(index.check_consistent().ok()) << index.check_consistent();
}

TEST(PrefixIndexTest, EvictsTheLongestUnusedFromTheEnd) {
  BlockPool pool(6, 4);
  PrefixIndex index(&pool, {});
  cached_tokens(pool, index, "", iota(12));
  cached_tokens(pool, index, "", iota(12, 50));
  EXPECT_EQ(pool.num_cached(), 6);
  cached_tokens(pool, index, "", iota(4));  // the first block of the first prompt is young again
  ASSERT_TRUE(index.make_free(3));
  EXPECT_EQ(cached_tokens(pool, index, "", iota(4)), 4);
  Ids found;
  index.lookup("", iota(12), &found);
  EXPECT_EQ(found.size(), 1u);
  found.clear();
  index.lookup("", iota(12, 50), &found);
  EXPECT_EQ(found.size(), 2u);
}

TEST(PrefixIndexTest, WhatIsUsedIsNeverEvicted) {
  BlockPool pool(4, 4);
  PrefixIndex index(&pool, {});
  int num_cached = 0;
  Ids table = compute(pool, index, "", iota(12), &num_cached);
  EXPECT_FALSE(index.make_free(2));
  EXPECT_EQ(pool.num_free(), 1);
  Ids half = {table[0], table[1]};
  for (const int32_t block : half) pool.retain(block);
  pool.release(&table);
  EXPECT_EQ(pool.num_cached(), 1);
  EXPECT_TRUE(index.make_free(2));
  EXPECT_FALSE(index.make_free(3));
  pool.release(&half);
  EXPECT_TRUE(index.make_free(4));
}

TEST(PrefixIndexDeathTest, AnIndexedBlockInUseIsNotFreed) {
  BlockPool pool(4, 4);
  PrefixIndex index(&pool, {});
  int num_cached = 0;
  const Ids table = compute(pool, index, "", iota(4), &num_cached);
  EXPECT_DEATH(pool.free_cached(table[0]), "is_cached");
  EXPECT_DEATH(index.insert("", -1, iota(4), table[0]), "known");
}

TEST(PrefixIndexTest, LookupOfALongPromptIsFast) {
  constexpr int kTokens = 128 * 1024;
  BlockPool pool(kTokens / 64 + 1, 64);
  PrefixIndex index(&pool, {});
  const Ids prompt = iota(kTokens);
  cached_tokens(pool, index, "", prompt);
  int64_t best_ns = INT64_MAX;
  for (int run = 0; run < 20; ++run) {
    Ids found;
    found.reserve(kTokens / 64);
    const int64_t begin = real_clock().now_ns();
    index.lookup("", prompt, &found);
    best_ns = std::min(best_ns, real_clock().now_ns() - begin);
    ASSERT_EQ(found.size(), static_cast<size_t>(kTokens / 64));
  }
  RecordProperty("lookup_us", std::to_string(best_ns / 1000));
  EXPECT_LT(best_ns, 20'000'000) << "1 ms is the aim; sanitizers take ten times as long";
}

}  // namespace
}  // namespace moesaic
