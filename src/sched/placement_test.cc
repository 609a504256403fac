#include "sched/placement.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/rng.h"
#include "gtest/gtest.h"

namespace moesaic {
namespace {

constexpr GroupCapacity kCapacity{.kv_tokens = 1000, .num_requests = 10};

TEST(PlacementTest, PairsAreATriangle) {
  EXPECT_EQ(attention_pairs(0, 1), 1);
  EXPECT_EQ(attention_pairs(0, 4), 10);
  EXPECT_EQ(attention_pairs(2, 4), 7);  // token 2 sees 3 rows, token 3 sees 4
  EXPECT_EQ(attention_pairs(4, 4), 0);
}

TEST(PlacementTest, DecodeWeighsKvUseAndRequestCount) {
  // A request of 100 tokens. 300/1000 + 100/1000 + 3/10 = 0.7 against 500/1000 + 100/1000 + 2/10 = 0.8.
  std::vector<Candidate> candidates = {{.group = 4, .load = {.kv_tokens = 500, .num_requests = 1}},
                                       {.group = 6, .load = {.kv_tokens = 300, .num_requests = 2}}};
  EXPECT_EQ(place(Balance::kDecode, kCapacity, 100, candidates), 6);
  // Three requests more make it 1.0.
  candidates[1].load.num_requests = 5;
  EXPECT_EQ(place(Balance::kDecode, kCapacity, 100, candidates), 4);
}

TEST(PlacementTest, APrefixHitIsWorthItsTokens) {
  // 500 + 400 - 320 = 580 against 200 + 400 = 600.
  std::vector<Candidate> candidates = {{.group = 0, .load = {.kv_tokens = 200, .num_requests = 2}},
                                       {.group = 1, .load = {.kv_tokens = 500, .num_requests = 2}, .num_cached = 320}};
  EXPECT_EQ(place(Balance::kDecode, kCapacity, 400, candidates), 1);
  candidates[1].num_cached = 256;  // 644
  EXPECT_EQ(place(Balance::kDecode, kCapacity, 400, candidates), 0);
}

TEST(PlacementTest, PrefillWeighsAttentionWorkBesideTokens) {
  // Both have 20,000 tokens to compute. One prompt of 20,000 has 200 million pairs, ten of 2,000 have 20 million.
  const std::vector<Candidate> candidates = {
      {.group = 0, .load = {.num_requests = 1, .prompt_tokens = 20'000, .attention_pairs = attention_pairs(0, 20'000)}},
      {.group = 1,
       .load = {.num_requests = 10, .prompt_tokens = 20'000, .attention_pairs = 10 * attention_pairs(0, 2'000)}}};
  EXPECT_EQ(place(Balance::kPrefill, kCapacity, 100, candidates), 1);
  // 200,010,000 pairs are 13,514 tokens; 20,010,000 are 1,352. With 12,163 tokens more, group 1 is the fuller one.
  std::vector<Candidate> changed = candidates;
  changed[1].load.prompt_tokens += 12'162;
  EXPECT_EQ(place(Balance::kPrefill, kCapacity, 100, changed), 1);
  changed[1].load.prompt_tokens += 1;
  EXPECT_EQ(place(Balance::kPrefill, kCapacity, 100, changed), 0);
}

TEST(PlacementTest, PrefillCountsWhatTheCacheLeaves) {
  const std::vector<Candidate> candidates = {
      {.group = 0, .load = {.prompt_tokens = 1'000, .attention_pairs = attention_pairs(0, 1'000)}},
      {.group = 1,
       .load = {.prompt_tokens = 4'000, .attention_pairs = 4 * attention_pairs(0, 1'000)},
       .num_cached = 8'000}};
  EXPECT_EQ(place(Balance::kPrefill, kCapacity, 9'000, candidates), 1);
}

TEST(PlacementTest, EqualsGoToTheFirst) {
  const std::vector<Candidate> candidates = {{.group = 2}, {.group = 0}, {.group = 1}};
  EXPECT_EQ(place(Balance::kDecode, kCapacity, 10, candidates), 2);
  EXPECT_EQ(place(Balance::kPrefill, kCapacity, 10, candidates), 2);
}

// Placing on the least loaded never puts a group above the mean by more than the largest request; so it stays below
// twice the mean once the mean is as large as that.
TEST(PlacementTest, RandomStreamsStayBalanced) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Rng rng(seed);
    const Balance balance = seed % 2 == 0 ? Balance::kDecode : Balance::kPrefill;
    const GroupCapacity capacity{.kv_tokens = 100'000, .num_requests = 64};
    std::vector<Candidate> groups(2 + rng.below(15));
    for (size_t g = 0; g < groups.size(); ++g) groups[g].group = static_cast<int>(g);
    std::vector<double> loads(groups.size(), 0.0);
    double largest = 0;
    for (int i = 0; i < 500; ++i) {
      const auto tokens = static_cast<int64_t>(1 + rng.below(rng.below(8) == 0 ? 30'000 : 2'000));
      const int g = place(balance, capacity, tokens, groups);
      GroupLoad& load = groups[g].load;
      load.kv_tokens += tokens;
      ++load.num_requests;
      load.prompt_tokens += tokens;
      load.attention_pairs += attention_pairs(0, tokens);
      const double cost = balance == Balance::kDecode
                              ? static_cast<double>(tokens) / 100'000 + 1.0 / 64
                              : static_cast<double>(tokens) + static_cast<double>(attention_pairs(0, tokens)) / 14'800;
      loads[g] += cost;
      largest = std::max(largest, cost);
      const double mean = std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
      const double most = *std::max_element(loads.begin(), loads.end());
      ASSERT_LE(most, (mean + largest) * 1.000001);
      if (mean >= largest) {
        ASSERT_LE(most, 2.000001 * mean);
      }
    }
  }
}

}  // namespace
}  // namespace moesaic
