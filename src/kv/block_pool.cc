#include "kv/block_pool.h"

#include "base/check.h"

namespace moesaic {

BlockPool::BlockPool(int num_blocks, int block_tokens) : block_tokens_(block_tokens) {
  MOESAIC_CHECK_GE(num_blocks, 1);
  MOESAIC_CHECK_GE(block_tokens, 1);
  ref_counts_.assign(num_blocks, 0);
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
  MOESAIC_CHECK_GT(ref_counts_[block], 0);
  ++ref_counts_[block];
}

void BlockPool::release(std::vector<int32_t>* table) {
  // Backwards, so that the blocks come out again in the order of the table.
  for (auto block = table->rbegin(); block != table->rend(); ++block) {
    MOESAIC_CHECK(*block >= 0 && *block < num_blocks());
    MOESAIC_CHECK_GT(ref_counts_[*block], 0);
    if (--ref_counts_[*block] == 0) free_.push_back(*block);
  }
  table->clear();
}

absl::Status BlockPool::check_consistent() const {
  std::vector<bool> is_free(num_blocks(), false);
  for (const int32_t block : free_) {
    if (block < 0 || block >= num_blocks()) {
      return absl::InternalError(str_cat("the free list holds block ", block, " of a pool of ", num_blocks()));
    }
    if (is_free[block]) return absl::InternalError(str_cat("block ", block, " is in the free list twice"));
    is_free[block] = true;
  }
  for (int block = 0; block < num_blocks(); ++block) {
    if (ref_counts_[block] < 0 || is_free[block] != (ref_counts_[block] == 0)) {
      return absl::InternalError(str_cat("block ", block, " has reference count ", ref_counts_[block], " and is ",
                                         is_free[block] ? "" : "not ", "in the free list"));
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
