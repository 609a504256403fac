#include "comm/parallel_layout.h"

#include <algorithm>

#include "base/check.h"

namespace moesaic {
namespace {

// "4 or 8" for value 6 and unit 4: the nearest multiples, at least one unit, at most kMaxRanks.
std::string nearest_multiples(int64_t value, int64_t unit) {
  const int64_t below = std::max(unit, value / unit * unit);
  const int64_t above = below + (below < value ? unit : 0);
  return below == above || above > kMaxRanks ? str_cat(below) : str_cat(below, " or ", above);
}

// "3 or 6" for value 4 and total 6: the nearest divisors of total.
std::string nearest_divisors(int64_t value, int64_t total) {
  int64_t below = std::min(value, total), above = value;
  while (total % below != 0) --below;
  while (above < total && total % above != 0) ++above;
  return above > total || total % above != 0 || above == below ? str_cat(below) : str_cat(below, " or ", above);
}

absl::Status check_size(std::string_view name, int size) {
  if (size >= 0 && size <= kMaxRanks) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat(name, " is ", size, "; expected 1 to ", kMaxRanks, ", or 0 for not given"));
}

// The other factor of ep_size, given one of them.
absl::StatusOr<int> other_factor(int ep_size, std::string_view name, int size) {
  if (ep_size == 0) return 1;
  if (ep_size % size == 0) return ep_size / size;
  return absl::InvalidArgumentError(str_cat(
      "ep_size ", ep_size, " is not a multiple of ", name, " ", size, " (EP = DP x TP). Nearest legal: ep_size ",
      nearest_multiples(ep_size, size), ", or ", name, " ", nearest_divisors(size, ep_size)));
}

}  // namespace

absl::StatusOr<ParallelLayout> ParallelLayout::make(int ep_size, int dp_size, int tp_size, int moe_dense_tp_size) {
  MOESAIC_RETURN_IF_ERROR(check_size("ep_size", ep_size));
  MOESAIC_RETURN_IF_ERROR(check_size("dp_size", dp_size));
  MOESAIC_RETURN_IF_ERROR(check_size("tp_size", tp_size));
  ParallelLayout layout{.dp_size = dp_size, .tp_size = tp_size};
  if (dp_size == 0 && tp_size == 0) {
    layout = {.dp_size = std::max(ep_size, 1), .tp_size = 1};
  } else if (tp_size == 0) {
    MOESAIC_ASSIGN_OR_RETURN(layout.tp_size, other_factor(ep_size, "dp_size", dp_size));
  } else if (dp_size == 0) {
    MOESAIC_ASSIGN_OR_RETURN(layout.dp_size, other_factor(ep_size, "tp_size", tp_size));
  }
  const int64_t world = int64_t{layout.dp_size} * layout.tp_size;
  if (world > kMaxRanks) {
    return absl::InvalidArgumentError(str_cat("dp_size ", layout.dp_size, " x tp_size ", layout.tp_size, " = ", world,
                                              " ranks; at most ", kMaxRanks, ". Nearest legal: dp_size ",
                                              kMaxRanks / layout.tp_size));
  }
  if (ep_size != 0 && world != ep_size) {
    std::string legal = str_cat("ep_size ", world);
    if (ep_size % tp_size == 0) legal += str_cat(", or dp_size ", ep_size / tp_size);
    if (ep_size % dp_size == 0) legal += str_cat(", or tp_size ", ep_size / dp_size);
    return absl::InvalidArgumentError(str_cat("ep_size ", ep_size, " contradicts dp_size ", dp_size, " x tp_size ",
                                              tp_size, " = ", world, " (EP = DP x TP). Nearest legal: ", legal));
  }
  if (moe_dense_tp_size < 1 || layout.tp_size % moe_dense_tp_size != 0) {
    return absl::InvalidArgumentError(str_cat("moe_dense_tp_size ", moe_dense_tp_size, " does not divide tp_size ",
                                              layout.tp_size, ". Nearest legal: moe_dense_tp_size ",
                                              nearest_divisors(std::max(moe_dense_tp_size, 1), layout.tp_size)));
  }
  layout.moe_dense_tp_size = moe_dense_tp_size;
  return layout;
}

Range ParallelLayout::ffn_tokens(int64_t num_tokens, int tp_rank) const {
  const int64_t slice = ffn_slice(num_tokens);
  return {std::min(tp_rank * slice, num_tokens), std::min((tp_rank + 1) * slice, num_tokens)};
}

Range ParallelLayout::dense_tokens(int64_t num_tokens, int tp_rank) const {
  const int first = tp_rank / moe_dense_tp_size * moe_dense_tp_size;
  return {ffn_tokens(num_tokens, first).begin, ffn_tokens(num_tokens, first + moe_dense_tp_size - 1).end};
}

Range ParallelLayout::dense_columns(int64_t intermediate, int tp_rank) const {
  MOESAIC_CHECK_EQ(intermediate % moe_dense_tp_size, 0);
  const int64_t width = intermediate / moe_dense_tp_size, shard = tp_rank % moe_dense_tp_size;
  return {shard * width, (shard + 1) * width};
}

absl::Status ParallelLayout::validate_dense(int64_t intermediate) const {
  if (intermediate % moe_dense_tp_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("the model's intermediate_size ", intermediate,
                                            " cannot be split over moe_dense_tp_size ", moe_dense_tp_size));
}

Range ParallelLayout::heads(int64_t num_heads, int tp_rank) const {
  MOESAIC_CHECK_EQ(num_heads % tp_size, 0);
  MOESAIC_CHECK(tp_rank >= 0 && tp_rank < tp_size);
  const int64_t per_rank = num_heads / tp_size;
  return {tp_rank * per_rank, (tp_rank + 1) * per_rank};
}

absl::Status ParallelLayout::validate_heads(int64_t num_heads) const {
  if (num_heads < 1)
    return absl::InvalidArgumentError(str_cat("num_attention_heads is ", num_heads, "; expected >= 1"));
  if (num_heads % tp_size == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(str_cat("the model's ", num_heads, " attention heads cannot be split over tp_size ",
                                            tp_size, ". Nearest legal: tp_size ",
                                            nearest_divisors(tp_size, num_heads)));
}

int64_t ParallelLayout::slots_per_rank(int64_t num_physical_experts) const {
  return (num_physical_experts + world_size() - 1) / world_size();
}

Range ParallelLayout::slots(int64_t num_physical_experts, int rank) const {
  MOESAIC_CHECK(rank >= 0 && rank < world_size());
  const int64_t per_rank = slots_per_rank(num_physical_experts);
  return {std::min(num_physical_experts, rank * per_rank), std::min(num_physical_experts, (rank + 1) * per_rank)};
}

std::string ParallelLayout::to_string() const {
  const std::string dense = moe_dense_tp_size > 1 ? str_cat(", dense FFN TP", moe_dense_tp_size) : "";
  return str_cat("EP", ep_size(), " = DP", dp_size, " x TP", tp_size, dense);
}

}  // namespace moesaic
