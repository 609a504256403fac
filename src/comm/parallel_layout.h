// ParallelLayout: all DP/TP/EP arithmetic. world = DP x TP = EP ranks. A rank owns its expert slots, the shared expert
// in full and its TP shard of attention; the TP ranks of a DP group share that group's sequences. A value; host-only.
//   rank = dp_rank * tp_size + tp_rank
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace moesaic {

// Half-open [begin, end).
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// More ranks than this are refused.
inline constexpr int kMaxRanks = 1024;

struct ParallelLayout {
  int dp_size = 1;
  int tp_size = 1;
  int moe_dense_tp_size = 1;  // ranks of a TP group that split the hidden layer of a dense FFN; divides tp_size
  int ep_size() const { return dp_size * tp_size; }
  int world_size() const { return dp_size * tp_size; }
  int dp_rank(int rank) const { return rank / tp_size; }
  int tp_rank(int rank) const { return rank % tp_size; }

  // 0 means "not given": missing sizes follow from world = DP x TP = EP (nothing given: 1 rank; EP alone: DP = EP, TP =
  // 1). Errors: sizes that contradict each other (the message names the nearest legal ones).
  static absl::StatusOr<ParallelLayout> make(int ep_size, int dp_size, int tp_size, int moe_dense_tp_size = 1);

  // Heads of `tp_rank`. Error from validate_heads() if num_heads is not divisible.
  Range heads(int64_t num_heads, int tp_rank) const;
  absl::Status validate_heads(int64_t num_heads) const;

  // FFNs are data-parallel within a TP group: each rank takes ffn_slice consecutive tokens of the group's step, the
  // last ranks fewer. Dense FFNs may be split further: moe_dense_tp_size neighbours take all their tokens together,
  // each with its columns of the hidden layer, and their sums are added.
  int64_t ffn_slice(int64_t num_tokens) const { return (num_tokens + tp_size - 1) / tp_size; }
  Range ffn_tokens(int64_t num_tokens, int tp_rank) const;
  Range dense_tokens(int64_t num_tokens, int tp_rank) const;
  Range dense_columns(int64_t intermediate, int tp_rank) const;
  absl::Status validate_dense(int64_t intermediate) const;

  // Physical expert slots: every rank has slots_per_rank(num_slots) = ceil; the last ranks may have unused ones.
  int64_t slots_per_rank(int64_t num_physical_experts) const;
  Range slots(int64_t num_physical_experts, int rank) const;

  std::string to_string() const;  // "EP8 = DP8 x TP1"
  bool operator==(const ParallelLayout&) const = default;
};

}  // namespace moesaic
