// BlockPool: hands out KV block ids of one DP group and takes them back; counts references so that blocks can be
// shared. Ids only: the tensors belong to the model. Owned by the engine thread; not thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

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

  // Appends `count` blocks (reference count 1) to `table`; false and nothing changed if fewer are free.
  [[nodiscard]] bool allocate(int count, std::vector<int32_t>* table);
  void retain(int32_t block);
  // Drops one reference of each block and empties the table.
  void release(std::vector<int32_t>* table);

 private:
  int block_tokens_;
  std::vector<int32_t> free_;  // LIFO: recently used blocks are warm
  std::vector<int32_t> ref_counts_;
};

}  // namespace moesaic
