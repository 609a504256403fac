#include "kv/prefix_index.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/check.h"
#include "base/rng.h"

namespace moesaic {
namespace {

constexpr uint64_t kMultiplier = 0x9fb21c651e98df25ull;  // odd, bits well mixed

uint64_t fold(uint64_t value) {
  const unsigned __int128 product = static_cast<unsigned __int128>(value) * kMultiplier;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

}  // namespace

PrefixIndex::PrefixIndex(BlockPool* pool, PrefixIndexOptions options)
    : pool_(pool),
      block_tokens_(pool->block_tokens()),
      seed_(Rng(options.hash_seed).next_u64()),
      hash_mask_(options.hash_bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << options.hash_bits) - 1),
      nodes_(pool->num_blocks()),
      tokens_(pool->num_blocks() * block_tokens_),
      table_(std::bit_ceil(static_cast<size_t>(pool->num_blocks()) * 2), -1),
      table_mask_(table_.size() - 1) {
  roots_.push_back({.salt = {}, .hash = hash_salt({}), .num_children = 0});
}

// Four lanes, so that the multiplications overlap; eight bytes a time.
uint64_t PrefixIndex::hash_block(uint64_t parent_hash, const int32_t* tokens) const {
  uint64_t lanes[4] = {parent_hash, seed_, parent_hash ^ kMultiplier, ~seed_};
  const auto word = [&](size_t i) {
    uint64_t value;
    std::memcpy(&value, tokens + i, sizeof(value));
    return value;
  };
  size_t i = 0;
  for (; i + 8 <= block_tokens_; i += 8) {
    for (size_t lane = 0; lane < 4; ++lane) lanes[lane] = fold(lanes[lane] ^ word(i + 2 * lane));
  }
  for (; i < block_tokens_; ++i) lanes[0] = fold(lanes[0] ^ static_cast<uint32_t>(tokens[i]) ^ (i << 32));
  const uint64_t hash = fold(fold(lanes[0] ^ std::rotl(lanes[1], 17)) ^ fold(lanes[2] ^ std::rotl(lanes[3], 29)));
  return hash & hash_mask_;
}

uint64_t PrefixIndex::hash_salt(std::string_view salt) const {
  uint64_t hash = seed_ ^ salt.size();
  for (const char byte : salt) hash = fold(hash ^ static_cast<unsigned char>(byte));
  return hash & hash_mask_;
}

int32_t PrefixIndex::find(int32_t parent, uint64_t hash, const int32_t* tokens) const {
  for (size_t slot = hash & table_mask_; table_[slot] >= 0; slot = (slot + 1) & table_mask_) {
    const int32_t block = table_[slot];
    const Node& node = nodes_[block];
    if (node.hash == hash && node.parent == parent &&
        std::memcmp(tokens_of(block), tokens, block_tokens_ * sizeof(int32_t)) == 0) {
      return block;
    }
  }
  return -1;
}

void PrefixIndex::lookup(std::string_view salt, std::span<const int32_t> tokens, std::vector<int32_t>* blocks) const {
  int32_t root = 0;
  if (!salt.empty()) {
    const auto found = root_of_salt_.find(std::string(salt));
    if (found == root_of_salt_.end()) return;
    root = found->second;
  }
  int32_t parent = ~root;
  uint64_t hash = roots_[root].hash;
  for (size_t at = 0; at + block_tokens_ <= tokens.size(); at += block_tokens_) {
    hash = hash_block(hash, tokens.data() + at);
    parent = find(parent, hash, tokens.data() + at);
    if (parent < 0) return;
    blocks->push_back(parent);
  }
}

int32_t PrefixIndex::find_or_add_root(std::string_view salt) {
  if (salt.empty()) return 0;
  auto [place, is_new] = root_of_salt_.try_emplace(std::string(salt), 0);
  if (!is_new) return place->second;
  if (free_roots_.empty()) {
    free_roots_.push_back(static_cast<int32_t>(roots_.size()));
    roots_.emplace_back();
  }
  place->second = free_roots_.back();
  free_roots_.pop_back();
  roots_[place->second] = {.salt = std::string(salt), .hash = hash_salt(salt), .num_children = 0};
  return place->second;
}

int32_t PrefixIndex::insert(std::string_view salt, int32_t parent, std::span<const int32_t> tokens, int32_t block) {
  MOESAIC_CHECK_EQ(tokens.size(), block_tokens_);
  MOESAIC_CHECK(parent < 0 || (pool_->is_indexed(parent) && pool_->ref_count(parent) > 0));
  const int32_t root = parent < 0 ? find_or_add_root(salt) : 0;
  const uint64_t hash = hash_block(parent < 0 ? roots_[root].hash : nodes_[parent].hash, tokens.data());
  const int32_t node_parent = parent < 0 ? ~root : parent;
  const int32_t known = find(node_parent, hash, tokens.data());
  if (known >= 0) {
    MOESAIC_CHECK_NE(known, block);
    pool_->retain(known);
    pool_->release_one(block);
    return known;
  }
  pool_->mark_indexed(block);
  nodes_[block] = {.hash = hash, .parent = node_parent, .num_children = 0};
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + static_cast<int64_t>(block * block_tokens_));
  ++(parent < 0 ? roots_[root].num_children : nodes_[parent].num_children);
  add_to_table(block);
  ++num_indexed_;
  ++version_;
  return block;
}

