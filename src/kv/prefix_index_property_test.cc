// PrefixIndex against a plain list of prompts' beginnings, with real and with colliding hashes.
#include <algorithm>
#include <map>

#include "base/rng.h"
#include "gtest/gtest.h"
#include "kv/prefix_index.h"

namespace moesaic {
namespace {

using Ids = std::vector<int32_t>;
using Key = std::pair<std::string, Ids>;  // salt, all tokens up to the end of a block

struct Entry {
  int32_t block = -1;
  int num_references = 0;
  int64_t unused_since = 0;
};

struct Holder {
  std::string salt;
  Ids prompt;
  Ids table;
};

class RandomUse {
 public:
  RandomUse(uint64_t seed, int hash_bits)
      : rng_(seed),
        num_blocks_(4 + below(20)),
        block_tokens_(1 + below(4)),
        pool_(num_blocks_, block_tokens_),
        index_(&pool_, {.hash_seed = seed, .hash_bits = hash_bits}) {}

  void run() {
    for (int round = 0; round < 300 && !testing::Test::HasFailure(); ++round) {
      const int action = below(5);
      if (action < 2) start();
      if (action == 2 && !holders_.empty()) stop(below(static_cast<int>(holders_.size())));
      if (action == 3) make_free(below(num_blocks_ + 2));
      if (action == 4 && !holders_.empty()) index_some(holders_[below(static_cast<int>(holders_.size()))]);
      check();
    }
    while (!holders_.empty()) stop(0);
    EXPECT_TRUE(pool_.check_at_rest().ok()) << pool_.check_at_rest();
    make_free(num_blocks_);
    EXPECT_EQ(index_.num_indexed(), 0);
    EXPECT_TRUE(index_.check_consistent().ok()) << index_.check_consistent();
  }

  int num_hits() const { return num_hits_; }
  int num_evicted() const { return num_evicted_; }

 private:
  int below(int bound) { return static_cast<int>(rng_.below(bound)); }

  Key key(const Holder& holder, size_t num_blocks) const {
    return {holder.salt,
            Ids(holder.prompt.begin(), holder.prompt.begin() + static_cast<int64_t>(num_blocks) * block_tokens_)};
  }

  // Two tokens and three salts, so that beginnings repeat.
  void start() {
    Holder holder;
    holder.salt = std::string(below(3), 's');
    const int length = 1 + below(6 * block_tokens_);
    for (int i = 0; i < length; ++i) holder.prompt.push_back(below(2));
    index_.lookup(holder.salt, holder.prompt, &holder.table);
    const size_t num_full = holder.prompt.size() / block_tokens_;
    size_t num_known = 0;
    while (num_known < num_full && model_.contains(key(holder, num_known + 1))) ++num_known;
    ASSERT_EQ(holder.table.size(), num_known);
    for (size_t i = 0; i < num_known; ++i) {
      Entry& entry = model_.at(key(holder, i + 1));
      EXPECT_EQ(holder.table[i], entry.block);
      pool_.retain(entry.block);
      ++entry.num_references;
    }
    num_hits_ += num_known > 0 ? 1 : 0;
    const int num_new = pool_.blocks_for(length) - static_cast<int>(num_known);
    if (make_free(num_new)) {
      ASSERT_TRUE(pool_.allocate(num_new, &holder.table));
      holders_.push_back(holder);
      // Some are indexed later or never; then others may get there first.
      if (below(3) > 0) index_some(holders_.back());
    } else {
      holders_.push_back(holder);
      stop(static_cast<int>(holders_.size()) - 1);
    }
  }

  void index_some(Holder& holder) {
    const size_t num_indexed = below(static_cast<int>(holder.prompt.size()) / block_tokens_ + 1);
    for (size_t i = 0; i < num_indexed; ++i) {
      if (pool_.is_indexed(holder.table[i])) continue;
      const std::span<const int32_t> tokens(holder.prompt);
      const bool known = model_.contains(key(holder, i + 1));
      const int32_t block = index_.insert(holder.salt, i == 0 ? -1 : holder.table[i - 1],
                                          tokens.subspan(i * block_tokens_, block_tokens_), holder.table[i]);
      Entry& entry = model_[key(holder, i + 1)];
      EXPECT_EQ(block, known ? entry.block : holder.table[i]);
      entry.block = block;
      ++entry.num_references;
      holder.table[i] = block;
    }
  }

  void stop(int which) {
    Holder holder = holders_[which];
    holders_.erase(holders_.begin() + which);
    for (size_t i = holder.table.size(); i-- > 0;) {
      const auto found = std::find_if(model_.begin(), model_.end(),
                                      [&](const auto& entry) { return entry.second.block == holder.table[i]; });
      if (found == model_.end()) continue;
      if (--found->second.num_references == 0) found->second.unused_since = ++now_;
    }
    pool_.release(&holder.table);
  }

  bool make_free(int count) {
    int num_unused = 0;
    for (const auto& [path, entry] : model_) num_unused += entry.num_references == 0 ? 1 : 0;
    const bool possible = count <= pool_.num_free() + num_unused;
    int num_missing = possible ? count - pool_.num_free() : 0;
    for (; num_missing > 0; --num_missing, ++num_evicted_) {
      auto oldest = model_.end();
      for (auto it = model_.begin(); it != model_.end(); ++it) {
        if (it->second.num_references > 0) continue;
        if (oldest == model_.end() || it->second.unused_since < oldest->second.unused_since) oldest = it;
      }
      model_.erase(oldest);
    }
    EXPECT_EQ(index_.make_free(count), possible);
    return possible;
  }

  void check() {
    EXPECT_TRUE(index_.check_consistent().ok()) << index_.check_consistent();
    EXPECT_EQ(static_cast<size_t>(index_.num_indexed()), model_.size());
    EXPECT_EQ(pool_.num_free() + pool_.num_cached() + pool_.num_used(), num_blocks_);
    for (const auto& [path, entry] : model_) {
      Ids found;
      index_.lookup(path.first, path.second, &found);
      ASSERT_EQ(found.size(), path.second.size() / block_tokens_);
      EXPECT_EQ(found.back(), entry.block);
      EXPECT_EQ(pool_.ref_count(entry.block), entry.num_references);
    }
  }

  Rng rng_;
  int num_blocks_;
  int block_tokens_;
  BlockPool pool_;
  PrefixIndex index_;
  std::map<Key, Entry> model_;
  std::vector<Holder> holders_;
  int64_t now_ = 0;
  int num_hits_ = 0;
  int num_evicted_ = 0;
};

TEST(PrefixIndexPropertyTest, AgreesWithAListOfBeginnings) {
  int num_hits = 0;
  int num_evicted = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    constexpr int kHashBits[] = {64, 3, 0};
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    RandomUse use(seed, kHashBits[seed % 3]);
    use.run();
    num_hits += use.num_hits();
    num_evicted += use.num_evicted();
    if (HasFailure()) return;
  }
  EXPECT_GT(num_hits, 3000);
  EXPECT_GT(num_evicted, 3000);
}

}  // namespace
}  // namespace moesaic
