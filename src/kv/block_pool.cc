#include "kv/block_pool.h"

#include "base/check.h"

namespace moesaic {

BlockPool::BlockPool(int num_blocks, int block_tokens) : block_tokens_(block_tokens) {
  MOESAIC_CHECK_GE(num_blocks, 1);
  MOESAIC_CHECK_GE(block_tokens, 1);
  ref_counts_.assign(num_blocks, 0);
  indexed_.assign(num_blocks, 0);
  next_.assign(num_blocks + 1, num_blocks);
  previous_.assign(num_blocks + 1, num_blocks);
  free_.reserve(num_blocks);
  for (int block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

bool BlockPool::allocate(int count, std::vector<int32_t>* table) {
  MOESAIC_CHECK_GE(count, 0);
  if (count > num_free()) return false;
  for (int i = 0; i < count; ++i) {
    const int32_t block = free_.back();
    free_.pop_back();
    ref_counts_[block] = 1;
    table->push_back(block);
  }
  return true;
}

void BlockPool::retain(int32_t block) {
  MOESAIC_CHECK(block >= 0 && block < num_blocks());
  MOESAIC_CHECK(ref_counts_[block] > 0 || indexed_[block] != 0);
  if (++ref_counts_[block] == 1) unlink_cached(block);
}

void BlockPool::shrink(std::vector<int32_t>* table, size_t num_kept) {
  // Backwards, so that free blocks come out again in the order of the table, and cached ones age from the end.
  while (table->size() > num_kept) {
    release_one(table->back());
    table->pop_back();
  }
}

void BlockPool::release_one(int32_t block) {
  MOESAIC_CHECK(block >= 0 && block < num_blocks());
  MOESAIC_CHECK_GT(ref_counts_[block], 0);
  if (--ref_counts_[block] > 0) return;
  if (indexed_[block] != 0) {
    link_cached(block);
  } else {
    free_.push_back(block);
  }
}

void BlockPool::mark_indexed(int32_t block) {
  MOESAIC_CHECK(block >= 0 && block < num_blocks());
  MOESAIC_CHECK_GT(ref_counts_[block], 0);
  MOESAIC_CHECK_EQ(static_cast<int>(indexed_[block]), 0);
  indexed_[block] = 1;
}

void BlockPool::free_cached(int32_t block) {
  MOESAIC_CHECK(is_cached(block));
  unlink_cached(block);
  indexed_[block] = 0;
  free_.push_back(block);
}

void BlockPool::link_cached(int32_t block) {
  const int32_t head = num_blocks();
  const int32_t newest = previous_[head];
  previous_[block] = newest;
  next_[block] = head;
  next_[newest] = block;
  previous_[head] = block;
  ++num_cached_;
}

void BlockPool::unlink_cached(int32_t block) {
  next_[previous_[block]] = next_[block];
  previous_[next_[block]] = previous_[block];
  --num_cached_;
}

absl::Status BlockPool::check_consistent() const {
  std::vector<bool> is_free(num_blocks(), false);
  std::vector<bool> in_ring(num_blocks(), false);
  for (const int32_t block : free_) {
    if (block < 0 || block >= num_blocks()) {
      return absl::InternalError(str_cat("the free list holds block ", block, " of a pool of ", num_blocks()));
    }
    if (is_free[block]) return absl::InternalError(str_cat("block ", block, " is in the free list twice"));
    is_free[block] = true;
  }
  int num_in_ring = 0;
  for (int32_t block = oldest_cached(); block >= 0; block = next_cached(block)) {
    if (++num_in_ring > num_cached_) break;
    in_ring[block] = true;
  }
  if (num_in_ring != num_cached_) {
    return absl::InternalError(str_cat(num_cached_, " blocks are cached and their list holds ", num_in_ring));
  }
  for (int block = 0; block < num_blocks(); ++block) {
    const bool unreferenced = ref_counts_[block] == 0;
    const bool indexed = indexed_[block] != 0;
    if (ref_counts_[block] < 0 || is_free[block] != (unreferenced && !indexed) ||
        in_ring[block] != (unreferenced && indexed)) {
      return absl::InternalError(str_cat("block ", block, " has reference count ", ref_counts_[block], ", is ",
                                         indexed ? "" : "not ", "indexed, is ", is_free[block] ? "" : "not ",
                                         "in the free list and ", in_ring[block] ? "" : "not ", "in the cached list"));
    }
  }
  return absl::OkStatus();
}

absl::Status BlockPool::check_at_rest() const {
  MOESAIC_RETURN_IF_ERROR(check_consistent());
  if (num_used() == 0) return absl::OkStatus();
  return absl::InternalError(
      str_cat("expected no block in use at rest, found ", num_used(), " of ", num_blocks(), " in use"));
}

}  // namespace moesaic
