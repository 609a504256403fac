// BlockPool: hands out KV block ids of one DP group and takes them back; counts references so that blocks can be
// shared. Ids only: the tensors belong to the model. Owned by the engine thread; not thread-safe.
// Invariant: every block is either in the free list (once, reference count 0) or in use (reference count > 0).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace moesaic {

class BlockPool {
 public:
  BlockPool(int num_blocks, int block_tokens);

  int num_blocks() const { return static_cast<int>(ref_counts_.size()); }
  int block_tokens() const { return block_tokens_; }
  int num_free() const { return static_cast<int>(free_.size()); }
  int num_used() const { return num_blocks() - num_free(); }
  int blocks_for(int64_t num_tokens) const {
    return static_cast<int>((num_tokens + block_tokens_ - 1) / block_tokens_);
  }
  int ref_count(int32_t block) const { return ref_counts_[block]; }

  // Appends `count` blocks (reference count 1) to `table`; false and nothing changed if fewer are free.
  [[nodiscard]] bool allocate(int count, std::vector<int32_t>* table);
  void retain(int32_t block);
  // Drops one reference of each block and empties the table. A block that is not in use is a bug: CHECK.
  void release(std::vector<int32_t>* table);

  // The invariant above, in full: O(num_blocks). The message names the first block that breaks it.
  absl::Status check_consistent() const;
  // Consistent, and nothing is in use: what must hold when no request is open.
  absl::Status check_at_rest() const;

 private:
  int block_tokens_;
  std::vector<int32_t> free_;  // LIFO: recently used blocks are warm
  std::vector<int32_t> ref_counts_;
};

}  // namespace moesaic
