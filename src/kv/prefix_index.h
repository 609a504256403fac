// PrefixIndex: finds the KV blocks that already hold the rows of a prompt's beginning. A radix tree whose edge is one
// full block of tokens; a node is named by its block id, children are found through one hash table. Ids only. Owned by
// the engine thread beside the BlockPool; not thread-safe; allocates nothing after construction but for new salts.
//
// A hash only says where to look: a hit is a comparison of parent and tokens, so equal hashes never mix prompts. Salts
// have separate trees. Sequences hold a reference to every block on the path, hence what a node's children are
// referenced, the node is too; cached nodes therefore have cached descendants only, and the oldest cached block is
// always a leaf: eviction is exact LRU in O(1).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/prefetch.h"
#include "base/status.h"
#include "kv/block_pool.h"

namespace moesaic {

struct PrefixIndexOptions {
  uint64_t hash_seed = 0;  // unknown to clients, so that none can prepare collisions; decides nothing but time
  int hash_bits = 64;      // fewer in tests, to force collisions
};

class PrefixIndex {
 public:
  // Borrows the pool.
  PrefixIndex(BlockPool* pool, PrefixIndexOptions options);

  // Appends the blocks of the longest known beginning of `tokens` (whole blocks only) to `blocks`; takes no reference.
  // O(tokens). An empty salt is the common tree.
  void lookup(std::string_view salt, std::span<const int32_t> tokens, std::vector<int32_t>* blocks) const;
  // Where lookup() looks first, so that lookups of one prompt in many indexes can wait for memory together: the hash is
  // the same in all indexes with equal options. At least one block of tokens.
  uint64_t first_hash(std::string_view salt, std::span<const int32_t> tokens) const {
    return hash_block(hash_salt(salt), tokens.data());
  }
  void prefetch_first(uint64_t hash) const { prefetch(&table_[hash & table_mask_]); }
  // Block `block`, in use by the caller, holds the rows of `tokens` (one block full) behind the caller's block `parent`
  // (indexed; -1 = the beginning). Returns the block to go on with: `block`, or the one that has the same rows already;
  // then the caller's reference has moved there and `block` is released.
  int32_t insert(std::string_view salt, int32_t parent, std::span<const int32_t> tokens, int32_t block);
  // Evicts cached blocks, longest unused first, until `count` are free; false (and nothing changed) if that can not be.
  [[nodiscard]] bool make_free(int count);

  // Changes whenever a lookup may.
  int64_t version() const { return version_; }
  int num_indexed() const { return num_indexed_; }
  // The tree against the pool, in full: O(num_blocks * block_tokens).
  absl::Status check_consistent() const;

 private:
  struct Node {
    uint64_t hash = 0;
    int32_t parent = 0;  // block id, or ~root for the first block
    int32_t num_children = 0;
  };
  struct Root {
    std::string salt;
    uint64_t hash = 0;
    int32_t num_children = 0;
  };

  uint64_t hash_block(uint64_t parent_hash, const int32_t* tokens) const;
  uint64_t hash_salt(std::string_view salt) const;
  int32_t find(int32_t parent, uint64_t hash, const int32_t* tokens) const;
  int32_t find_or_add_root(std::string_view salt);
  void add_to_table(int32_t block);
  void remove_from_table(int32_t block);
  void evict_oldest();
  const int32_t* tokens_of(int32_t block) const { return tokens_.data() + static_cast<size_t>(block) * block_tokens_; }

  BlockPool* pool_;
  size_t block_tokens_;
  uint64_t seed_;
  uint64_t hash_mask_;
  std::vector<Node> nodes_;      // [num_blocks], valid where the pool says indexed
  std::vector<int32_t> tokens_;  // [num_blocks, block_tokens]
  std::vector<int32_t> table_;   // open addressing, linear probing; -1 = empty; at most half full
  size_t table_mask_;
  std::vector<Root> roots_;  // 0 is the common tree
  std::vector<int32_t> free_roots_;
  std::unordered_map<std::string, int32_t> root_of_salt_;
  int num_indexed_ = 0;
  int64_t version_ = 0;
};

}  // namespace moesaic
