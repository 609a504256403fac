#include "comm/expert_map.h"

#include <numeric>
#include <utility>

#include "base/check.h"

namespace moesaic {

ExpertMap ExpertMap::identity(int num_experts) {
  MOESAIC_CHECK_GE(num_experts, 0);
  std::vector<int32_t> phy2log(num_experts);
  std::iota(phy2log.begin(), phy2log.end(), 0);
  return *make(std::move(phy2log), num_experts, 0);
}

absl::StatusOr<ExpertMap> ExpertMap::make(std::vector<int32_t> phy2log, int num_experts, int64_t version) {
  if (num_experts < 0) {
    return absl::InvalidArgumentError(str_cat("expert map: ", num_experts, " experts; expected at least 0"));
  }
  if (phy2log.size() > static_cast<size_t>(INT32_MAX)) {
    return absl::InvalidArgumentError(str_cat("expert map: ", phy2log.size(), " slots; expected at most ", INT32_MAX));
  }
  ExpertMap map;
  map.num_experts_ = num_experts;
  map.version_ = version;
  map.log2phy_begin_.assign(num_experts + 1, 0);
  map.identity_ = phy2log.size() == static_cast<size_t>(num_experts);
  for (size_t slot = 0; slot < phy2log.size(); ++slot) {
    const int32_t expert = phy2log[slot];
    map.identity_ = map.identity_ && expert == static_cast<int32_t>(slot);
    if (expert == -1) continue;
    if (expert < 0 || expert >= num_experts) {
      return absl::InvalidArgumentError(str_cat("expert map: slot ", slot, " holds expert ", expert, "; expected 0 to ",
                                                num_experts - 1, ", or -1 for an empty slot"));
    }
    ++map.log2phy_begin_[expert + 1];
  }
  for (int expert = 0; expert < num_experts; ++expert) {
    if (map.log2phy_begin_[expert + 1] == 0) {
      return absl::InvalidArgumentError(str_cat("expert map: expert ", expert, " has no slot among ", phy2log.size(),
                                                "; every one of the ", num_experts, " experts needs at least one"));
    }
    map.log2phy_begin_[expert + 1] += map.log2phy_begin_[expert];
  }
  map.log2phy_.resize(map.log2phy_begin_[num_experts]);
  std::vector<int32_t> next(map.log2phy_begin_.begin(), map.log2phy_begin_.end() - 1);
  for (size_t slot = 0; slot < phy2log.size(); ++slot) {
    if (phy2log[slot] >= 0) map.log2phy_[next[phy2log[slot]]++] = static_cast<int32_t>(slot);
  }
  map.phy2log_ = std::move(phy2log);
  return map;
}

std::span<const int32_t> ExpertMap::slots_of(int expert) const {
  MOESAIC_CHECK(expert >= 0 && expert < num_experts_);
  return std::span(log2phy_).subspan(log2phy_begin_[expert], log2phy_begin_[expert + 1] - log2phy_begin_[expert]);
}

void ExpertMap::to_physical(std::span<int32_t> topk_ids, int num_experts_per_tok, uint32_t token_salt) const {
  if (identity_) return;
  MOESAIC_CHECK(num_experts_per_tok >= 1 && topk_ids.size() % num_experts_per_tok == 0);
  const size_t num_tokens = topk_ids.size() / num_experts_per_tok;
  for (size_t token = 0; token < num_tokens; ++token) {
    const uint32_t turn = token_salt + static_cast<uint32_t>(token);
    for (int32_t& id : topk_ids.subspan(token * num_experts_per_tok, num_experts_per_tok)) {
      if (id == -1) continue;
      const std::span<const int32_t> slots = slots_of(id);
      id = slots.size() == 1 ? slots[0] : slots[turn % slots.size()];
    }
  }
}

}  // namespace moesaic
