#include "text/bpe.h"

#include <algorithm>
#include <bit>

namespace moesaic {

namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

size_t Bpe::slot_of(uint64_t key) const {
  const size_t mask = pairs_.size() - 1;
  size_t i = ((key ^ key >> 29) * 0x9E3779B97F4A7C15ull >> 32) & mask;
  while (pairs_[i].key != key && pairs_[i].key != kNoKey) i = (i + 1) & mask;
  return i;
}

const Bpe::Pair& Bpe::find(int32_t left, int32_t right) const {
  return pairs_[slot_of(pair_key(left, right))];
}

void Bpe::reserve(size_t num_merges) {
  std::vector<Pair> old = std::move(pairs_);
  pairs_.assign(std::bit_ceil(std::max<size_t>(16, 2 * num_merges)), Pair{});
  for (const Pair& pair : old) {
    if (pair.key != kNoKey) pairs_[slot_of(pair.key)] = pair;
  }
}

void Bpe::add_merge(int32_t left, int32_t right, uint32_t rank, int32_t merged) {
  if (2 * (num_pairs_ + 1) > pairs_.size()) reserve(pairs_.size());
  Pair& pair = pairs_[slot_of(pair_key(left, right))];
  num_pairs_ += pair.key == kNoKey;
  pair = {pair_key(left, right), rank, merged};
}

void Bpe::encode(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  if (word.size() <= kShortWord) {
    encode_short(word, out);
  } else {
    encode_long(word, scratch, out);
  }
}

void Bpe::encode_short(std::string_view word, std::vector<int32_t>& out) const {
  int32_t ids[kShortWord];
  uint32_t ranks[kShortWord];  // of the pair (i, i + 1)
  int32_t merged[kShortWord];
  int n = 0;
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id >= 0) ids[n++] = id;
  }
  const auto look_up = [&](int i) {
    const Pair& pair = find(ids[i], ids[i + 1]);
    ranks[i] = pair.rank;
    merged[i] = pair.merged;
  };
  for (int i = 0; i + 1 < n; ++i) look_up(i);
  while (n > 1) {
    const int best = static_cast<int>(std::min_element(ranks, ranks + n - 1) - ranks);
    if (ranks[best] == kNoRank) break;
    ids[best] = merged[best];
    --n;
    for (int i = best + 1; i < n; ++i) ids[i] = ids[i + 1];
    for (int i = best + 1; i < n - 1; ++i) {
      ranks[i] = ranks[i + 1];
      merged[i] = merged[i + 1];
    }
    if (best > 0) look_up(best - 1);
    if (best + 1 < n) look_up(best);
  }
  out.insert(out.end(), ids, ids + n);
}

void Bpe::push(Scratch& scratch, int32_t left, int32_t right) const {
  if (left < 0 || right < 0) return;
  const int32_t left_id = scratch.symbols[left].id;
  const int32_t right_id = scratch.symbols[right].id;
  const Pair& pair = find(left_id, right_id);
  if (pair.rank == kNoRank) return;
  scratch.heap.push_back({pair.rank, left, right, left_id, right_id, pair.merged});
}

void Bpe::encode_long(std::string_view word, Scratch& scratch, std::vector<int32_t>& out) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  symbols.clear();
  heap.clear();
  for (const char c : word) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    const int32_t index = static_cast<int32_t>(symbols.size());
    if (id >= 0) symbols.push_back({id, index - 1, index + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) push(scratch, static_cast<int32_t>(i), static_cast<int32_t>(i + 1));
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push_ordered = [&](int32_t left, int32_t right) {
    const size_t before = heap.size();
    push(scratch, left, right);
    if (heap.size() > before) std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    auto& left = symbols[top.left];
    auto& right = symbols[top.right];
    // A merged-away symbol has id -1, so this also drops candidates that name it.
    if (left.id != top.left_id || right.id != top.right_id || left.next != top.right) continue;
    left.id = top.merged;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbols[left.next].prev = top.left;
    push_ordered(left.prev, top.left);
    push_ordered(top.left, left.next);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace moesaic
