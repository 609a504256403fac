// ExpertMap: logical experts (as the checkpoint names them) to physical slots (as ranks hold them) of one layer.
// Immutable, shared by all ranks; a new placement is a new map with a higher version.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/status.h"

namespace moesaic {

class ExpertMap {
 public:
  // Slot i holds expert i. 0: a dense model.
  static ExpertMap identity(int num_experts);
  // phy2log[slot] = logical expert, or -1 for an empty slot. Error: an expert without a slot, an id out of range.
  static absl::StatusOr<ExpertMap> make(std::vector<int32_t> phy2log, int num_experts, int64_t version);

  int num_experts() const { return num_experts_; }
  int num_slots() const { return static_cast<int>(phy2log_.size()); }
  int64_t version() const { return version_; }
  bool is_identity() const { return identity_; }
  int32_t logical(int slot) const { return phy2log_[slot]; }
  // Slots of a logical expert, ascending; at least one.
  std::span<const int32_t> slots_of(int expert) const;

  // topk_ids in place, logical to physical; -1 stays -1. Replicas are chosen by `token_salt` + token index, round
  // robin.
  void to_physical(std::span<int32_t> topk_ids, int num_experts_per_tok, uint32_t token_salt) const;

 private:
  int num_experts_ = 0;
  int64_t version_ = 0;
  bool identity_ = false;
  std::vector<int32_t> phy2log_;
  std::vector<int32_t> log2phy_;        // slots of expert 0, then of expert 1, ...
  std::vector<int32_t> log2phy_begin_;  // [num_experts + 1]
};

}  // namespace moesaic
