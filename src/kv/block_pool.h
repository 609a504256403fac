// BlockPool: hands out KV block ids of one DP group and takes them back; counts references so that blocks can be
// shared. Ids only: the tensors belong to the model. Owned by the engine thread; not thread-safe.
// Invariant: every block is in one state: free (in the free list, once), in use (reference count > 0), or cached (no
// references, but the PrefixIndex knows its rows). num_free + num_cached + num_used = num_blocks.
#pragma once

#include <cstdint>
#include <vector>

#include "base/status.h"

namespace moesaic {

class BlockPool {
 public:
  BlockPool(int num_blocks, int block_tokens);

  int num_blocks() const { return static_cast<int>(ref_counts_.size()); }
  int block_tokens() const { return block_tokens_; }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_cached() const { return num_cached_; }
  int num_used() const { return num_blocks() - num_free() - num_cached_; }
  int blocks_for(int64_t num_tokens) const {
    return static_cast<int>((num_tokens + block_tokens_ - 1) / block_tokens_);
  }
  int ref_count(int32_t block) const { return ref_counts_[block]; }
  bool is_indexed(int32_t block) const { return indexed_[block] != 0; }
  bool is_cached(int32_t block) const { return indexed_[block] != 0 && ref_counts_[block] == 0; }

  // Appends `count` free blocks (reference count 1) to `table`; false and nothing changed if fewer are free.
  [[nodiscard]] bool allocate(int count, std::vector<int32_t>* table);
  // One more reference to a block that is in use or cached.
  void retain(int32_t block);
  // Drops one reference of each block and empties the table, the last block first. A block without references becomes
  // cached if it is indexed, else free. A block that is not in use is a bug: CHECK.
  void release(std::vector<int32_t>* table) { shrink(table, 0); }
  // The same for what lies behind the first `num_kept` blocks.
  void shrink(std::vector<int32_t>* table, size_t num_kept);
  void release_one(int32_t block);

  // For PrefixIndex alone: its mark on a block in use; the cached block that has been without references for longest
  // (-1 = none); and a cached block loses its mark and is free.
  void mark_indexed(int32_t block);
  int32_t oldest_cached() const { return num_cached_ == 0 ? -1 : next_[num_blocks()]; }
  void free_cached(int32_t block);
  // The cached block after this one in order of age, -1 = none. For audits.
  int32_t next_cached(int32_t block) const { return next_[block] == num_blocks() ? -1 : next_[block]; }

  // The invariant above, in full: O(num_blocks). The message names the first block that breaks it.
  absl::Status check_consistent() const;
  // Consistent, and nothing is in use: what must hold when no request is open.
  absl::Status check_at_rest() const;

 private:
  void link_cached(int32_t block);
  void unlink_cached(int32_t block);

  int block_tokens_;
  int num_cached_ = 0;
  std::vector<int32_t> free_;  // LIFO: recently used blocks are warm
  std::vector<int32_t> ref_counts_;
  std::vector<uint8_t> indexed_;
  // Cached blocks in a ring, the oldest first; entry num_blocks is its head.
  std::vector<int32_t> next_;
  std::vector<int32_t> previous_;
};

}  // namespace moesaic