bool PrefixIndex::make_free(int count) {
  if (count > pool_->num_free() + pool_->num_cached()) return false;
  while (pool_->num_free() < count) evict_oldest();
  return true;
}

void PrefixIndex::evict_oldest() {
  const int32_t block = pool_->oldest_cached();
  const int32_t parent = nodes_[block].parent;
  MOESAIC_CHECK_EQ(nodes_[block].num_children, 0);
  remove_from_table(block);
  pool_->free_cached(block);
  --num_indexed_;
  ++version_;
  if (parent >= 0) {
    --nodes_[parent].num_children;
    return;
  }
  Root& root = roots_[~parent];
  if (--root.num_children > 0 || ~parent == 0) return;
  root_of_salt_.erase(root.salt);
  root.salt.clear();
  free_roots_.push_back(~parent);
}

void PrefixIndex::add_to_table(int32_t block) {
  size_t slot = nodes_[block].hash & table_mask_;
  while (table_[slot] >= 0) slot = (slot + 1) & table_mask_;
  table_[slot] = block;
}

// Moves later entries of the run back over the hole, so that no probe ends early.
void PrefixIndex::remove_from_table(int32_t block) {
  size_t hole = nodes_[block].hash & table_mask_;
  while (table_[hole] != block) hole = (hole + 1) & table_mask_;
  for (size_t slot = (hole + 1) & table_mask_; table_[slot] >= 0; slot = (slot + 1) & table_mask_) {
    const size_t home = nodes_[table_[slot]].hash & table_mask_;
    if (((slot - home) & table_mask_) < ((slot - hole) & table_mask_)) continue;
    table_[hole] = table_[slot];
    hole = slot;
  }
  table_[hole] = -1;
}

absl::Status PrefixIndex::check_consistent() const {
  MOESAIC_RETURN_IF_ERROR(pool_->check_consistent());
  const auto wrong = [](int32_t block, std::string_view what) {
    return absl::InternalError(str_cat("prefix index: block ", block, " ", what));
  };
  std::vector<int> num_children(nodes_.size(), 0);
  std::vector<int> child_references(nodes_.size(), 0);
  std::vector<int> root_children(roots_.size(), 0);
  int num_indexed = 0;
  for (int32_t block = 0; block < pool_->num_blocks(); ++block) {
    if (!pool_->is_indexed(block)) continue;
    ++num_indexed;
    const Node& node = nodes_[block];
    const bool is_first = node.parent < 0;
    if (!is_first && !pool_->is_indexed(node.parent)) return wrong(block, "has a parent that is not indexed");
    const uint64_t above = is_first ? roots_[~node.parent].hash : nodes_[node.parent].hash;
    if (node.hash != hash_block(above, tokens_of(block))) return wrong(block, "has another hash than its tokens");
    if (find(node.parent, node.hash, tokens_of(block)) != block) return wrong(block, "is not found by its tokens");
    ++(is_first ? root_children[~node.parent] : num_children[node.parent]);
    if (!is_first) child_references[node.parent] += pool_->ref_count(block);
  }
  for (int32_t block = 0; block < pool_->num_blocks(); ++block) {
    if (!pool_->is_indexed(block)) continue;
    if (num_children[block] != nodes_[block].num_children) return wrong(block, "counts its children wrongly");
    if (child_references[block] > pool_->ref_count(block))
      return wrong(block, "has fewer references than its children");
  }
  for (size_t root = 0; root < roots_.size(); ++root) {
    if (root_children[root] != roots_[root].num_children) return absl::InternalError("prefix index: a salt's count");
  }
  std::vector<bool> seen(nodes_.size(), false);
  for (int32_t block = pool_->oldest_cached(); block >= 0; block = pool_->next_cached(block)) {
    seen[block] = true;
    if (nodes_[block].parent >= 0 && seen[nodes_[block].parent]) return wrong(block, "would outlive its parent");
  }
  const auto num_entries = std::count_if(table_.begin(), table_.end(), [](int32_t block) { return block >= 0; });
  if (num_entries == num_indexed && num_indexed == num_indexed_) return absl::OkStatus();
  return absl::InternalError(str_cat("prefix index: ", num_indexed, " indexed blocks, ", num_indexed_, " counted and ",
                                     num_entries, " in the table"));
}

}  // namespace moesaic
